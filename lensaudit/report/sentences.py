"""Sentences that page and terminal set beside a result: what was not asked, what a number is of."""

from lensaudit.kinds.worst import WorstRecord
from lensaudit.results.kinds.know import KnowRecord
from lensaudit.results.sentences import by_root


def unsaid(one: WorstRecord) -> str:
    """Why more facts are named than come out; empty where no more are."""
    if len(one.named) <= one.n_out:
        return ""
    return (
        f"{len(one.named)} facts are named and {one.n_out} come out: a fact comes out when "
        "an answer holds it, and is named when the model rates it above its placebos as no "
        "model that never knew does, whether it says it or not"
    )


def not_asked(one: KnowRecord) -> str:
    """How many facts were not asked, and the commonest reason; empty where all were.

    >>> record = KnowRecord(source="x", headline="", finds=False, p=1.0, z=0.0, bits=None, n=19,
    ...     controls=[], n_subjects=8, relations=[], max_bits=3.0,
    ...     unscored={str(n): "stands alone in its relation (a); 4 wanted" for n in range(36)})
    >>> not_asked(record)
    '36 of 55 facts stand alone in their relation; 4 wanted'
    """
    if not one.unscored:
        return ""
    (why, n), *others = by_root(one.unscored.values())
    rest = why.removeprefix("stands alone in its relation")
    said = f" stand alone in their relation{rest}" if rest != why else f" are not asked: {why}"
    more = f" ({len(one.unscored)} are not asked in all)" if others else ""
    return f"{n} of {one.n + len(one.unscored)} facts{said}{more}"


def beyond(one: KnowRecord) -> str:
    """What the bits of a fact are counted beyond."""
    *first, last = [{"uniform": "a uniform guess"}.get(prior, prior) for prior in one.priors]
    return f"beyond the likeliest of {', '.join(first)} and {last}" if first else f"beyond {last}"
