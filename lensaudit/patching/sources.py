"""Where patched-in activations come from: a cache on disk, or a model that is in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.activations.store import Activations
from lensaudit.data.spans import Encoded, make_batch
from lensaudit.models.bridge import Component, TransformerBridge, check_finite, device_of, residuals
from lensaudit.patching.layout import Layout, on, packed_span
from lensaudit.patching.wavefront import CleanRun, Stack
from lensaudit.settings import LastLayer

PaddedStack = Float[Tensor, "batch layer pos *d"]


@runtime_checkable
class SourceStreams(Protocol):
    """Activations of one model, by batch."""

    def padded(self, bucket: Sequence[Encoded]) -> PaddedStack:
        """At the positions of `make_batch(bucket).tokens`; zero where nothing is patched."""
        ...

    def packed(self, bucket: Sequence[Encoded], layout: Layout) -> Stack:
        """At the positions that the sweep's rows carry."""
        ...


def as_patched(
    resid: Float[Tensor, "layer *pos d_model"],
    final_norm: Float[Tensor, "*pos d_model"],
    last_layer: LastLayer,
) -> Float[Tensor, "layer *pos d_model"]:
    """What is patched in at each layer: the residual streams, or the reference's."""
    if last_layer == "resid_post":
        return resid
    # hidden_states[-1] of transformers is the final norm's output, and the reference patches
    # it in as if it were the last block's (compute_uds.py:555-569)
    return torch.cat((resid[:-1], final_norm.unsqueeze(0)))


Layers = Sequence[int] | None
"""Some of `full`'s layers; None: all."""
Handed = Callable[[int, Layers], tuple[Int[Tensor, " pos"], Float[Tensor, "layer pos d_model"]]]
"""Of an example by idx: positions of `full`, and what is handed over there at some layers."""


@dataclass(frozen=True)
class CachedSource:
    """Streams or components of every layer read from the store: no model runs."""

    activations: Activations
    last_layer: LastLayer = "resid_post"
    n_heads: int = 0
    """Heads that lie end to end in a row of a cache of heads."""
    handed: Handed | None = None
    """What is handed over in place of the rows as they are: carried by a map, or another's."""

    def example(
        self, idx: int, layers: Layers = None
    ) -> tuple[Tensor, Float[Tensor, "layer pos d_model"]]:
        """Positions, and what is handed over there."""
        if self.handed is not None:
            return self.handed(idx, layers)
        found = self.activations.example(idx)
        resid = as_patched(found.resid, found.final_norm, self.last_layer)
        return found.positions, resid if layers is None else resid[list(layers)]

    def at_prompt_end(self, encoded: Encoded) -> Float[Tensor, "layer d_model"]:
        """Rows at the last prompt token."""
        positions, resid = self.example(encoded.idx)
        return resid[:, positions == encoded.n_prompt - 1].squeeze(1)

    def padded(self, bucket: Sequence[Encoded]) -> PaddedStack:
        """At the positions of `make_batch(bucket).tokens`; zero where nothing is cached."""
        n_pos = max(len(e.token_ids) for e in bucket)
        rows = [self.example(e.idx) for e in bucket]
        n_layers, _, d_model = rows[0][1].shape
        stack = rows[0][1].new_zeros(len(bucket), n_layers, n_pos, d_model)
        for row, (positions, resid) in zip(stack, rows, strict=True):
            row[:, positions] = resid
        return self._apart(stack)

    def packed(self, bucket: Sequence[Encoded], layout: Layout) -> Stack:
        """At the positions that the sweep's rows carry; zero where the scope replaces nothing."""
        lengths = torch.bincount(layout.span_example, minlength=len(bucket)).tolist()
        at, out = 0, torch.empty(0)
        for e, first, length in zip(bucket, layout.first.tolist(), lengths, strict=True):
            positions, resid = self.example(e.idx)
            if not at:
                out = resid.new_zeros(len(resid), len(layout.span_pos), resid.shape[-1])
            # the row's tokens are consecutive positions from `first`
            column = positions - first
            inside = (column >= 0) & (column < length)
            out[:, at + column[inside]] = resid[:, inside]
            at += length
        return self._apart(out)

    def _apart(self, rows: Tensor) -> Tensor:
        """Heads on an axis of their own, as at their hook."""
        if not self.n_heads:
            return rows
        return rearrange(rows, "... (head d_head) -> ... head d_head", head=self.n_heads)

    def clean_run(self, bucket: Sequence[Encoded], layout: Layout) -> CleanRun:
        """The unpatched run of `full`, from a cache of all positions."""
        cache = self.activations
        prefix, span = (
            torch.empty(cache.n_layers, len(pos), cache.d_model, dtype=cache.dtype)
            for pos in (layout.prefix_pos, layout.span_pos)
        )
        at_prefix = at_span = 0
        # filled example by example: of what is read, one example at a time is held twice
        for e, first in zip(bucket, layout.first.tolist(), strict=True):
            resid = cache.example(e.idx).resid
            prefix[:, at_prefix : at_prefix + first] = resid[:, :first]
            span[:, at_span : at_span + e.end - first] = resid[:, first : e.end]
            at_prefix, at_span = at_prefix + first, at_span + e.end - first
        return CleanRun(prefix, span)


@dataclass(frozen=True)
class LiveSource:
    """Activations computed when asked, from a model in memory: a component that is not cached."""

    model: TransformerBridge
    component: Component
    name: str

    def padded(self, bucket: Sequence[Encoded]) -> PaddedStack:
        """One forward pass over the whole sequences."""
        device = device_of(self.model)
        tokens = make_batch(bucket).tokens.to(device)
        stack, _ = residuals(self.model, tokens, component=self.component)
        check_finite(stack, tuple(e.idx for e in bucket), self.name)
        return stack

    def packed(self, bucket: Sequence[Encoded], layout: Layout) -> Stack:
        """One forward pass, at the positions that the rows carry."""
        stack = self.padded(bucket)
        return packed_span(stack, on(layout, stack.device))
