"""How is a model read: by itself, under an edit, or its lower layers before those of `full`?"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.models.bridge import (
    TransformerBridge,
    cached_logits,
    intervening,
)
from lensaudit.types import Intervention, Resid, Tokens

Ids = Sequence[int]
Kept = Float[Tensor, "batch kept d_vocab"]
"""Logits after the last tokens of each row."""
Seen = Int[Tensor, "batch seen"] | Float[Tensor, "batch 1 pos seen"]
Rows = Int[Tensor, " batch"]
"""Which prompt each row of a batch continues."""


@dataclass(frozen=True)
class BothPasts:
    """Keys and values of two models, cut together."""

    own: Any = None
    below: Any = None

    def batch_select_indices(self, chosen: Tensor) -> None:
        """Keep these rows of the cache."""
        for one in (self.own, self.below):
            one.batch_select_indices(chosen)


@dataclass
class Reader:
    """Reads tokens and keeps their keys and values; `model` is whose logits are read.

    A model by itself, under edits of its residual stream in every step, or from a layer on fed with
    the stream of a source at every token and in every step: what it computes below that layer is
    then overwritten at all positions, so that only what the source hands over, and what the upper
    layers make of it, can be heard.
    """

    model: TransformerBridge
    edits: Callable[[Rows], Mapping[int, Intervention]] | None = None
    """Layer -> what is done to its stream, for a batch of these rows."""
    work: Counter[str] = field(default_factory=Counter)
    """What was computed: `forwards`, of a batch each, and `tokens` read in them, with padding."""
    alike: bool = False
    """The edits are the same for every row."""
    source: TransformerBridge | None = None
    layer: int = 0
    """After which the source's stream is handed over."""

    def read(
        self,
        tokens: Tokens,
        *,
        mask: Seen,
        positions: Tokens,
        past: Any,
        n_logits: int,
        rows: Rows,
    ) -> tuple[Kept, Any]:
        """Logits after the last `n_logits` tokens, and the grown past.

        Args:
            tokens: what is read next.
            mask: over all tokens so far, padding 0; or what is added to the attention scores.
            positions: of `tokens`.
            past: keys and values before them; None at the start.
            n_logits: how many positions are unembedded.
            rows: which prompt each row continues.
        """
        n_models = 1 if self.source is None else 2
        self.work["forwards"] += n_models
        self.work["tokens"] += n_models * tokens.numel()
        where = {"mask": mask, "positions": positions}
        if self.source is None:
            with intervening(self.model, self.edits(rows) if self.edits else {}):
                return cached_logits(self.model, tokens, **where, past=past, n_logits=n_logits)
        before, streams = past or BothPasts(), dict[int, Resid]()
        with intervening(self.source, {self.layer: keeping(streams, self.layer)}):
            _, below = cached_logits(self.source, tokens, **where, past=before.below, n_logits=1)
        handed = {self.layer: lambda resid: streams[self.layer].to(resid)}
        with intervening(self.model, handed):
            grown = cached_logits(self.model, tokens, **where, past=before.own, n_logits=n_logits)
        return grown[0], BothPasts(grown[1], below)


def keeping(streams: dict[int, Resid], layer: int) -> Intervention:
    """Identity intervention that records the stream of a layer."""

    def intervention(resid: Resid) -> Resid:
        streams[layer] = resid
        return resid

    return intervention


def steered(
    model: TransformerBridge,
    layer: int,
    towards: Float[Tensor, "prompt d_model"],
    work: Counter[str],
) -> Reader:
    """A model with a vector of each prompt's own added after `layer`, at every token.

    Args:
        model: who is read.
        layer: after which the stream is moved.
        towards: in the order of the prompts that the reader is given.
        work: where it is counted.
    """

    def edits(rows: Rows) -> Mapping[int, Intervention]:
        moved = towards[rows.to(towards.device)].unsqueeze(1)
        return {layer: lambda resid: resid + moved.to(resid)}

    return Reader(model, edits, work)
