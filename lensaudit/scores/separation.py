"""How well does a score tell two pools apart? Area under the curve, and the best threshold."""

import math
from dataclasses import dataclass

import numpy as np

from lensaudit.scores.intervals import Values
from lensaudit.scores.stats import joined


def auc(knows: Values, forgot: Values) -> float:
    """P(knows > forgot) + P(knows = forgot) / 2 over all pairs; NaN if any score is NaN.

    >>> auc([3.0, 2.0], [1.0, 2.0])
    0.875

    Raises:
        ValueError: an empty pool.
    """
    scores = joined("auc", knows, forgot)
    if scores is None:
        return math.nan
    higher, lower = scores[: len(knows)], np.sort(scores[len(knows) :])
    # of each score, how many are below it, and how many are not above
    n_below, n_not_above = (np.searchsorted(lower, higher, side) for side in ("left", "right"))
    return float((n_below + n_not_above).sum()) / (2 * len(higher) * len(lower))


@dataclass(frozen=True)
class Threshold:
    """The threshold that separates two pools best."""

    at: float
    accuracy: float
    """Share of members on their own side: `knows` at or above, `forgot` below."""


def best_threshold(knows: Values, forgot: Values) -> Threshold | None:
    """The lowest midpoint of consecutive distinct scores with the highest accuracy.

    The higher of two scores where no float lies between them. None where all scores are one number,
    or one is NaN.

    >>> best_threshold([0.5, 0.9], [0.1, 0.7])
    Threshold(at=0.3, accuracy=0.75)

    Raises:
        ValueError: an empty pool.
    """
    both = joined("threshold", knows, forgot)
    if both is None or (both == both[0]).all():
        return None
    distinct = np.unique(both)
    halves = np.nan_to_num(distinct) / 2  # the sum of two scores may be beyond floats
    midpoints = halves[:-1] + halves[1:]
    midpoints = np.where(midpoints > distinct[:-1], midpoints, distinct[1:])
    above, below = both[: len(knows), None] >= midpoints, both[len(knows) :, None] < midpoints
    right = above.sum(0) + below.sum(0)  # whole numbers: equal accuracies compare equal
    best = int(right.argmax())
    return Threshold(float(midpoints[best]), float(right[best] / len(both)))
