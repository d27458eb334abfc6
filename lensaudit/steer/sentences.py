"""The sentence on a direction, from recoveries under it and under its controls."""

from collections.abc import Mapping
from typing import Literal

from lensaudit.results.reasons import with_reason
from lensaudit.results.sentences import STRONG, WEAK, shown
from lensaudit.scores.estimate import Estimate

NO_PROOF = "that is no proof of erasure"
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
_KNOWS_ANYWAY = (
    "Undecided: the never-trained model is not behind full, so what it knows anyway cannot be told "
    "from what was hidden."
)
"""Of a control without a value: there is no gap that the direction could close."""


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
        controls: what holds nothing of the facts' hiding: random directions, another model. One
            without a value, of a model that is not behind `full`, leaves what comes back undecided.
        general: under a direction from retain questions. It holds none of the facts, so answers
            that it brings back were there as well; but then the direction is not of these facts.

    >>> direction_edited("add", Estimate(0.28, -0.3, 0.81), {}, Estimate(0.4))
    'Undecided: recovery 0.28 [-0.30, 0.81] holds 0.'
    >>> direction_edited("ablate", Estimate(0.1, 0.05, 0.15), {})
    'Taking the direction away brings no answers; that is no proof of erasure.'
    """
    strong, weak = _EDITED[kind]
    as_well, of_others = _as_well(found, controls), _as_well(found, _named(general))
    if found.most <= WEAK:
        said = weak
    elif found.least <= 0:
        said = f"Undecided: recovery {shown(found)} holds 0."
    elif not _all_known(controls):
        said = _KNOWS_ANYWAY
    elif as_well is None and _is_strong(found, controls):
        said = strong if of_others is None else f"{strong} So does {of_others}."
    elif (less := as_well or of_others) is not None:
        said = f"Recovery {shown(found)} is not shown to be more than under {less}."
    else:
        said = f"Part of the answers comes back: {shown(found)}, more than under any control."
    return with_reason(said, found)


def component_clamped(
    necessity: Estimate,
    sufficiency: Estimate | None,
    controls: Mapping[str, Estimate],
    into_full: Mapping[str, Estimate] | None = None,
    general: Estimate | None = None,
) -> str:
    """Sentence: is one component the mechanism of the unlearning?

    >>> component_clamped(Estimate(0.9, 0.85, 0.95), Estimate(0.95, 0.9, 1.0), {})
    'This one component is the mechanism of the unlearning.'
    """
    both = f"Necessity {shown(necessity)}"
    if sufficiency is None:
        return with_reason(f"{both}; sufficiency is not scored.", necessity)
    both += f", sufficiency {shown(sufficiency)}"
    as_well = _as_well(necessity, controls) or _as_well(sufficiency, into_full or {})
    if necessity.most <= WEAK and sufficiency.least >= STRONG:
        said = "The component can hide the answers, but is not what hides them."
    elif necessity.most <= WEAK and sufficiency.most <= WEAK:
        said = "No one component: the unlearning is distributed, or the answers are erased."
    elif necessity.least <= 0 or sufficiency.least <= 0:
        said = f"Undecided: {both}; one of them may be 0."
    elif not _all_known(controls):
        said = _KNOWS_ANYWAY
    elif as_well is None and _is_strong(necessity, controls) and sufficiency.least >= STRONG:
        said = "This one component is the mechanism of the unlearning."
    elif (less := as_well or _as_well(necessity, _named(general))) is not None:
        said = f"{both}; not shown to be more than under {less}."
    else:
        said = f"{both}: part of the mechanism."
    return with_reason(said, necessity)


def _named(general: Estimate | None) -> dict[str, Estimate]:
    return {} if general is None else {"a direction from retain questions": general}


def _all_known(controls: Mapping[str, Estimate]) -> bool:
    return all(one.value is not None for one in controls.values())


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
