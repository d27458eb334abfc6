"""The two-sample Kolmogorov-Smirnov test, with p-values too small for a float."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from lensaudit.scores.intervals import Values
from lensaudit.scores.means import SMALLEST_P
from lensaudit.scores.special import gammaln
from lensaudit.scores.stats import joined


@dataclass(frozen=True)
class KsTest:
    """Two-sample Kolmogorov-Smirnov test, two-sided."""

    statistic: float
    p_value: float
    log10_p: float
    """Finite also where `p_value` is too small for a float; two separated samples of n rows
    reach the floor 2 / C(2n, n)."""


def ks_two_sample(a: Values, b: Values) -> KsTest:
    """Two-sided two-sample KS test, exact up to 10 000 rows and asymptotic above (SciPy `auto`).

    Raises:
        ValueError: an empty sample.
    """
    from scipy.stats import ks_2samp  # half a second to import

    if joined("ks", a, b) is None:
        return KsTest(math.nan, math.nan, math.nan)
    with warnings.catch_warnings():
        # SciPy announces its own fall back to the asymptotic form when the exact one overflows
        warnings.simplefilter("ignore", RuntimeWarning)
        test: Any = ks_2samp(np.asarray(a, float), np.asarray(b, float), method="auto")
    statistic, p_value = float(test.statistic), float(test.pvalue)
    if p_value >= SMALLEST_P:
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
