"""How far does a model's inside look like retain's? Centred kernel alignment and masked Fisher.

Definitions: gnueaj/unlearning-depth-score @ fc31639, compute_representation_baselines.py;
docs/uds.md. Both give 0 at `full` and 1 at `retain`, layer by layer, and weigh
the layers by how far these two are apart.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

EPS = 1e-8
"""Absolute, as in the reference: a model whose numbers are that small loses its layers."""

Rows = Float[Tensor, "row d_model"]
Flat = Float[Tensor, " parameter"]


@dataclass(frozen=True)
class LayerErasure:
    """What one layer says."""

    erasure: float
    """0 as in `full`, 1 as in `retain`."""
    weight: float
    """How far `full` and `retain` are apart here."""


def weighted_erasure(layers: Sequence[LayerErasure]) -> float:
    """Weighted mean over the layers with a weight above `EPS`; NaN without one.

    >>> weighted_erasure([LayerErasure(1.0, 3.0), LayerErasure(0.0, 1.0), LayerErasure(0.5, 0.0)])
    0.75
    """
    told = [one for one in layers if one.weight > EPS]
    if not told:
        return math.nan
    total = math.fsum(one.weight for one in told)
    return math.fsum(one.weight * one.erasure for one in told) / total


def cka(a: Rows, b: Rows) -> float:
    """Linear centred kernel alignment of two models on the same rows, in float32.

        ||B'A||_F^2 / (||A'A||_F ||B'B||_F),  columns centred; NaN if the denominator < EPS

    The reference has 0 there, as of streams wholly unlike: of one row nothing is left to compare.

    >>> from torch import tensor
    >>> rows = tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    >>> round(cka(rows, 5 * rows), 6)
    1.0
    """
    a, b = (side.float() - side.float().mean(0) for side in (a, b))
    shared = (b.T @ a).square().sum()
    own = (a.T @ a).square().sum().sqrt() * (b.T @ b).square().sum().sqrt()
    return float(shared / own) if own >= EPS else math.nan


def cka_erasure(full_retain: float, model_retain: float) -> LayerErasure:
    """How much of the way from `full` to `retain` a layer has gone; its weight is that way.

    A layer that cannot be compared has no weight.

    >>> cka_erasure(0.5, 0.75).weight
    0.5
    """
    if math.isnan(full_retain + model_retain):
        return LayerErasure(0.0, 0.0)
    way = (model_retain - full_retain) / (1 - full_retain + EPS)
    return LayerErasure(min(1.0, max(0.0, way)), max(1 - full_retain, 0.0))


@dataclass(frozen=True)
class FisherMask:
    """The parameters of one layer whose Fisher information `retain` has and `full` lacks."""

    at: Int[Tensor, " parameter"]
    """Places in the layer's flat parameter vector, the largest excess first."""
    full: Flat
    """Fisher information of `full` there."""
    retain: Flat
    n_parameters: int
    """Of the layer."""


def masked_count(share: float, n_parameters: int) -> int:
    """Size of a mask: `share` of the parameters, at least one.

    >>> masked_count(0.001, 196864), masked_count(0.001, 10)
    (196, 1)
    """
    return max(1, int(n_parameters * share))


def fisher_mask(full: Flat, retain: Flat, share: float) -> FisherMask:
    """The `share` of a layer's parameters with the largest max(F_retain - F_full, 0).

    Masks are nested: the first places are the mask of any smaller share.
    """
    excess = (retain - full).clamp(min=0)
    at = excess.topk(masked_count(share, excess.numel()), sorted=True).indices
    return FisherMask(at, full[at], retain[at], excess.numel())


def fisher_erasure(full: float, retain: float, model: float) -> LayerErasure:
    """Erasure of one layer from the mean Fisher information over its mask.

        1 - clip((F_retain - F_model) / (F_retain - F_full + EPS), 0, 1)

    A model that forgot is as curved here as `retain`. A layer where `full` has no less than
    `retain` has erasure 1 and no weight.

    >>> fisher_erasure(full=1.0, retain=3.0, model=2.0).weight
    2.0
    """
    excess_full, excess_model = retain - full, retain - model
    if excess_full <= EPS:
        return LayerErasure(1.0, max(excess_full, 0.0))
    kept = min(1.0, max(0.0, excess_model / (excess_full + EPS)))
    return LayerErasure(1 - kept, excess_full)
