"""How much more often do rows come out of one model than of another?"""

from collections.abc import Hashable, Sequence

from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import (
    FEWEST_GROUPS,
    Values,
    column,
    difference_of,
    exact_excess,
    typical_size,
)


def clustered_excess(own: Values, others: Values, groups: Sequence[Hashable]) -> Estimate:
    """Mean of own - others over rows of [0, 1] that both were asked, rows of a group being alike.

    The limits are those of `difference_of`, which takes the two models for independent: where the
    same rows come out of both, they are wide. A t interval of the differences would be narrower
    than it may be: most rows sit on an end of the scale, and one that comes out of a model that
    gave none would lower the upper limit. Where no group differs from another inside the scale,
    nothing is seen of the spread, and they are those of counts, see `exact_excess`.

    >>> found = clustered_excess([1.0] * 8, [0.0] * 8, [*range(8)])
    >>> found.value, 0.4 < found.low < found.high
    (1.0, True)

    Raises:
        ValueError: another number of labels than rows, or a value outside [0, 1].
    """
    found = difference_of(own, groups, others, groups)
    if found.ends is not None or len(set(groups)) < FEWEST_GROUPS:
        return found
    mine, its = column(own, groups), column(others, groups)
    return exact_excess(float(mine.sum()), float(its.sum()), len(mine), typical_size(groups))[0]
