"""How sure is a mean, a difference, a ratio, an area or a share, when rows come in groups?

Rows of one author are alike, so what counts is the number of authors. The variance is that of
CR2 (Bell and McCaffrey 2002; arXiv:1601.01981), exact under independence, with Satterthwaite's
degrees of freedom under whole-author correlation. A mean of values in [0, 1] gets a score interval
(Wilson 1927) in place of mean +- t * s: it does not collapse where nearly all rows sit on an end
of the scale. Measured coverage: `benchmarks/coverage.md`. A share of counted things has the exact
limits of Clopper and Pearson (1934).
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lensaudit.scores.estimate import NO_ROWS, Ends, Estimate
from lensaudit.scores.special import betaincinv, stdtrit

Values = Sequence[float | int] | NDArray[Any]
"""Numbers in a list, tuple or one-dimensional array."""
FEWEST_GROUPS = 5
"""Below this no interval is given: measured coverage of any of them is no promise."""
END_CORRELATION = 0.2
"""Least correlation within an author that is assumed of rows on an end of the scale: where all
rows read 0 nothing can be seen of it."""
ALIKE = "every {} has the same mean: no interval"
TINY = 1e-9
_DIGITS = 6
"""Of a row, as a share of its scale, before anything is counted of it: float32 has seven."""
_ROUNDING = 10**-_DIGITS
"""How far past an end of its scale a mean of float32 numbers may come to lie."""


@dataclass(frozen=True)
class _Moments:
    """Mean, CR2 variance and degrees of freedom of column means; groups as vectors."""

    mean: NDArray[np.float64]
    cov: NDArray[np.float64]
    df: float
    n: int
    typical: float
    """Rows of the group that a row is of, in the mean."""


ONE_RATIO = "has the same ratio: no interval"
"""Of every group: no spread is seen, where a divisor that may be 0 tells nothing."""


def clustered_mean(
    values: Values,
    groups: Sequence[Hashable],
    *,
    bounds: tuple[float, float] | None = (0.0, 1.0),
    weights: Values | None = None,
    unit: str = "author",
) -> Estimate:
    """Mean over rows with its two-sided and one-sided 95 % limits, rows of a group being alike.

    Args:
        values: one number per row; of none there is no mean.
        groups: label of each row's group.
        bounds: ends of the scale. One that begins at 0 has the score interval; a scale of
            differences, such as (-1, 1), cuts the t interval; None leaves it as it is.
        weights: what a row counts for, where parts of different size count alike; None: all one.
            They are fixed, and are no spread: what varies is weight * (row - mean), and the rows
            are worth (sum of weights)^2 / (sum of their squares) (Kish 1965, section 11.7).
        unit: what a group is called where there is no interval.

    Raises:
        ValueError: another number of labels than rows, or a value outside the bounds.
    """
    rows = column(values, groups)
    if not len(rows):
        return NO_ROWS
    if bounds is not None:
        slack = _ROUNDING * (bounds[1] - bounds[0])
        if np.nanmin(rows) < bounds[0] - slack or np.nanmax(rows) > bounds[1] + slack:
            raise ValueError(f"interval: found values outside {bounds}")
        rows = rows.clip(*bounds)
    weight = np.ones(len(rows)) if weights is None else column(weights, groups)
    weight, n = weight / weight.mean(), len(rows)
    value, rows = _mean(rows, weight), _resolved(rows, bounds)
    top = bounds[1] if bounds is not None and bounds[0] == 0 else None
    mean = _mean(rows, weight)
    linear = rows if weights is None else mean + weight * (rows - mean)
    found = moments((linear / (top or 1.0))[:, None], groups, unit)
    if isinstance(found, str):
        return Estimate(value, n=n, why=found)
    ends = []
    for level in (0.95, 0.9):  # the 90 % interval ends at the one-sided limits
        quantile = float(stdtrit(found.df, (1 + level) / 2))
        if top is not None:
            limits = _score_interval(rows / top, weight, found, quantile)
            pair = limits and (limits[0] * top, limits[1] * top)
        else:
            # mean +- quantile * standard error
            half, at = quantile * math.sqrt(float(found.cov[0, 0])), float(found.mean[0])
            least, most = bounds or (-math.inf, math.inf)
            some = half > TINY * (1.0 if bounds is None else most - least)
            pair = (max(at - half, least), min(at + half, most)) if some else None
        # the mean itself is not rounded
        ends.append(pair and (min(pair[0], value), max(pair[1], value)))
    if ends[0] is None or ends[1] is None:
        return Estimate(value, n=n, why=ALIKE.format(unit))
    return Estimate.within(value, ends[0], ends[1], n=n)


def _mean(rows: NDArray[np.float64], weight: NDArray[np.float64]) -> float:
    """Weighted mean, of equal rows exactly what each of them is."""
    return float(rows[0] if (rows == rows[0]).all() else (weight * rows).mean())


def _resolved(rows: NDArray[np.float64], bounds: tuple[float, float] | None) -> NDArray[np.float64]:
    """Rows of a scale without what no float32 sum can tell from rounding: it is no spread."""
    scale = 1.0 if bounds is None else bounds[1] - bounds[0]
    return rows if bounds is None else (rows / scale).round(_DIGITS) * scale


def clustered_ratio(
    numerators: Values,
    denominators: Values,
    groups: Sequence[Hashable],
    *,
    level: float = 0.95,
    unit: str = "author",
) -> Estimate:
    """Mean(numerators) / mean(denominators), and the ratios that a test does not reject.

    A ratio r is in it when the t interval of the mean of `numerator - r * denominator` holds 0
    (Fieller 1954), so nothing is assumed of the ratio's own distribution. Where every group has the
    same ratio nothing is seen of its spread, and there is none.

    Raises:
        ValueError: another number of labels than rows.
    """
    columns = np.stack([column(numerators, groups), column(denominators, groups)], axis=1)
    if not len(columns):
        return NO_ROWS
    found, n = moments(columns, groups, unit), len(columns)
    sums = columns.sum(0)
    value = float(sums[0] / sums[1]) if sums[1] else None
    if isinstance(found, str):
        return Estimate(value, n=n, why=found)
    square = float(stdtrit(found.df, (1 + level) / 2)) ** 2
    (top, bottom), cov = found.mean, found.cov
    # (top - r bottom)^2 <= t^2 var(top - r bottom), a quadratic in r
    second = bottom**2 - square * cov[1, 1]
    first = top * bottom - square * cov[0, 1]
    constant = top**2 - square * cov[0, 0]
    if second <= 0:
        return Estimate(value, n=n, why="the divisor cannot be told from 0: no interval")
    root = math.sqrt(max(0.0, first**2 - second * constant))
    # the spread about the ratio itself, against what rounding leaves of equal numbers: of float64
    # here, and of the float32 sums that the rows are
    ratio = top / bottom
    own = cov[0, 0] - 2 * ratio * cov[0, 1] + ratio**2 * cov[1, 1]
    if own <= max(
        TINY * (cov[0, 0] + ratio**2 * cov[1, 1]), (_ROUNDING * bottom) ** 2 * (1 + ratio**2)
    ):
        return Estimate(value, n=n, why=f"every {unit} {ONE_RATIO}")
    return Estimate(value, float((first - root) / second), float((first + root) / second), n)


def difference_of(
    first: Values,
    first_groups: Sequence[Hashable],
    second: Values,
    second_groups: Sequence[Hashable],
) -> Estimate:
    """mean(first) - mean(second) of values in [0, 1], of one model, on rows of different authors.

    Both are means of the same model under the same patching, but on different rows, so nothing
    correlates that could be paired row by row. The interval recovers the variances of the two
    score intervals (MOVER: Newcombe 1998; Zou and Donner 2008, equation 3):

        low  = d - sqrt((a - a_low)^2 + (b_high - b)^2)
        high = d + sqrt((a_high - a)^2 + (b - b_low)^2)

    >>> groups = [0, 1, 2, 3, 4, 5]
    >>> difference_of([1.0] * 6, groups, [0.5, 0.25] * 3, groups).value
    0.625
    """
    a, b = clustered_mean(first, first_groups), clustered_mean(second, second_groups)
    return replace(excess_of(a, b), why=a.why or b.why)


def _score_interval(
    rows: NDArray[np.float64], weight: NDArray[np.float64], found: _Moments, quantile: float
) -> Ends | None:
    """The means m with (estimate - m)^2 <= q^2 spread m (1 - m) / n_effective.

    None where all rows are one number inside the scale.

    `spread` is the variance of a row in units of a coin's, at least the share of rows on an end
    of the scale; `n_effective` is what the CR2 variance leaves of n, at most what is left when
    rows on an end correlate by `END_CORRELATION` within a group.
    """
    mean, variance = float(found.mean[0]), float(found.cov[0, 0])
    at_end = float((weight * ((rows <= 0) | (rows >= 1))).mean())
    coin = mean * (1 - mean)
    spread = max(float((weight * (rows - mean) ** 2).mean()) / coin if coin > 0 else 0.0, at_end)
    if spread <= TINY**2:
        return None
    n = found.n / float((weight**2).mean())
    most = n / (1 + (found.typical - 1) * END_CORRELATION * at_end)
    n_effective = min(spread * coin / variance, most) if variance > 0 and coin > 0 else most
    widening = quantile * quantile * spread / n_effective
    centre = (mean + widening / 2) / (1 + widening)
    half = math.sqrt(widening * coin + widening * widening / 4) / (1 + widening)
    low = 0.0 if mean == 0 else max(0.0, centre - half)
    return low, 1.0 if mean == 1 else min(1.0, centre + half)


def column(values: Values, groups: Sequence[Hashable]) -> NDArray[np.float64]:
    """The values of rows as numbers.

    Raises:
        ValueError: another number of labels than rows.
    """
    rows = np.asarray(values, dtype=float)
    if len(rows) != len(groups):
        raise ValueError(f"interval: found {len(rows)} values, {len(groups)} group labels")
    return rows


def moments(columns: NDArray[np.float64], groups: Sequence[Hashable], unit: str) -> _Moments | str:
    """CR2 covariance of the column means, and its degrees of freedom; or why there is no interval.

    With residual sums s_g of group g, n_g rows of n: cov = sum s_g s_g' / (1 - n_g / n) / n^2.
    Each term is a linear form p_g of the rows; with P the sums of p_g over groups (rows of a group
    being one), df = tr(P P')^2 / |P P'|^2. P is diagonal plus rank one, so no matrix is formed.
    """
    order: dict[Hashable, int] = {}
    member = np.array([order.setdefault(group, len(order)) for group in groups])
    if len(order) < FEWEST_GROUPS:
        plural = "" if len(order) == 1 else "s"
        return f"{len(order)} {unit}{plural}: no interval"
    if not np.isfinite(columns).all():
        return "a value is not finite: no interval"
    n, sizes = len(columns), np.bincount(member)
    mean = columns.mean(0)
    residuals = np.stack([np.bincount(member, weights=one) for one in (columns - mean).T], axis=1)
    left = 1 - sizes / n
    cov = (residuals / left[:, None]).T @ residuals / n**2
    scale = 1 / (n * np.sqrt(left))
    diagonal, rank_one = (scale * sizes) ** 2, scale * sizes / n
    weighted, square = scale * sizes**2.0, float((sizes**2.0).sum())
    cross, length = float(rank_one @ weighted), float(rank_one @ rank_one)
    trace = diagonal.sum() + square * length - 2 * cross
    norm2 = (
        (diagonal**2).sum()
        + (square * length) ** 2
        + 2 * (float(weighted @ weighted) * length + cross**2)
        + 2 * square * float(diagonal @ rank_one**2)
        - 4 * float((diagonal * rank_one) @ weighted)
        - 4 * square * length * cross
    )
    return _Moments(mean, cov, float(trace**2 / norm2), n, square / n)


def share_of(k: float | int, n: float | int) -> Estimate:
    """K of n with exact 95 % limits, one-sided ones beside them (Clopper and Pearson 1934).

    Counts of rows that are worth less than one each need not be whole.

    >>> round(share_of(0, 10).high, 6) == round(1 - 0.025 ** (1 / 10), 6)
    True

    Raises:
        ValueError: nothing was counted.
    """
    if not 0 <= k <= n or n == 0:
        raise ValueError(f"share: found {k} of {n}; wanted a total above 0, and no more than it")
    # quantiles of beta distributions; `scipy.stats` takes half a second to import
    ends, one_sided = (
        (
            0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail)),
            1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - tail)),
        )
        for tail in (0.025, 0.05)
    )
    return Estimate.within(k / n, ends, one_sided, n=round(n))


def typical_size(groups: Sequence[Hashable]) -> float:
    """Rows of the group that a row is of, in the mean (Kish 1965): of equal groups what each has.

    >>> typical_size("aabb"), typical_size("aaab"), typical_size("")
    (2.0, 2.5, 0.0)
    """
    return sum(size * size for size in Counter(groups).values()) / max(1, len(groups))


def worth(n: int, typical: float | int) -> float:
    """Independent rows that `n` are worth, where a row's group has `typical` of them.

    >>> worth(56, 7), worth(56, 1)  # 56 / (1 + 6 * .2)
    (25.454545454545453, 56.0)
    """
    return n / (1 + (max(typical, 1.0) - 1) * END_CORRELATION)


def clustered_share(k: float | int, n: int, typical: float | int) -> Estimate:
    """K of n with the exact limits of the rows that n are `worth` (Korn and Graubard 1998).

    >>> found, alone = clustered_share(14, 56, typical=7), share_of(14, 56)
    >>> found.value, found.low < alone.low < alone.high < found.high
    (0.25, True)
    """
    rows = max(1.0, worth(n, typical))
    return replace(share_of(rows * (k / n), rows), value=k / n, n=n)


def excess_of(own: Estimate, other: Estimate) -> Estimate:
    """Own - other, of two independent shares or means from 0 to 1, from the limits of each.

    MOVER, see `difference_of`; of shares it is method 10 of Newcombe (1998).

    >>> found = excess_of(share_of(5, 10), share_of(5, 10))
    >>> found.value, found.low == -found.high
    (0.0, True)
    """
    difference, limits = own.point - other.point, []
    for mine, its in ((own.ends, other.ends), (own.one_sided, other.one_sided)):
        if mine and its:
            down = math.hypot(own.point - mine[0], its[1] - other.point)
            up = math.hypot(mine[1] - own.point, other.point - its[0])
            limits.append((max(-1.0, difference - down), min(1.0, difference + up)))
    return Estimate.within(difference, *(limits or [None]), n=own.n)


def exact_excess(
    k: float | int, other_k: float | int, n: int, typical: float | int
) -> tuple[Estimate, float]:
    """Share that comes out of one model less that of another, of `n` rows that both were asked.

    Counts, with exact limits (see `excess_of`), and the chance of so many more (Fisher's exact
    test). Rows of a group are alike: they count as what they are `worth`; for the chance what is
    counted is rounded to the careful side.

    >>> found, chance = exact_excess(56, 0, 56, typical=7)  # 56 / (1 + 6 * .2) = 25 rows
    >>> found.value, round(found.low, 2), chance < 1e-13
    (1.0, 0.81, True)
    >>> exact_excess(5, 1, 56, typical=1)[1] > 0.05
    True
    """
    rows = max(1.0, worth(n, typical))
    mine, its = rows * (k / n), rows * (other_k / n)
    found = excess_of(clustered_share(k, n, typical), clustered_share(other_k, n, typical))
    whole, most, least = (
        math.floor(rows + TINY),
        math.floor(mine + TINY),
        math.ceil(its - TINY),
    )
    chance = chance_of_more(min(whole, most), whole, min(whole, least), whole)
    return replace(found, value=(k - other_k) / n, n=n), chance


def chance_of_more(k: int, n: int, other_k: int, other_n: int) -> float:
    """Chance of at least `k` of `n` if both groups have one rate (Fisher's exact test, one-sided).

    >>> chance_of_more(5, 5, 0, 5) < 0.01 < chance_of_more(3, 5, 2, 5)
    True
    """
    # counted: `scipy.stats` takes half a second to import
    both = k + other_k
    ways = (math.comb(n, one) * math.comb(other_n, both - one) for one in range(k, both + 1))
    return sum(ways) / math.comb(n + other_n, both)
