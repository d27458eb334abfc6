"""How much more often do rows come out of one model than of another?"""

from collections.abc import Hashable, Sequence

from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import (
    FEWEST_GROUPS,
    Values,
    clustered_mean,
    column,
    exact_excess,
    typical_size,
)


def clustered_excess(
    own: Values, others: Values, groups: Sequence[Hashable], *, unit: str = "author"
) -> Estimate:
    """Mean of own - others over rows of [0, 1] that both were asked, rows of a group being alike.

    Where every group has the same difference, as where all rows come out of one and none of the
    other, nothing is seen of the spread: the limits are then those of counts, see `exact_excess`.

    >>> found = clustered_excess([1.0] * 8, [0.0] * 8, [*range(8)])
    >>> found.value, 0.4 < found.low < found.high
    (1.0, True)

    Raises:
        ValueError: another number of labels than rows, or a value outside [0, 1].
    """
    mine, its = column(own, groups), column(others, groups)
    paired = clustered_mean(mine - its, groups, bounds=(-1.0, 1.0), unit=unit)
    if paired.ends is not None or len(set(groups)) < FEWEST_GROUPS:
        return paired
    return exact_excess(float(mine.sum()), float(its.sum()), len(mine), typical_size(groups))[0]
