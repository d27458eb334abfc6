"""How deep was the knowledge erased? Span log-probability and the Unlearning Depth Score.

Definitions: gnueaj/unlearning-depth-score (fc31639), compute_uds.py:282-350 and 840-862, with two
corrections: numbers are reduced in float32, and an example without KE layer has no score.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lensaudit.settings import TAU
from lensaudit.types import LayerDeltas, Logits, PosMask, SpanLogProb, Tokens

LabelScore = Callable[[Float[Tensor, "row d_vocab"], Int[Tensor, " row"]], Float[Tensor, " row"]]
"""A number per row of logits and its label."""


def label_logprob(
    logits: Float[Tensor, "row d_vocab"], labels: Int[Tensor, " row"]
) -> Float[Tensor, " row"]:
    """Log-probability of each row's label, nats, reduced in float32 whatever the logits' type.

    >>> label_logprob(torch.zeros(1, 4), torch.tensor([2])).exp()
    tensor([0.2500])
    """
    wide = logits.float()
    return wide.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - wide.logsumexp(-1)


def label_rank(
    logits: Float[Tensor, "row d_vocab"], labels: Int[Tensor, " row"]
) -> Int[Tensor, " row"]:
    """How many tokens are more likely than each row's label: 0 is the first choice.

    >>> label_rank(torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([2]))
    tensor([1])
    """
    return (logits > logits.gather(-1, labels.unsqueeze(-1))).sum(-1)


def mean_per_example(
    values: Float[Tensor, " row"], example: Int[Tensor, " row"], n_examples: int
) -> Float[Tensor, " batch"]:
    """Mean over the rows of each example; NaN for an example without rows.

    >>> mean_per_example(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1]), 2)
    tensor([2., 5.])
    """
    total = values.new_zeros(n_examples).index_add_(0, example, values)
    count = values.new_zeros(n_examples).index_add_(0, example, torch.ones_like(values))
    return total / count


def span_mean(
    logits: Logits, tokens: Tokens, predict_at: PosMask, label_score: LabelScore
) -> Float[Tensor, " batch"]:
    """Mean of `label_score` over the span's tokens.

    Position p scores token p + 1. NaN for an example whose `predict_at` is empty.
    """
    example, position = predict_at.nonzero(as_tuple=True)
    scores = label_score(logits[example, position], tokens[example, position + 1])
    return mean_per_example(scores, example, len(tokens))


def span_logprob(logits: Logits, tokens: Tokens, predict_at: PosMask) -> SpanLogProb:
    """Mean log-probability of the span's tokens, nats per token; see `span_mean`."""
    return span_mean(logits, tokens, predict_at, label_logprob)


@dataclass(frozen=True)
class DepthScore:
    """The score of each example, and its evidence."""

    uds: Float[Tensor, " batch"]
    """0 intact, 1 erased to the level of `retain`; NaN where no layer encodes the fact."""
    erasure: Float[Tensor, "batch layer"]
    """s2 / s1 clipped to [0, 1]; NaN outside the KE layers."""
    ke: Bool[Tensor, "batch layer"]
    """Layers that encode the knowledge: s1 > tau."""


def depth_score(s1: LayerDeltas, s2: LayerDeltas, *, tau: float = TAU) -> DepthScore:
    """Unlearning Depth Score: the s1-weighted mean erasure over the KE layers.

        UDS = sum_l s1_l * clip(s2_l / s1_l, 0, 1) / sum_l s1_l,    over {l : s1_l > tau}

    Erasure beyond `retain` is not seen: the ratio is clipped at 1.

    >>> depth_score(torch.tensor([[1.0, 3.0, 0.01]]), torch.tensor([[0.5, 9.0, 9.0]])).uds
    tensor([0.8750])
    """
    ke = s1 > tau
    erasure = (s2 / s1).clamp(0, 1).where(ke, torch.nan)
    weight = s1.where(ke, 0.0)
    weighted = (weight * erasure).where(ke, 0.0)
    uds = weighted.sum(1) / weight.sum(1)  # no KE layer: 0 / 0 = NaN, unscored
    return DepthScore(uds, erasure, ke)


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
