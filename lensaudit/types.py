"""The shape vocabulary: axis names are fixed for the whole package."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Tokens = Int[Tensor, "batch pos"]
PosMask = Bool[Tensor, "batch pos"]
Resid = Float[Tensor, "batch pos d_model"]
Logits = Float[Tensor, "batch pos d_vocab"]
SpanLogProb = Float[Tensor, " batch"]
"""Mean log-probability of the span's tokens, nats per token."""
LayerDeltas = Float[Tensor, "batch layer"]
"""Baseline minus patched span log-prob per layer, nats per token; positive = knowledge lost."""
Intervention = Callable[[Resid], Resid]
"""A pure edit of one layer's residual stream."""


M = TypeVar("M", bound="Movable")


class Movable:
    """A frozen record with tensors, and with records that have some."""

    def to(self: M, device: torch.device | str) -> M:
        """The record on another device."""
        own: Any = self
        return replace(own, **{k: v.to(device) for k, v in vars(own).items() if hasattr(v, "to")})


def padded_rows(
    rows: Sequence[Sequence[int]], *, side: Literal["left", "right"] = "right", pad: int = 0
) -> tuple[Tokens, PosMask]:
    """Token ids of several texts as one tensor, and which of them are real."""
    ids = [torch.tensor(list(row), dtype=torch.long) for row in rows]
    real = [torch.ones_like(one, dtype=torch.bool) for one in ids]
    tokens = pad_sequence(ids, batch_first=True, padding_value=pad, padding_side=side)
    return tokens, pad_sequence(real, batch_first=True, padding_side=side)
