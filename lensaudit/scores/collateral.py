"""How much deeper is what was to be forgotten erased than what was to be kept?"""

import math
from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor

from lensaudit.scores.depth import depth_score
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_mean
from lensaudit.scores.stats import Values


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
    means = [float(np.mean(values)) for values in (first, second)]
    found = [clustered_mean(first, first_groups), clustered_mean(second, second_groups)]
    value = means[0] - means[1]
    a, b = found
    if a.ends is None or b.ends is None:
        return Estimate(value, why=a.why or b.why)
    low = value - math.hypot(means[0] - a.least, b.most - means[1])
    high = value + math.hypot(a.most - means[0], means[1] - b.least)
    return Estimate(value, max(-1.0, low), min(1.0, high))


def over_erasure(
    s1: Float[Tensor, "batch layer"], s2: Float[Tensor, "batch layer"], *, tau: float
) -> float | None:
    """What UDS clips: mean of max(0, s2 - s1), nats per token; None where nothing is scored.

    The mean over the KE layers of a row, then over the rows that have any.

    >>> import torch
    >>> over_erasure(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[3.0, 1.0, 9.0]]), tau=0.05)
    1.0
    """
    ke = depth_score(s1, s2, tau=tau).ke
    beyond = (s2 - s1).clamp(min=0).where(ke, 0.0).double()
    per_row = beyond.sum(1) / ke.sum(1)
    kept = per_row[per_row.isfinite()]
    return float(kept.mean()) if len(kept) else None
