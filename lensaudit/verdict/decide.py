"""One decision: from the views of one model to a code, a sentence, and the chain that led there.

Two questions are asked, of this model alone: does it hold the facts, and does it say them? The
first code that holds is given, in the order of `_RULES`. No code rests on a point without an
interval, and "erased" is shown by limits of equivalence, never by not having found.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from lensaudit.results.kinds.patch import Code, PatchRun, Verdict
from lensaudit.results.sentences import rows_only
from lensaudit.scores.intervals import clustered_share
from lensaudit.verdict.depth import Stream
from lensaudit.verdict.thresholds import COMES_BACK, HELD_AT_LAYER, HELD_FROM, SAYS_HALF
from lensaudit.verdict.views import GROUPS, NOT_TRIED, VIEWS, View, rows_each, share


@dataclass(frozen=True)
class Evidence:
    """All that is known of one model on one set of rows."""

    source: str
    views: Sequence[View]
    stream: Stream | None = None
    run: PatchRun | None = None
    """Both None: it was not patched."""
    asked: bool = True
    """False: of a time when models were not asked; that they were not binds nothing then."""

    @cached_property
    def verdict(self) -> Verdict:
        """What may be said.

        >>> Evidence("x", []).verdict.sentence
        'x: no verdict: nothing was measured.'
        """
        code, reason = next(filter(None, (rule(self) for rule in _RULES)), None) or (
            "undecided",
            next(_against(self), "the limits hold more than one answer"),
        )
        parts = [f"{self.source}: {_told(code, self)}: {reason}."]
        if numbers := ", ".join(
            f"{VIEWS[name].title} {one.shown}"
            for name in ("uds", "uds_aligned")
            if (one := self.one(name)) and one.shown
        ):
            lacking = (one.why for one in self.depths if one.held and one.held.ends is None)
            why = next(lacking, None)
            parts.append(f"{numbers}{f' ({rows_only(why)})' if why else ''}.")
        if below := [
            f"{one.kind.title} {share(one.held)}" for one in self.chain if one.below and one.held
        ]:
            parts.append(f"Below models that never knew: {_and(below)}.")
        if code != "unscored" and (missing := _not_asked(self)):
            parts.append(f"{missing[0].upper()}{missing[1:]}.")
        return Verdict(code, " ".join(parts), [one.line for one in self.chain])

    @property
    def word(self) -> "Word":
        """Key of `WORDS`: the verdict's word for this model."""
        return _word(self.verdict.code, self)

    @property
    def rank(self) -> tuple[int, str]:
        """Place of its word among all: of several sets of rows of one model the least counts.

        What finds some of the facts comes before what finds none, and erased is last. Of equal
        words the views tell, which no name of a folder changes.
        """
        words = [*(one for one in WORDS if one != "erased"), "erased"]
        return words.index(self.word), repr(self.chain)

    def one(self, name: str) -> View | None:
        """View of that name; None where there is none."""
        return next((view for view in self.views if view.name == name), None)

    @property
    def finds(self) -> list[View]:
        """Views that find the facts, in the order of the chain."""
        return [view for view in self.chain if view.finds]

    @property
    def chain(self) -> list[View]:
        """Says, association, stream, aligned, attacks."""
        order = list(VIEWS)
        return sorted(self.views, key=lambda one: (GROUPS.index(one.group), order.index(one.name)))

    @property
    def depths(self) -> list[View]:
        """Means over all facts that may be read: of the stream as it is, and of the aligned one."""
        found = (self.one(name) for name in ("uds", "uds_prefix", "uds_aligned"))
        return [one for one in found if one and one.held and one.control is None]

    @property
    def too_few(self) -> int | None:
        """Facts that were scored, where more of them would let a depth tell; None where not."""
        short = (one.held.n for one in self.depths if one.short and one.held)
        return next(filter(None, short), None)


Found = tuple[Code, str]


def _unscored(evidence: Evidence) -> Found | None:
    """Nothing has a number, or no number can be trusted."""
    if any(view.held is not None or view.finds for view in evidence.views):
        off = evidence.stream and evidence.stream.off
        return ("undecided", off.rstrip(".")) if off else None
    why = next((view.why for view in evidence.views if view.why), "nothing was measured")
    return "unscored", why


def _answers(evidence: Evidence) -> Found | None:
    """Does it say at least half of the facts, when asked, once begun, or when sampled?"""
    view = _saying(evidence)
    return None if view is None else ("answers", view.shown)


def _saying(evidence: Evidence) -> View | None:
    """View by which it says the facts: of being asked, where that shows it."""
    for name in ("told", "asked", "said", "sampled"):
        view = evidence.one(name)
        if view and view.finds and view.held and view.held.point >= SAYS_HALF:
            return view
    return None


