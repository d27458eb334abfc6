"""Two samples in one."""

import numpy as np
from numpy.typing import NDArray

from lensaudit.scores.intervals import Values


def joined(what: str, a: Values, b: Values) -> NDArray[np.float64] | None:
    """Both samples in one array, or None when either holds a NaN."""
    if not len(a) or not len(b):
        raise ValueError(f"{what}: found samples of {len(a)} and {len(b)} rows, wanted >= 1 each")
    both = np.concatenate([np.asarray(a, dtype=float), np.asarray(b, dtype=float)])
    return None if np.isnan(both).any() else both
