"""What a sentence without an interval speaks of."""

from lensaudit.results.sentences import rows_only
from lensaudit.scores.estimate import Estimate


def with_reason(sentence: str, evidence: Estimate) -> str:
    """A sentence, and of what it speaks where its evidence has no interval."""
    if not evidence.why:
        return sentence
    only = rows_only(evidence.why)
    return f"{sentence} {only[0].upper()}{only[1:]}."
