"""Where does a score separate two pools best?"""

from dataclasses import dataclass

import numpy as np

from lensaudit.scores.intervals import Values
from lensaudit.scores.stats import joined


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
