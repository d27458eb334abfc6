"""The sentence on facts after other facts were retrained."""

from lensaudit.results.reasons import with_reason
from lensaudit.results.sentences import STRONG, WEAK, shown
from lensaudit.scores.estimate import Estimate


def facts_retrained(found: Estimate) -> str:
    """Does retraining on other facts bring these back, beyond what a control learns?

    >>> facts_retrained(Estimate(0.5, -0.4, 1.2))
    'Undecided: (B - N) / (C - N) is 0.50 [-0.40, 1.20], which holds 0; a failed recovery is no proof of removal.'
    """  # noqa: E501
    if found.value is None:
        return f"Recovery is not scored: {found.why}."
    ratio = f"(B - N) / (C - N) is {shown(found)}"
    failed = "a failed recovery is no proof of removal"
    if found.least >= STRONG:
        said = f"Retraining on other facts brings these back: {ratio}; hidden, not removed."
    elif found.most <= WEAK:
        said = f"Retraining on other facts does not bring these back: {ratio}; {failed}."
    elif found.least <= 0:
        said = f"Undecided: {ratio}, which holds 0; {failed}."
    else:
        said = f"Retraining on other facts brings part of these back: {ratio}."
    return with_reason(said, found)
