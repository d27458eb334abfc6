"""How well does a score tell two pools apart? Area under the curve."""

import math

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