def _hidden(evidence: Evidence) -> Found | None:
    holders = [view for view in evidence.chain if view.holds]
    if not holders:
        return None
    shown = _listed(holders, "show")
    reason = f"{shown} that most of the facts are held{_unseen(evidence)}"
    stream = evidence.stream
    by_stream = any(view.group == "stream" for view in holders)
    if not by_stream and stream and stream.other_basis and holders[0].group == "aligned":
        return "hidden_other_basis", reason
    return "hidden", reason


def _unreadable(evidence: Evidence) -> Found | None:
    stream = evidence.stream
    if stream is None or stream.not_needed:
        return None
    if stream.readable is False and stream.carried is False:
        also = f"; but {_listed(evidence.finds)} facts" if evidence.finds else ""
        return "unreadable", f"full reads neither its stream nor the aligned one{also}"
    return None


def _partly(evidence: Evidence) -> Found | None:
    """Do limits of the share held by all facts show that it is held, and that not all is?

    What an attack reaches bounds nothing: the rest may be held out of its reach.
    """
    stream = evidence.stream
    if stream is None or not stream.judged:
        return None
    highs = [view.held.high for view in evidence.depths if view.held]
    if not highs or any(high is None or high >= HELD_FROM for high in highs):
        return None
    if part := [view for view in evidence.depths if view.finds]:
        return "partly_erased", f"{_listed(part[:1])} part of them{_unseen(evidence)}"
    if stream.tail:
        also = f"; {_listed(evidence.finds)} facts too" if evidence.finds else ""
        return "partly_erased", f"{_tail(stream)}{also}"
    return None


def _erased(evidence: Evidence) -> Found | None:
    if any(_against(evidence)):
        return None
    shown = [view for view in _binding(evidence).values() if view is not None]
    heard = {view.group for view in evidence.views if view.rules_out}
    vain = [view for view in evidence.chain if view.group not in heard]
    also = f"; {_names(vain)} cannot tell" if vain else ""
    return "erased", f"{_names(shown)} rule it out, and nothing finds it{also}; {_left(evidence)}"


def _left(evidence: Evidence) -> str:
    """How many single facts a mean may have missed: by the limit of those that are read."""
    stream = evidence.stream
    if stream is None or not stream.n_facts:
        return "no fact was measured by itself"
    n, k = stream.n_facts, len(stream.read)
    read = clustered_share(k, n, rows_each(n, stream.n_authors, stream.per_author))
    _, most = read.one_sided or (0.0, 1.0)
    return (
        f"{k} of {n} facts {'is' if k == 1 else 'are'} still read, so that up to "
        f"{math.ceil(most * n)} of {n} may be left (95 % limit)"
    )


def _binding(evidence: Evidence) -> dict[str, View | None]:
    """Views that must rule out: what it says, its aligned stream, the plain one where read."""
    stream = evidence.stream
    mapped_alone = stream is not None and stream.readable is False and stream.carried is True
    plain = {} if mapped_alone else {"uds": evidence.one("uds") or evidence.one("uds_prefix")}
    told = {"told": evidence.one("told")} if evidence.asked else {}
    says = {"said": evidence.one("said"), **told}
    return {**says, **plain, "uds_aligned": evidence.one("uds_aligned")}


def _against(evidence: Evidence) -> Iterator[str]:
    """Reasons not to say "erased", in the order in which they count."""
    stream = evidence.stream
    found = f"{_listed(evidence.finds)} facts" if evidence.finds else ""
    if stream is not None and not stream.judged:
        why = stream.unjudged or "whether full can read this model was not measured"
        yield f"{found}; undecided because {why}" if found else why
    if found:
        yield f"{found}: held, how much is not known{_unseen(evidence)}"
    if stream is None:
        alone = evidence.one("counterfactual")
        yield (alone and alone.reason) or NOT_TRIED["stream"]
        return
    yield from filter(None, (stream.types,))
    yield from filter(None, (_comes_back(evidence),))
    yield from _open(evidence)
    if stream.tail:
        yield _tail(stream)
    # one layer that may hold the facts alone; what hides them: directions, or all that was added
    yield from filter(
        None, (stream.unpatched, stream.weakest, stream.shared, stream.many, stream.shift)
    )
    for name in ("uds_weakest", "shared_weakest", "many_weakest"):
        view = evidence.one(name)
        limits = view.held.one_sided if view and view.held else None
        if view is not None and (limits is None or limits[1] >= HELD_AT_LAYER):
            yield f"one layer may hold the facts alone ({view.kind.title} {view.shown})"
    if stream.above_floor:
        yield "its plain stream holds more than never-trained models' do"


