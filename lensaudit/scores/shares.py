"""How sure is a share of counted things, or a difference of two? Exact, by Clopper and Pearson."""

import math
from typing import Any

from scipy.stats import beta, fisher_exact

from lensaudit.scores.estimate import Estimate


def share_of(k: int, n: int) -> Estimate:
    """K of n with exact 95 % limits, one-sided ones beside them (Clopper and Pearson 1934).

    >>> round(share_of(0, 10).high, 6) == round(1 - 0.025 ** (1 / 10), 6)
    True

    Raises:
        ValueError: nothing was counted.
    """
    if not 0 <= k <= n or n == 0:
        raise ValueError(f"share: {k} of {n}")
    low, high = _exact(k, n, 0.025)
    lower, upper = _exact(k, n, 0.05)
    return Estimate(k / n, low, high, n, None, lower, upper)


def _exact(k: int, n: int, tail: float) -> tuple[float, float]:
    low = 0.0 if k == 0 else float(beta.ppf(tail, k, n - k + 1))
    high = 1.0 if k == n else float(beta.ppf(1 - tail, k + 1, n - k))
    return low, high


def excess_of(own: Estimate, other: Estimate) -> Estimate:
    """Own - other, of two independent shares, from the limits of each (Newcombe 1998, method 10).

    >>> found = excess_of(share_of(5, 10), share_of(5, 10))
    >>> found.value, found.low == -found.high
    (0.0, True)
    """
    difference = own.point - other.point
    ends = [
        difference - math.hypot(own.point - low, high - other.point)
        if sign < 0
        else difference + math.hypot(high - own.point, other.point - low)
        for sign, low, high in (
            (-1, own.low, other.high),
            (1, other.low, own.high),
            (-1, own.lower, other.upper),
            (1, other.lower, own.upper),
        )
        if low is not None and high is not None
    ]
    low, high, lower, upper = (min(1.0, max(-1.0, end)) for end in ends)
    return Estimate(difference, low, high, own.n, None, lower, upper)


def chance_of_more(k: int, n: int, other_k: int, other_n: int) -> float:
    """That so many more of `n` than of `other_n` come of one rate (Fisher's exact test, one-sided).

    >>> chance_of_more(5, 5, 0, 5) < 0.01 < chance_of_more(3, 5, 2, 5)
    True
    """
    table = [[k, n - k], [other_k, other_n - other_k]]
    found: Any = fisher_exact(table, alternative="greater")  # SciPy declares a tuple
    return float(found.pvalue)
