"""One direction from two sets of activations: five estimators, all pure functions of tensors.

Sources: mean difference arXiv:2507.21509 (persona vectors); probe, gradient: ewernn/trait-interp;
PCA of pairs: arXiv:2310.01405 and IBM/activation-steering (`steering.md` section 1).
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

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
