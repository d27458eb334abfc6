"""What comes back over the steps of an attack, and how many bring a share of it.

    E_x = smallest c at which rho(c) >= x

by the lower confidence limit where there is one. The limits hold together over all c: each is a
one-sided limit at 1 - 0.05 / K for K readings (Bonferroni), so that the chance that *any* of them
is above its rho is at most 5 %; the first passing of K limits taken one by one would be too early.
If none passes, E_x is right-censored: more than the longest attack that has a rho.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from lensaudit.kinds.effort import EffortPoint
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import FEWEST_GROUPS, ONE_RATIO
from lensaudit.scores.recovery import Arms, recovery

Marks = NDArray[np.float64]
"""Reading by fact: 1 answered rightly, 0 not, NaN not read because the attack diverged before."""
Rate = TypeVar("Rate")
LEAST_GAP = 0.2
"""Share of facts by which `full` must be ahead of `retain` for rho to mean anything."""
MISS = 0.05
"""Chance that any lower limit of a curve is above its rho."""


def readings(
    costs: Mapping[int, Mapping[str, int]], marks: Arms[Marks], groups: Sequence[Hashable]
) -> list[EffortPoint]:
    """Points of the curve of one arm; their lower limits hold together.

    Args:
        costs: steps of the readings, from 0 -> what an attack so long takes, as `steps`, `tokens`
            and `flop`.
        marks: of every model.
        groups: the author of each fact.
    """
    level = 1 - 2 * MISS / len(costs)
    floor, found = np.mean(marks.never, axis=0), []
    for place, step in enumerate(costs):
        at = Arms(marks.source[place], marks.full[place], (floor[place],))
        shares = at.each(lambda one: None if np.isnan(one).any() else float(one.mean()))
        rho = _rho(at, shares, groups, level)
        found.append(
            EffortPoint(
                c=step,
                **costs[step],
                source=shares.source,
                full=shares.full,
                retain=shares.never[0],
                rho=rho.value,
                low=rho.low,
                reason=rho.why or "",
            )
        )
    return found


def _rho(
    marks: Arms[Marks], shares: Arms[float | None], groups: Sequence[Hashable], level: float
) -> Estimate:
    known = {"the model": shares.source, "full": shares.full, "retain": shares.never[0]}
    if lost := [name for name, one in known.items() if one is None]:
        return Estimate(None, why=f"the attack diverges on {' and '.join(lost)}")
    floor = marks.never[0]
    gap = float(marks.full.mean() - floor.mean())
    if gap < LEAST_GAP - 1e-9:  # 13/20 - 9/20 is a little less than 0.2 in floating point
        why = f"full is {gap:.2f} ahead of retain, wanted {LEAST_GAP:g}: nothing to measure by"
        return Estimate(None, why=why)
    return recovery(marks.source, marks.full, floor, groups, level=level)


def judged_by(groups: Sequence[Hashable]) -> Literal["lower limit", "estimate"]:
    """What E_x is read from: estimates alone where authors are too few for an interval."""
    return "lower limit" if len(set(groups)) >= FEWEST_GROUPS else "estimate"


def effort_at(
    curve: Sequence[EffortPoint], share: float, by: Literal["lower limit", "estimate"]
) -> tuple[int | None, bool]:
    """Steps until a curve reaches a share, E_x; and whether it is censored.

    Censored is an attack that takes more than the longest one with a rho, whose steps stand for it.
    There are no steps where no attack has a rho.
    """
    for one in curve:
        # a model that answers as full does has no spread to see: its estimate counts
        alike = one.source == one.full and one.reason.endswith(ONE_RATIO)
        value = one.rho if by == "estimate" or alike else one.low
        if value is not None and value >= share:
            return one.c, False
    last = last_read(curve)
    return last or None, last > 0


def last_read(curve: Sequence[EffortPoint]) -> int:
    """Steps of the longest attack that has a rho; 0 where none has, whatever it is before any."""
    return max((one.c for one in curve if one.rho is not None), default=0)


def chosen(runs: Mapping[Rate, Marks], half: NDArray[np.bool_]) -> Rate:
    """The rate under which most of these facts are answered rightly, on average over the attack.

    Readings are at 1, 2, 4 … steps, so a rate that recovers early is preferred. The reading before
    the attack takes no part; what was not read because an attack diverged counts as wrong. Of
    equals the first.

    >>> early, late = np.array([[0.0], [1], [1]]), np.array([[0.0], [0], [1]])
    >>> chosen({0.1: late, 0.2: early}, np.array([True]))
    0.2
    """
    return max(runs, key=lambda rate: float(np.nan_to_num(runs[rate][1:, half]).mean()))
