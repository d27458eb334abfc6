"""Means, areas, distances and thresholds: the statistics every table is made of."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

ENOUGH = 99
"""Placebos from which a fact has a p-value of its own: the smallest is .01."""
Values = Sequence[float | int] | NDArray[Any]
"""Numbers in a list, tuple or one-dimensional array."""
_SMALLEST_P = 1e-300
"""Below this the p-value of SciPy loses digits or is 0, and only `log10_p` still tells."""


@dataclass(frozen=True)
class KsTest:
    """Two-sample Kolmogorov-Smirnov test, two-sided."""

    statistic: float
    p_value: float
    log10_p: float
    """Finite also where `p_value` is too small for a float; two separated samples of n rows
    reach the floor 2 / C(2n, n)."""


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
    if min(terms) < _SMALLEST_P:  # 1 / v overflows
        return 0.0
    return len(terms) / sum(1 / term for term in terms)


def auc(knows: Values, forgot: Values) -> float:
    """P(knows > forgot) + P(knows = forgot) / 2 over all pairs; NaN if any score is NaN.

    >>> auc([3.0, 2.0], [1.0, 2.0])
    0.875

    Raises:
        ValueError: an empty pool.
    """
    from scipy.stats import rankdata  # half a second to import

    scores = _joined("auc", knows, forgot)
    if scores is None:
        return math.nan
    n_knows, n_forgot = len(knows), len(forgot)
    rank_sum = float(rankdata(scores)[:n_knows].sum())
    return (rank_sum - n_knows * (n_knows + 1) / 2) / (n_knows * n_forgot)


def spearman(a: Values, b: Values) -> float | None:
    """Rank correlation; None where either side is one number, or one is NaN.

    >>> spearman([1.0, 2.0, 3.0], [0.0, 5.0, 6.0])
    1.0
    """
    from scipy.stats import spearmanr  # half a second to import

    both = _joined("spearman", a, b) if len(a) else None
    if both is None or min(len(set(a)), len(set(b))) < 2:
        return None
    found: Any = spearmanr(a, b)
    return float(found.statistic)


def ks_two_sample(a: Values, b: Values) -> KsTest:
    """Two-sided two-sample KS test, exact up to 10 000 rows and asymptotic above (SciPy `auto`).

    Raises:
        ValueError: an empty sample.
    """
    from scipy.stats import ks_2samp  # half a second to import

    if _joined("ks", a, b) is None:
        return KsTest(math.nan, math.nan, math.nan)
    with warnings.catch_warnings():
        # SciPy announces its own fall back to the asymptotic form when the exact one overflows
        warnings.simplefilter("ignore", RuntimeWarning)
        test: Any = ks_2samp(np.asarray(a, float), np.asarray(b, float), method="auto")
    statistic, p_value = float(test.statistic), float(test.pvalue)
    if p_value >= _SMALLEST_P:
        return KsTest(statistic, p_value, math.log10(p_value))
    return KsTest(statistic, p_value, _log_tail(statistic, len(a), len(b)) / math.log(10))


def _log_tail(statistic: float, n_a: int, n_b: int) -> float:
    """Natural log of P(D >= statistic) far out in the tail, where it is its own leading term.

    Equal sizes: 2 C(2n, n - h) / C(2n, n) with h = n D (reflection principle; Gnedenko and
    Korolyuk 1951). Separated samples: 2 / C(n_a + n_b, n_a). Else 2 exp(-2 D^2 n_a n_b / (n_a +
    n_b)) (Smirnov 1939).
    """
    all_paths = _log_binomial(n_a + n_b, n_a)
    if statistic >= 1:
        return math.log(2) - all_paths
    if n_a == n_b:
        steps = round(n_a * statistic)
        return math.log(2) + _log_binomial(2 * n_a, n_a - steps) - all_paths
    return math.log(2) - 2 * statistic**2 * n_a * n_b / (n_a + n_b)


def _log_binomial(n: int, k: int) -> float:
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def _joined(what: str, a: Values, b: Values) -> NDArray[np.float64] | None:
    """Both samples in one array, or None when either holds a NaN."""
    if not len(a) or not len(b):
        raise ValueError(f"{what}: found samples of {len(a)} and {len(b)} rows, wanted >= 1 each")
    both = np.concatenate([np.asarray(a, dtype=float), np.asarray(b, dtype=float)])
    return None if np.isnan(both).any() else both


@dataclass(frozen=True)
class Threshold:
    """Where two pools are told apart best."""

    at: float
    accuracy: float
    """Share of members on their own side: `knows` at or above, `forgot` below."""


def best_threshold(knows: Values, forgot: Values) -> Threshold | None:
    """The lowest midpoint of consecutive distinct scores with the highest accuracy.

    None where all scores are one number, or one is NaN.

    >>> best_threshold([0.5, 0.9], [0.1, 0.7])
    Threshold(at=0.3, accuracy=0.75)

    Raises:
        ValueError: an empty pool.
    """
    both = _joined("threshold", knows, forgot)
    if both is None:
        return None
    distinct = np.unique(both)
    if len(distinct) < 2:
        return None
    midpoints = (distinct[:-1] + distinct[1:]) / 2
    above, below = both[: len(knows), None] >= midpoints, both[len(knows) :, None] < midpoints
    right = above.sum(0) + below.sum(0)  # whole numbers: equal accuracies compare equal
    best = int(right.argmax())
    return Threshold(float(midpoints[best]), float(right[best] / len(both)))
