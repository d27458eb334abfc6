"""Means and rank correlation: the statistics every table is made of."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

ENOUGH = 99
"""Placebos from which a fact has a p-value of its own: the smallest is .01."""
Values = Sequence[float | int] | NDArray[Any]
"""Numbers in a list, tuple or one-dimensional array."""
SMALLEST_P = 1e-300
"""Below this the p-value of SciPy loses digits or is 0, and only `log10_p` still tells."""


def mean_known(values: Iterable[float | int | None]) -> float | None:
    """Mean of the values that there are; None where there is none.

    >>> mean_known([1.0, None, 2.0]), mean_known([None])
    (1.5, None)
    """
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def harmonic_mean(values: Values, *, eps: float = 0.0) -> float:
    """Harmonic mean, n / sum 1 / (v + eps); NaN if any value is NaN.

    With `eps` 0 one zero makes the mean 0. Aggregates of the UDS result files use 1e-12 on each
    term (`lensaudit.meta.aggregate`), which gives a zero component about n * 1e-12.

    >>> harmonic_mean([1.0, 0.5, 0.5])
    0.6
    >>> harmonic_mean([1.0, 0.0])
    0.0

    Raises:
        ValueError: no values, a negative value or a negative `eps`.
    """
    if not len(values) or eps < 0:
        raise ValueError("harmonic mean: wanted at least one value and eps >= 0")
    if any(value < 0 for value in values):
        raise ValueError(f"harmonic mean: found the negative value {min(values)}, wanted >= 0")
    if any(math.isnan(value) for value in values):
        return math.nan
    terms = [float(value) + eps for value in values]
    if min(terms) < SMALLEST_P:  # 1 / v overflows
        return 0.0
    return len(terms) / sum(1 / term for term in terms)


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
