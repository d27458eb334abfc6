"""How well does a direction tell two sets apart? Four classification scores of its projections.

They are proxies, and some 90 % correlated with each other; what a direction does is found by
steering with it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from scipy.stats import norm

from lensaudit.scores.stats import auc


@dataclass(frozen=True)
class Separation:
    """Classification scores of projections on a direction."""

    accuracy: float
    """Share on the right side of the threshold, 0 to 1."""
    auc: float
    """P(positive > negative), ties half; 0.5 is chance."""
    effect_size: float
    """Cohen's d: distance of the means in pooled standard deviations; NaN without spread."""
    overlap: float
    """Shared area of two normals of equal spread at distance d, 2 Phi(-|d| / 2): 1 the same."""


def separation(
    positive: Sequence[float], negative: Sequence[float], *, threshold: float
) -> Separation:
    """Scores of projections; `threshold` is the midpoint of the means they were estimated from.

    Overlap is that of Inman and Bradley (1989) for equal variances.

    >>> round(separation([2.0, 4.0], [0.0, 2.0], threshold=2.0).effect_size, 3)  # 2 / sqrt(2)
    1.414

    Raises:
        ValueError: a side without projections.
    """
    right = sum(value > threshold for value in positive)
    right += sum(value <= threshold for value in negative)
    effect = effect_size(positive, negative)
    return Separation(
        accuracy=right / (len(positive) + len(negative)),
        auc=auc(positive, negative),
        effect_size=effect,
        overlap=float(2 * norm.cdf(-abs(effect) / 2)),
    )


def effect_size(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Cohen's d with the pooled standard deviation (ddof 1); NaN where it is 0 or unknown."""
    n = len(positive) + len(negative) - 2
    if n < 1 or not positive or not negative:
        return math.nan
    squares = sum(((np.asarray(v) - np.mean(v)) ** 2).sum() for v in (positive, negative))
    spread = math.sqrt(squares / n)
    return float((np.mean(positive) - np.mean(negative)) / spread) if spread > 0 else math.nan


def mean_separation(folds: Sequence[Separation]) -> Separation:
    """Each score's mean over the folds that have it; NaN where none has.

    Raises:
        ValueError: no folds.
    """
    if not folds:
        raise ValueError("separation: wanted at least one fold")
    means = {}
    for name in (field.name for field in fields(Separation)):
        values = [getattr(fold, name) for fold in folds if math.isfinite(getattr(fold, name))]
        means[name] = sum(values) / len(values) if values else math.nan
    return Separation(**means)
