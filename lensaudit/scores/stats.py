"""Means, areas, distances and intervals: the statistics every table is made of."""

import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln
from scipy.stats import binomtest, ks_2samp, rankdata

Values = Sequence[float | int] | NDArray[Any]
"""Numbers in a list, tuple or one-dimensional array."""
_SMALLEST_P = 1e-300
"""Below this the p-value of SciPy loses digits or is 0, and only `log10_p` still tells."""
_DRAWS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Interval:
    """A confidence interval; both ends NaN when the values hold a NaN."""

    low: float
    high: float


@dataclass(frozen=True)
class KsTest:
    """Two-sample Kolmogorov-Smirnov test, two-sided."""

    statistic: float
    p_value: float
    log10_p: float
    """Finite also where `p_value` is too small for a float; two separated samples of n rows
    reach the floor 2 / C(2n, n)."""
    n_a: int
    n_b: int


def harmonic_mean(values: Values, *, eps: float = 0.0) -> float:
    """Harmonic mean, n / sum 1 / (v + eps); NaN if any value is NaN.

    With `eps` 0 one zero makes the mean 0. Aggregates of the UDS result files use 1e-12 on each
    term (`meta_evaluation.md` section 1), which gives a zero component about n * 1e-12.

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
    scores = _joined("auc", knows, forgot)
    if scores is None:
        return math.nan
    n_knows, n_forgot = len(knows), len(forgot)
    rank_sum = float(rankdata(scores)[:n_knows].sum())
    return (rank_sum - n_knows * (n_knows + 1) / 2) / (n_knows * n_forgot)


def ks_two_sample(a: Values, b: Values) -> KsTest:
    """Two-sided two-sample KS test, exact up to 10 000 rows and asymptotic above (SciPy `auto`).

    Raises:
        ValueError: an empty sample.
    """
    n_a, n_b = len(a), len(b)
    if _joined("ks", a, b) is None:
        return KsTest(math.nan, math.nan, math.nan, n_a, n_b)
    with warnings.catch_warnings():
        # SciPy announces its own fall back to the asymptotic form when the exact one overflows
        warnings.simplefilter("ignore", RuntimeWarning)
        test: Any = ks_2samp(np.asarray(a, float), np.asarray(b, float), method="auto")
    statistic, p_value = float(test.statistic), float(test.pvalue)
    if p_value >= _SMALLEST_P:
        return KsTest(statistic, p_value, math.log10(p_value), n_a, n_b)
    return KsTest(statistic, p_value, _log_tail(statistic, n_a, n_b) / math.log(10), n_a, n_b)


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


def clustered_bootstrap(
    values: Values,
    clusters: Sequence[Hashable],
    *,
    n_resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile interval of the mean over rows when whole clusters (authors) are drawn again.

    Each resample draws as many clusters as there are, with replacement, and averages all their
    rows; a large cluster weighs as much as it has rows. A single cluster has nothing to vary:
    the interval is then the mean itself, twice. NaN if any value is NaN.

    Raises:
        ValueError: no values, another number of clusters than values, or an option out of range.
    """
    if not len(values) or len(values) != len(clusters):
        raise ValueError(f"bootstrap: found {len(values)} values, {len(clusters)} cluster labels")
    if n_resamples < 1 or not 0 < level < 1:
        raise ValueError("bootstrap: wanted n_resamples >= 1 and 0 < level < 1")
    rows = np.asarray(values, dtype=float)
    if np.isnan(rows).any():
        return Interval(math.nan, math.nan)
    order: dict[Hashable, int] = {}
    member = np.array([order.setdefault(cluster, len(order)) for cluster in clusters])
    sums = np.bincount(member, weights=rows).astype(float)
    sizes = np.bincount(member)
    means = _resampled_means(sums, sizes, n_resamples, np.random.default_rng(seed))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def clustered_bootstrap_of(
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    columns: NDArray[Any],
    clusters: Sequence[Hashable],
    *,
    n_resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile interval of a function of several means, such as a ratio, by whole clusters.

    Every resample draws the same clusters for all columns, so that what is paired stays paired.

    Args:
        statistic: resample by column means -> one number per resample; NaN where it is undefined.
        columns: row by column.
        clusters: label of each row.
        n_resamples: resamples drawn.
        level: of confidence.
        seed: of the draws.

    Returns:
        Both ends NaN when a value or the statistic of any resample is NaN.

    Raises:
        ValueError: no rows, another number of labels than rows, or an option out of range.
    """
    if columns.ndim != 2 or not len(columns) or len(columns) != len(clusters):
        raise ValueError(f"bootstrap: found {columns.shape} values, {len(clusters)} cluster labels")
    if n_resamples < 1 or not 0 < level < 1:
        raise ValueError("bootstrap: wanted n_resamples >= 1 and 0 < level < 1")
    order: dict[Hashable, int] = {}
    member = np.array([order.setdefault(cluster, len(order)) for cluster in clusters])
    sizes = np.bincount(member)
    means = [
        _resampled_means(
            np.bincount(member, weights=column).astype(float),
            sizes,
            n_resamples,
            np.random.default_rng(seed),
        )
        for column in columns.astype(float).T
    ]
    values = statistic(np.stack(means, axis=1))
    if np.isnan(values).any():
        return Interval(math.nan, math.nan)
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def _resampled_means(
    sums: NDArray[np.float64], sizes: NDArray[np.int64], n_resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Mean over rows of each resample; drawn in parts so that memory stays bounded."""
    part = max(1, _DRAWS_AT_ONCE // len(sums))
    means = []
    for start in range(0, n_resamples, part):
        shape = (min(part, n_resamples - start), len(sums))
        drawn = rng.integers(len(sums), size=shape)
        means.append(sums[drawn].sum(1) / sizes[drawn].sum(1))
    return np.concatenate(means)


def wilson(k: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion of `k` in `n` (1927).

    Raises:
        ValueError: n = 0, or k outside 0..n.
    """
    if n < 1:
        raise ValueError("wilson: wanted n >= 1")
    interval = binomtest(k, n).proportion_ci(level, method="wilson")
    return Interval(float(interval.low), float(interval.high))


def _joined(what: str, a: Values, b: Values) -> NDArray[np.float64] | None:
    """Both samples in one array, or None when either holds a NaN."""
    if not len(a) or not len(b):
        raise ValueError(f"{what}: found samples of {len(a)} and {len(b)} rows, wanted >= 1 each")
    both = np.concatenate([np.asarray(a, dtype=float), np.asarray(b, dtype=float)])
    return None if np.isnan(both).any() else both
