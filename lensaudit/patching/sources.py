"""Where patched-in activations come from: a cache on disk.

It may be `full`'s own stream on another fact of the set, of another subject and with as many
tokens: the anchor where no model never saw the facts. What `full` then loses is S1. A fact's own
stream loses nothing; that of a model which never saw the fact loses less than a wrong answer does;
anything that `full` cannot read loses as much. So a depth near 0 shows that the fact is there, and
no high one shows anything.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.activations.store import Activations
from lensaudit.data.facts import Fact
from lensaudit.data.neutral import other_answers
from lensaudit.data.spans import Encoded
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.patching.layout import Layout
from lensaudit.patching.score_cache import example_hash
from lensaudit.patching.wavefront import CleanRun, Stack
from lensaudit.settings import LastLayer
from lensaudit.text import digest

PaddedStack = Float[Tensor, "batch layer pos *d"]


def as_patched(
    resid: Float[Tensor, "layer *pos d_model"],
    final_norm: Float[Tensor, "*normed d_norm"],
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
        """Activations at the positions of `make_batch(bucket).tokens`; zero where not cached."""
        n_pos = max(len(e.token_ids) for e in bucket)
        rows = [self.example(e.idx) for e in bucket]
        n_layers, _, d_model = rows[0][1].shape
        stack = rows[0][1].new_zeros(len(bucket), n_layers, n_pos, d_model)
        for row, (positions, resid) in zip(stack, rows, strict=True):
            row[:, positions] = resid
        return self._apart(stack)

    def packed(self, bucket: Sequence[Encoded], layout: Layout) -> Stack:
        """Activations at the positions of the sweep's rows; zero where nothing is replaced."""
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


NO_OTHER = "no other fact has an answer of as many tokens"
Given = Mapping[int, tuple[int, Mapping[int, int]]]
"""Row -> the other, and for each position of the row the other's that it is given."""


@dataclass(frozen=True)
class Others:
    """For each row, another row that replaces it; rows without one are left out."""

    weights: str
    """Of `full`."""
    rows: tuple[Encoded, ...]
    """Those that have another."""
    given: Given

    @cached_property
    def key(self) -> str:
        """What decides what is handed over: the weights, and which row stands for which."""
        by_idx = {e.idx: example_hash(e) for e in self.rows}
        told = [[by_idx[a], by_idx[b], sorted(at.items())] for a, (b, at) in self.given.items()]
        return f"{self.weights} on {digest(told)}"

    def of(self, own: CachedSource) -> CachedSource:
        """`full`'s own stream on another row; of a row that has no other nothing is handed over."""

        def handed(idx: int, layers: Layers) -> tuple[Tensor, Float[Tensor, "layer pos d_model"]]:
            other, at = self.given.get(idx, (idx, {}))
            resid = own.example(other, layers)[1]
            return torch.tensor(list(at), dtype=torch.long), resid[:, list(at.values())]

        return replace(own, handed=handed)


def others_of(full: Checkpoint, rows: Sequence[Encoded], facts: Iterable[Fact]) -> Others:
    """The rows that stand for each other: of another author, with another entity, asked alike.

    At every position that any scope replaces. Rows that have no other are left out.
    """
    texts = {one.idx: one for one in facts}
    # rows whose span follows the prompt at once have one position less to hand over
    lengths = [(e.n_span, e.start == e.n_prompt - 1) for e in rows]
    found = zip(rows, other_answers([texts[e.idx] for e in rows], lengths), strict=True)
    given = {e.idx: (rows[at].idx, places(e, rows[at])) for e, at in found if at is not None}
    return Others(full.weights, tuple(e for e in rows if e.idx in given), given)


def next_rows(full: Checkpoint, rows: Sequence[Encoded], *, whole: bool = False) -> Others:
    """For each row, the next row of another group, if there is one: a stream that does not fit.

    The k-th position that is read is given what the other row has at its k-th, around again where
    that one is shorter.

    Args:
        full: whose stream it is.
        rows: a list that is turned by groups.
        whole: every position up to the span's end is read, not the span's alone.
    """
    order, given = sorted(rows, key=lambda e: (str(e.group), e.idx)), {}
    read = {e.idx: range(e.end) if whole else e.read_positions for e in rows}
    for at, e in enumerate(order):
        after = [*order[at + 1 :], *order[:at], e]
        other = next((o for o in after if o.group != e.group), after[0])
        own, away = read[e.idx], read[other.idx]
        given[e.idx] = other.idx, {pos: away[k % len(away)] for k, pos in enumerate(own)}
    return Others(full.weights, tuple(rows), given)


def places(row: Encoded, other: Encoded) -> dict[int, int]:
    """Position of a row -> that of another with as many scored tokens.

    Spans and ends of the prompt lie on each other, and what is before them as far as both go;
    where the other is shorter it comes around again. The first position, a sink, is given the
    first.
    """
    off, around = other.end - row.end, max(1, other.end - 1)
    found = {at: 1 + (at + off - 1) % around if at else 0 for at in range(row.end)}
    return found | {row.n_prompt - 1: other.n_prompt - 1}
