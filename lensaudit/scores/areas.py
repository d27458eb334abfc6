"""How sure is an area under the ROC curve, when rows come in groups?"""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import END_CORRELATION, TINY, Values, column, moments
from lensaudit.scores.separation import auc
from lensaudit.scores.special import stdtrit

A_NAN = "a score is NaN: no interval"


def area_limits(
    estimate: float,
    n_knows: float | int,
    n_forgot: float | int,
    *,
    level: float = 0.95,
    df: float = math.inf,
) -> Estimate:
    """Limits of an area for this many independent members of each pool, as `scores.pools` has them.

    `df`: degrees of freedom of Student's quantile; without end it is the normal one.

    >>> round(area_limits(1.0, 5, 5).low, 3)  # the lower root of (1 - A)^2 = z^2 var(A)
    0.643
    """
    return _newcombe(estimate, n_knows, n_forgot, float(stdtrit(df, (1 + level) / 2)))


def clustered_auc_limits(
    knows: Values,
    forgot: Values,
    knows_groups: Sequence[Hashable],
    forgot_groups: Sequence[Hashable],
    *,
    unit: str = "author",
) -> Estimate:
    """Limits where rows of a group are alike: each side counts as its effective number of rows.

    A row's placement is the share of the other side that it beats; the area is their mean
    (Obuchowski 1997, doi:10.2307/2533958). A side's size is divided by the CR2 variance of that
    mean over the variance of independent rows, if above 1; of separated pools, where neither is
    seen, by what `END_CORRELATION` within a group would make it. Student's quantile with the fewer
    degrees of freedom.

    Raises:
        ValueError: an empty pool, or another number of labels than rows.
    """
    estimate = auc(knows, forgot)
    if math.isnan(estimate):
        return Estimate(None, why=A_NAN)
    sizes, freedoms = [], []
    for own, others, groups in ((knows, forgot, knows_groups), (forgot, knows, forgot_groups)):
        # for each value, the share of the others below it, ties counting one half
        ranked = np.sort(others)
        below = np.add(*(np.searchsorted(ranked, own, side) for side in ("left", "right")))
        placed = column(below / (2 * len(others)), groups)
        found = moments(placed[:, None], groups, unit)
        if isinstance(found, str):
            return Estimate(estimate, why=found)
        alone = float(placed.var(ddof=1)) / found.n
        effect = 1 + (found.typical - 1) * END_CORRELATION
        if alone > 0:
            effect = float(found.cov[0, 0]) / alone
        sizes.append(found.n / max(1.0, effect))
        freedoms.append(found.df)
    return _newcombe(estimate, sizes[0], sizes[1], float(stdtrit(min(freedoms), 0.975)))


def least_chance(n: int, other_n: int) -> float:
    """Least p, either way round, by which two groups of these sizes can be told apart at all.

    That of complete separation, of all ways to share their members out.

    >>> least_chance(3, 3), round(least_chance(4, 4), 3)
    (0.1, 0.029)
    """
    return 2 / math.comb(n + other_n, n)


def hanley_mcneil(area: float, n_knows: int, n_forgot: int) -> float:
    """Variance of an area (Hanley and McNeil 1982, doi:10.1148/radiology.143.1.7063747).

    Both sizes are replaced by their mean where they would differ, as in `scores.pools.auc_limits`.

    >>> round(hanley_mcneil(0.5, 5, 5), 4)  # 11 / 300, that of Mann and Whitney's area of no effect
    0.0367
    """
    variance, fractions = _variance(area, n_knows, n_forgot)
    return variance / fractions


def _variance(area: Any, n_knows: float | int, n_forgot: float | int) -> tuple[Any, Any]:
    """Hanley and McNeil's variance times what its fractions are divided by, and that."""
    extra, below, above = (n_knows + n_forgot) / 2 - 1, 2 - area, 1 + area
    spread = below * above + extra * ((1 - area) * above + area * below)
    return area * (1 - area) * spread / (n_knows * n_forgot), below * above


def _newcombe(
    estimate: float, n_knows: float | int, n_forgot: float | int, quantile: float
) -> Estimate:
    """The area between both roots of Newcombe's equation."""
    area: Any = np.polynomial.Polynomial([0, 1])
    variance, fractions = _variance(area, n_knows, n_forgot)  # times these it is a quartic
    roots = ((estimate - area) ** 2 * fractions - quantile**2 * variance).roots()
    roots = roots[np.isreal(roots)].real
    # at an estimate of 0 or 1 that is a root too: the one wanted is the other
    inside = min(max(estimate, TINY), 1 - TINY)
    low = 0.0 if estimate <= 0 else float(max(roots[roots <= inside]))
    high = 1.0 if estimate >= 1 else float(min(roots[roots >= inside]))
    return Estimate(estimate, low, high)
