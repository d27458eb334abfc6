"""One direction from two sets of activations, and how well it tells them apart: pure functions.

Sources: mean difference arXiv:2507.21509 (persona vectors); probe, gradient: ewernn/trait-interp;
PCA of pairs: arXiv:2310.01405 and IBM/activation-steering (`steering.md` section 1).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor

from lensaudit.scores.stats import auc
from lensaudit.steer.settings import Method

PROBE_C = 1.0
PROBE_ITERATIONS = 1000
"""trait-interp: L2 with C = 1, lbfgs, at most 1000 iterations, on row-normalised activations."""
GRADIENT_STEPS, GRADIENT_LR, GRADIENT_DECAY = 100, 0.01, 0.01
"""trait-interp: Adam on the separation of projections."""

Rows = Float[Tensor, "_ d_model"]
Vector = Float[Tensor, " d_model"]


def mean_difference(positive: Rows, negative: Rows) -> Vector:
    """Mean of the positive rows minus that of the negative ones; not normalised.

    >>> mean_difference(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    tensor([ 2., -1.])
    """
    return (positive.double().mean(0) - negative.double().mean(0)).float()


def probe(positive: Rows, negative: Rows) -> Vector:
    """Unit weight of a logistic regression on row-normalised activations; its bias is unused."""
    from sklearn.linear_model import LogisticRegression  # takes a second

    rows = torch.cat((positive, negative)).double()
    rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    labels = np.repeat([1, 0], [len(positive), len(negative)])
    fitted = LogisticRegression(C=PROBE_C, max_iter=PROBE_ITERATIONS).fit(rows.numpy(), labels)
    return _unit(torch.from_numpy(fitted.coef_[0]))


def first_component(positive: Rows, negative: Rows, *, paired: bool) -> Vector:
    """Unit first principal component; its sign is that of most pairs.

    Paired rows are centred on their pair's midpoint, so this is the main axis of the differences.
    Others are centred on the midpoint of the two means, and the means decide the sign.

    Raises:
        ValueError: paired rows of different number.
    """
    if paired and len(positive) != len(negative):
        raise ValueError(f"pca: found {len(positive)} and {len(negative)} rows, wanted pairs")
    if paired:
        votes = centred = positive.double() - negative.double()
    else:
        votes = mean_difference(positive, negative).double().unsqueeze(0)
        midpoint = (positive.double().mean(0) + negative.double().mean(0)) / 2
        centred = torch.cat((positive, negative)).double() - midpoint
    axis = torch.linalg.svd(centred, full_matrices=False).Vh[0]
    agreeing = (votes @ axis).sign().sum()
    return _unit(axis if agreeing >= 0 else -axis)


def gradient(positive: Rows, negative: Rows, *, generator: torch.Generator) -> Vector:
    """Unit vector that Adam finds for the largest distance between mean projections.

    The optimum is the mean difference; kept for comparison with trait-interp.
    """
    gap = mean_difference(positive, negative)
    vector = random_direction(len(gap), generator=generator).requires_grad_()
    optimiser = torch.optim.Adam([vector], lr=GRADIENT_LR)
    for _ in range(GRADIENT_STEPS):
        optimiser.zero_grad()
        loss = GRADIENT_DECAY * vector.norm() - gap @ (vector / vector.norm())
        loss.backward()
        optimiser.step()
    return _unit(vector.detach().double())


def random_direction(d_model: int, *, generator: torch.Generator) -> Vector:
    """A unit vector drawn evenly: the placebo of every direction."""
    return _unit(torch.randn(d_model, generator=generator, dtype=torch.float64))


def direction_of(
    method: Method, positive: Rows, negative: Rows, *, paired: bool, generator: torch.Generator
) -> Vector:
    """The direction by `method`, as long as the mean difference.

    One length for all makes a coefficient mean the same: 1 moves by the distance of the classes.

    Raises:
        ValueError: no rows on a side, or the two means are equal.
    """
    if not len(positive) or not len(negative):
        raise ValueError(f"direction: found {len(positive)} and {len(negative)} rows, wanted >= 1")
    estimators: dict[Method, Callable[[], Vector]] = {
        "mean_diff": lambda: mean_difference(positive, negative),
        "probe": lambda: probe(positive, negative),
        "pca": lambda: first_component(positive, negative, paired=paired),
        "gradient": lambda: gradient(positive, negative, generator=generator),
        "random": lambda: random_direction(positive.shape[1], generator=generator),
    }
    norm = mean_difference(positive, negative).norm()
    if not bool(norm > 0):
        raise ValueError("direction: positive and negative rows have the same mean")
    return scaled_to(estimators[method](), float(norm))


def scaled_to(vector: Vector, norm: float) -> Vector:
    """The same direction at another length."""
    return (vector.double() * (norm / vector.double().norm())).float()


def top_share(vector: Vector, n: int = 3) -> float:
    """Share of the squared length in the `n` largest entries; near 1: a few outlier dimensions.

    >>> round(top_share(torch.tensor([3.0, 1.0, 1.0, 1.0]), 1), 2)
    0.75
    """
    squares = vector.double() ** 2
    return float(squares.topk(min(n, len(squares))).values.sum() / squares.sum())


def _unit(vector: Float[Tensor, " d_model"]) -> Vector:
    return (vector / vector.norm()).float()


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
