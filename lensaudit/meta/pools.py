"""How sure is an area over two pools of models, of which one scatters more?"""

import math

import numpy as np

from lensaudit.scores.areas import area_limits, hanley_mcneil
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import FEWEST_GROUPS, Values
from lensaudit.scores.pools import auc_limits
from lensaudit.scores.separation import auc


def pool_limits(knows: Values, forgot: Values) -> Estimate:
    """AUC of two pools with its limits, each model being independent.

    Newcombe's limits assume that both pools scatter alike, which too few models cannot show (see
    `alike`). Else the variance of the area is that of DeLong et al. (1988, doi:10.2307/2531595):

        v = var(share of `forgot` that a model beats) / n_knows + the same of `forgot` / n_forgot

    Where v is larger than Hanley and McNeil's at the estimated area, the pools count as so many
    times fewer models. Student's quantile has the degrees of freedom of v (Satterthwaite 1946).

    Raises:
        ValueError: an empty pool.
    """
    area, (n_knows, n_forgot) = auc(knows, forgot), (len(knows), len(forgot))
    if math.isnan(area) or not 0 < area < 1 or alike(n_knows, n_forgot):
        return auc_limits(knows, forgot)
    beats = [auc([one], forgot) for one in knows], [auc(knows, [one]) for one in forgot]
    parts = np.array([np.var(one, ddof=1) / len(one) for one in beats])
    if not parts.any():  # all values are equal
        return auc_limits(knows, forgot)
    fewer = max(1.0, float(parts.sum()) / hanley_mcneil(area, n_knows, n_forgot))
    freedom = parts.sum() ** 2 / (parts**2 / (n_knows - 1, n_forgot - 1)).sum()
    return area_limits(area, n_knows / fewer, n_forgot / fewer, df=float(freedom))


def alike(n_knows: int, n_forgot: int) -> bool:
    """Whether limits for so few models rest on pools that scatter alike."""
    return min(n_knows, n_forgot) < FEWEST_GROUPS
