"""Do two columns of numbers rise together?"""

from collections.abc import Sequence

import numpy as np

FEWEST = 3
"""Below this there is none: a correlation of two points is 1 or -1 whatever they are."""


def pearson(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's r; None below three points, or where a column does not vary.

    >>> pearson([0.0, 1.0, 2.0], [10.0, 20.0, 30.0]), pearson([0.0, 1.0, 2.0], [1.0, 1.0, 1.0])
    (1.0, None)
    """
    if not varied(first, second):
        return None
    return round(float(np.corrcoef(first, second)[0, 1]), 12)


def varied(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether there are points enough, and both columns vary."""
    return len(first) >= FEWEST and len({*first}) > 1 and len({*second}) > 1
