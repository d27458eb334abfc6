"""Which sentence may be said of a finding, and when may none?

One function a finding, from its evidence to the sentence. An interval decides, and every control:
what holds 0, or what a control does as well, is said to do so. Without an interval (too few
authors) the point stands in for both limits, and the sentence says of what it speaks. What is said
of a model stands in `lensaudit.verdict`.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from lensaudit.scores.estimate import Estimate

STRONG, WEAK = 0.8, 0.2
"""Share of a gap read as all of it, and as none of it."""
TAUGHT = 0.1
"""Share by which the loss of the taught rows must fall, or the attack did next to nothing."""
NO_PROOF = "that is no proof of erasure"
_FEWEST_LABELS = 4


def rows_only(why: str) -> str:
    """What stands where an interval would, in every sentence that has none.

    >>> rows_only("3 authors: no interval")
    '3 authors: no interval; this describes these rows only'
    """
    return f"{why}; this describes these rows only"


def by_root(reasons: Iterable[str]) -> list[tuple[str, int]]:
    """Reasons without what is of one row alone, the commonest first, and how often each stands.

    >>> by_root(["alone (genre)", "closed", "alone (prize)"])
    [('alone', 2), ('closed', 1)]
    """
    return Counter(re.sub(r" ?\(.*\)|: .*", "", one) for one in reasons).most_common()


def shown(one: Estimate, digits: int = 2) -> str:
    """A value with its limits.

    >>> shown(Estimate(0.28, -0.3, 0.81)), shown(Estimate(0.5))
    ('0.28 [-0.30, 0.81]', '0.50')
    """
    value = f"{one.point:.{digits}f}"
    if one.low is None or one.high is None:
        return value
    return f"{value} [{one.low:.{digits}f}, {one.high:.{digits}f}]"


_EDITED = {
    "add": (
        "A direction from other authors brings the answers back: hidden, not erased.",
        f"No one direction brings the answers back; {NO_PROOF}.",
    ),
    "ablate": (
        "Without the direction the answers are there: suppressed at the output.",
        f"Taking the direction away brings no answers; {NO_PROOF}.",
    ),
}
"""What is done with a direction -> what all of the recovery shows, and what none of it does."""


def direction_edited(
    kind: Literal["add", "ablate"],
    found: Estimate,
    controls: Mapping[str, Estimate],
    general: Estimate | None = None,
) -> str:
    """Does one direction, added or taken away, bring the answers back?

    Args:
        kind: whether the direction is added or taken away.
        found: recovery under the direction.
        controls: what holds nothing of the facts' hiding: random directions, another model.
        general: under a direction from retain questions. It holds none of the facts, so answers
            that it brings back were there as well; but then the direction is not of these facts.

    >>> direction_edited("add", Estimate(0.28, -0.3, 0.81), {}, Estimate(0.4))
    'Undecided: recovery 0.28 [-0.30, 0.81] holds 0.'
    >>> direction_edited("ablate", Estimate(0.1, 0.05, 0.15), {})
    'Taking the direction away brings no answers; that is no proof of erasure.'
    """
    strong, weak = _EDITED[kind]
    as_well, of_others = _as_well(found, controls), _as_well(found, _named(general))
    if as_well is None and _is_strong(found, controls):
        said = strong if of_others is None else f"{strong} So does {of_others}."
    elif found.most <= WEAK:
        said = weak
    elif found.least <= 0:
        said = f"Undecided: recovery {shown(found)} holds 0."
    elif (less := as_well or of_others) is not None:
        said = f"Recovery {shown(found)} is not shown to be more than under {less}."
    else:
        said = f"Part of the answers comes back: {shown(found)}, more than under any control."
    return _said(said, found)


def component_clamped(
    necessity: Estimate,
    sufficiency: Estimate | None,
    controls: Mapping[str, Estimate],
    into_full: Mapping[str, Estimate] | None = None,
    general: Estimate | None = None,
) -> str:
    """Is one component the mechanism of the unlearning?

    >>> component_clamped(Estimate(0.9, 0.85, 0.95), Estimate(0.95, 0.9, 1.0), {})
    'This one component is the mechanism of the unlearning.'
    """
    both = f"Necessity {shown(necessity)}"
    if sufficiency is None:
        return _said(f"{both}; sufficiency is not scored.", necessity)
    both += f", sufficiency {shown(sufficiency)}"
    as_well = _as_well(necessity, controls) or _as_well(sufficiency, into_full or {})
    if as_well is None and _is_strong(necessity, controls) and sufficiency.least >= STRONG:
        said = "This one component is the mechanism of the unlearning."
    elif necessity.most <= WEAK and sufficiency.least >= STRONG:
        said = "The component can hide the answers, but is not what hides them."
    elif necessity.most <= WEAK and sufficiency.most <= WEAK:
        said = "No one component: the unlearning is distributed, or the answers are erased."
    elif necessity.least <= 0 or sufficiency.least <= 0:
        said = f"Undecided: {both}; one of them may be 0."
    elif (less := as_well or _as_well(necessity, _named(general))) is not None:
        said = f"{both}; not shown to be more than under {less}."
    else:
        said = f"{both}: part of the mechanism."
    return _said(said, necessity)


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
    return _said(said, found)


def rows_relearned(first: float, last: float, n_steps: int) -> str | None:
    """What to know of an attack that taught nothing; None where it taught something.

    >>> rows_relearned(0.5314, 0.5241, 8)
    'The attack did next to nothing: the loss of its rows went from 0.5314 to 0.5241 over 8 steps; raise --lr or --epochs.'
    >>> rows_relearned(1.2, 0.3, 8)
    """  # noqa: E501
    if n_steps < 2 or last < (1 - TAUGHT) * first:  # of one step there is no later loss
        return None
    return (
        f"The attack did next to nothing: the loss of its rows went from {first:.4f} to "
        f"{last:.4f} over {n_steps} steps; raise --lr or --epochs."
    )


def pools_told_apart(area: Estimate) -> str | None:
    """What to know of a metric's AUC; None where it is shown to tell the pools apart.

    >>> pools_told_apart(Estimate(0.6, 0.31, 0.85))
    'not shown to tell the pools apart: the interval holds .5'
    >>> pools_told_apart(Estimate(0.9, 0.7, 0.97))
    """
    if area.least > 0.5:
        return None
    if area.most < 0.5:
        return "points the wrong way: the pool that forgot scores higher"
    return "not shown to tell the pools apart: the interval holds .5"


def labels_agreed(spearman: float | None, n: int) -> str | None:
    """What to know of a judge's rank correlation with labels; None where it is shown to agree.

    The interval is Fisher's, with the variance 1.06 / (n - 3) of ranks.

    >>> labels_agreed(0.3, 20)
    'not shown to agree with the labels: Spearman 0.30 [-0.18, 0.66] holds 0'
    >>> labels_agreed(0.8, 20)
    """
    if spearman is None or n < _FEWEST_LABELS:
        return f"not shown to agree with the labels: {n} scored"
    if abs(spearman) == 1:
        return None if spearman == 1 else "ranks the answers the other way round"
    half = 1.959964 * math.sqrt(1.06 / (n - 3))
    low, high = (math.tanh(math.atanh(spearman) + end) for end in (-half, half))
    if low > 0:
        return None
    if high < 0:
        return f"ranks the answers the other way round: Spearman {spearman:.2f}"
    rho = shown(Estimate(spearman, low, high))
    return f"not shown to agree with the labels: Spearman {rho} holds 0"


def _named(general: Estimate | None) -> dict[str, Estimate]:
    return {} if general is None else {"a direction from retain questions": general}


def _is_strong(found: Estimate, controls: Mapping[str, Estimate]) -> bool:
    """All of the gap, with the most that any control closes taken off."""
    most = max((one.point for one in controls.values()), default=0.0)
    return found.least - max(0.0, most) >= STRONG


def _as_well(found: Estimate, controls: Mapping[str, Estimate]) -> str | None:
    """The strongest control that is not clearly less: its interval reaches ours, or it is near."""
    near = {
        name: one
        for name, one in controls.items()
        if one.most >= found.least or found.point - one.point <= WEAK
    }
    name = max(near, key=lambda one: near[one].point, default=None)
    return None if name is None else f"{name} ({shown(near[name])})"


def _said(sentence: str, evidence: Estimate) -> str:
    if not evidence.why:
        return sentence
    only = rows_only(evidence.why)
    return f"{sentence} {only[0].upper()}{only[1:]}."


def by_rule(spans: Mapping[Any, int]) -> Iterator[str]:
    """How many facts nobody looked at; nothing where all were reviewed.

    >>> list(by_rule({"rule": 33, "reviewed": 22})), list(by_rule({}))
    (['33 of 55 spans by rule, not reviewed'], [])
    """
    if n := spans.get("rule"):
        yield f"{n} of {sum(spans.values())} spans by rule, not reviewed"
