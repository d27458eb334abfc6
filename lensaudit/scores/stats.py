"""Rank correlation, and two samples in one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lensaudit.scores.intervals import Values

ENOUGH = 99
"""Placebos from which a fact has a p-value of its own: the smallest is .01."""


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


def joined(what: str, a: Values, b: Values) -> NDArray[np.float64] | None:
    """Both samples in one array, or None when either holds a NaN."""
    if not len(a) or not len(b):
        raise ValueError(f"{what}: found samples of {len(a)} and {len(b)} rows, wanted >= 1 each")
    both = np.concatenate([np.asarray(a, dtype=float), np.asarray(b, dtype=float)])
    return None if np.isnan(both).any() else both
