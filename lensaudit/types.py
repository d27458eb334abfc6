"""The shape vocabulary: axis names are fixed for the whole package."""

from collections.abc import Callable

from jaxtyping import Bool, Float, Int
from torch import Tensor

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
