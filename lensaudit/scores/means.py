"""Means: of the values that there are, and harmonic ones."""

import math
from collections.abc import Iterable

from lensaudit.scores.intervals import Values

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
