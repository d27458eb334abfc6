"""Two pools of models: how sure is the AUC between them, and where are they told apart best?"""

import math
from dataclasses import dataclass

import numpy as np

from lensaudit.scores.stats import Interval, Values, auc


def auc_interval(
    knows: Values,
    forgot: Values,
    *,
    n_resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile interval of the AUC when the members of each pool are drawn again.

    Pools keep their sizes. Separated pools have nothing to vary: both ends are then the AUC,
    which says how few members there are, not that the AUC is known. NaN if any score is NaN.

    Raises:
        ValueError: an empty pool, or an option out of range.
    """
    if n_resamples < 1 or not 0 < level < 1:
        raise ValueError("bootstrap: wanted n_resamples >= 1 and 0 < level < 1")
    if math.isnan(auc(knows, forgot)):
        return Interval(math.nan, math.nan)
    rows, columns = np.asarray(knows, float)[:, None], np.asarray(forgot, float)[None, :]
    wins = (rows > columns) + (rows == columns) / 2
    rng = np.random.default_rng(seed)
    drawn = [rng.multinomial(n, np.full(n, 1 / n), size=n_resamples) / n for n in wins.shape]
    areas = ((drawn[0] @ wins) * drawn[1]).sum(1)
    low, high = np.quantile(areas, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


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
    if math.isnan(auc(knows, forgot)):
        return None
    both = np.concatenate([np.asarray(knows, float), np.asarray(forgot, float)])
    distinct = np.unique(both)
    if len(distinct) < 2:
        return None
    midpoints = (distinct[:-1] + distinct[1:]) / 2
    above = (np.asarray(knows, float)[:, None] >= midpoints).sum(0)
    below = (np.asarray(forgot, float)[:, None] < midpoints).sum(0)
    right = above + below  # whole numbers: equal accuracies compare equal
    best = int(right.argmax())
    return Threshold(float(midpoints[best]), float(right[best] / len(both)))