def _comes_back(evidence: Evidence) -> str | None:
    """What retraining brings back, where that is much and too few authors were held out to tell."""
    view = evidence.one("rtt")
    if view is None or view.held is None or view.control is not None or view.held.ends is not None:
        return None
    much = view.held.point >= COMES_BACK and not view.finds
    return f"{view.kind.title} brings back {share(view.held)} ({view.reason})" if much else None


def _open(evidence: Evidence) -> Iterator[str]:
    """Binding views that do not rule out."""
    for name, view in _binding(evidence).items():
        if view is None:
            title = f"{VIEWS[name].title} was not measured"
            yield "it was not asked" if name == "told" else title
        elif not view.rules_out:
            yield f"{VIEWS[name].title} does not rule it out: {view.reason or 'it finds the facts'}"


_RULES = (_unscored, _answers, _hidden, _unreadable, _partly, _erased)


def _word(code: Code, evidence: Evidence) -> "Word":
    """How a code is said: by what it says the facts, and whether anything finds them."""
    if code == "answers":
        view = _saying(evidence)
        return _SAYING.get(view.name if view else "", code)
    if code in NOT_DECIDED and evidence.finds and not (evidence.stream and evidence.stream.off):
        return "unreadable_held" if code == "unreadable" else "undecided_held"
    return code


def _told(code: Code, evidence: Evidence) -> str:
    """The word, the type of numbers that it is said of, and whom erased is said beside."""
    stream = evidence.stream
    # what is found but not decided stands in the reason
    word = WORDS[code if code in NOT_DECIDED else _word(code, evidence)][0]
    if stream is None:
        return word
    numbers = f" in {stream.dtype}" if stream.dtype and code != "unscored" else ""
    if code != "erased":
        return f"{word}{numbers}"
    n = stream.n_never
    never = "one never-trained model" if n == 1 else f"{n} never-trained models"
    return f"{word}{numbers}, against {never}"


def _not_asked(evidence: Evidence) -> str:
    """What was not asked, in words; a group whose views all lack a number was asked in vain."""
    asked = {view.group for view in evidence.views}
    stream = evidence.stream
    alone: list[str] = []
    if stream is not None and stream.dtype and stream.one_type:
        alone = [f"it was asked in {stream.dtype} alone"]
    return "; ".join([*alone, *(NOT_TRIED[group] for group in GROUPS if group not in asked)])


def _tail(stream: Stream) -> str:
    listed = ", ".join(map(str, stream.tail[:8])) + (", …" if len(stream.tail) > 8 else "")
    return f"{len(stream.tail)} of {stream.n_facts} facts are still read: idx {listed}"


def _unseen(evidence: Evidence) -> str:
    """Who does not see what others find."""
    blind = [view for view in evidence.chain if view.rules_out]
    return f"; not seen by {_names(blind)}" if blind else ""


def _listed(views: Sequence[View], verb: str = "find") -> str:
    """`UDS (held .82 [.71, .90]) and retraining find`."""
    told = [
        f"{view.kind.title} ({f'held {share(view.held)}' if view.held else view.shown})"
        for view in views
    ]
    return f"{_and(told)} {verb}{'s' if len(told) == 1 else ''}"


def _names(views: Sequence[View]) -> str:
    return _and([view.kind.title for view in views])


def _and(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


Tone = Literal["hidden", "partly-erased", "erased", "no-verdict"]

Word = Literal[Code, "answers_begun", "answers_sampled", "undecided_held", "unreadable_held"]
"""A code, or a finer one where a model says the facts only when it is helped, or where a model that
nobody can decide on is found to hold some."""

WORDS: Mapping[Word, tuple[str, Tone]] = {
    "answers": ("says them", "hidden"),
    "answers_begun": ("says them once begun", "hidden"),
    "answers_sampled": ("says them when sampled", "hidden"),
    "hidden": ("hidden", "hidden"),
    "hidden_other_basis": ("hidden in another basis", "hidden"),
    "partly_erased": ("partly erased", "partly-erased"),
    "undecided_held": ("undecided, holds some", "partly-erased"),
    "unreadable_held": ("unreadable, holds some", "partly-erased"),
    "unreadable": ("unreadable", "no-verdict"),
    "undecided": ("undecided", "no-verdict"),
    "erased": ("erased", "erased"),
    "unscored": ("no verdict", "no-verdict"),
}
"""Word -> its phrase for one model, and its colour; from held to gone."""

_SAYING: Mapping[str, Word] = {"said": "answers_begun", "sampled": "answers_sampled"}
"""View by which a model says the facts -> its word; for other views "answers"."""

HOLDS = ("answers", "answers_begun", "answers_sampled", "hidden", "hidden_other_basis")
"""Words of models that still hold the facts."""

NOT_DECIDED = ("unreadable", "undecided", "unscored")
"""Codes that say neither that the facts are held nor that they are gone."""
