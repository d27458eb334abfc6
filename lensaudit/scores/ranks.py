"""Rank correlation."""

from typing import Any

from lensaudit.scores.intervals import Values
from lensaudit.scores.stats import joined


def spearman(a: Values, b: Values) -> float | None:
    """Rank correlation; None where either side is one number, or one is NaN.

    >>> spearman([1.0, 2.0, 3.0], [0.0, 5.0, 6.0])
    1.0
    """
    from scipy.stats import spearmanr  # half a second to import

    both = joined("spearman", a, b) if len(a) else None
    if both is None or min(len(set(a)), len(set(b))) < 2:
        return None
    found: Any = spearmanr(a, b)
    return float(found.statistic)
