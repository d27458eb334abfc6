"""Two pools of models: where are they told apart best?"""

import math
from dataclasses import dataclass

import numpy as np

from lensaudit.scores.stats import Values, auc


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
