"""Layout of the sweep: where each token lies, and what it attends to.

A *row* is one example with one source patched in at one layer. It carries the tokens of its
example from the first replaced position to the last read one; tokens of all rows are packed end
to end, in the order in which the rows join; the index arrays are made once per batch, on the host.

Attention is over keys and values of the clean run, and the row's own. For it rows lie on a
rectangle [batch, rank, column], as matrix products want it: as wide as the batch's longest span and
as deep as its most rows, so batches are made of examples alike in both (`patching.budget`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lensaudit.data.spans import Encoded, Scope, patched_range
from lensaudit.models.decoder import Attention, Block, Packed, Rotary
from lensaudit.types import Movable

Index = Int[Tensor, " token"]


@dataclass(frozen=True)
class Layout(Movable):
    """Packed positions of a batch: a prefix that no patch reaches, and the span that rows carry."""

    n_examples: int
    n_pos: int
    """Longest sequence up to the last read position."""
    n_prefix: int
    """Longest prefix."""
    width: int
    """Most tokens a row carries."""
    span_example: Index
    span_pos: Index
    span_column: Index
    """Offset from the row's first token."""
    span_label: Index
    """Token id that follows each span token."""
    patched: Bool[Tensor, " token"]
    all_patched: bool
    read: Bool[Tensor, " token"]
    prefix_example: Int[Tensor, " prefix_token"]
    prefix_pos: Int[Tensor, " prefix_token"]
    first: Int[Tensor, " batch"]
    """First replaced position of each example."""


def layout_of(encoded: Sequence[Encoded], scope: Scope) -> Layout:
    """Index arrays of a batch under a patch scope."""
    ranges = [patched_range(e, scope) for e in encoded]
    first = np.array([low for low, _ in ranges])
    end = np.array([e.end for e in encoded])
    span_example, span_column = _ragged(end - first)
    span_pos = first[span_example] + span_column
    prefix_example, prefix_pos = _ragged(first)
    starts = np.array([e.start for e in encoded])[span_example]
    patched = torch.from_numpy(span_pos < np.array([high for _, high in ranges])[span_example])
    labels = [e.token_ids[low + 1 : e.end + 1] for e, low in zip(encoded, first, strict=True)]
    return Layout(
        n_examples=len(encoded),
        n_pos=int(end.max()),
        n_prefix=int(first.max()),
        width=int((end - first).max()),
        span_example=torch.from_numpy(span_example),
        span_pos=torch.from_numpy(span_pos),
        span_column=torch.from_numpy(span_column),
        span_label=torch.from_numpy(np.concatenate(labels).astype(np.int64)),
        patched=patched,
        all_patched=bool(patched.all()),
        read=torch.from_numpy(span_pos >= starts),
        prefix_example=torch.from_numpy(prefix_example),
        prefix_pos=torch.from_numpy(prefix_pos),
        first=torch.from_numpy(first),
    )


def _ragged(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Owner and offset of each element of ragged rows laid end to end.

    >>> [list(map(int, part)) for part in _ragged(np.array([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    owner = np.repeat(np.arange(len(lengths)), lengths)
    offset = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return owner, offset


@dataclass(frozen=True)
class Schedule:
    """Rows that join after each layer, as indices into the packed span."""

    joining: tuple[tuple[tuple[int, int], ...], ...]
    """Per layer: (source, number of tokens that join)."""
    span: Index
    """For every token of every row, in joining order: its place in the packed span."""
    rank: Index
    """How many rows of the same example joined before its row."""
    row: Index
    """Its row as a flat index into [source, batch, layer]."""
    read: Int[Tensor, " read"]
    """The tokens, among those of all rows, whose logits are read."""
    count: tuple[int, ...]
    """Tokens present after each layer."""
    n_rank: tuple[int, ...]
    """Most rows of one example present after each layer."""


def schedule_of(layout: Layout, joins: Bool[Tensor, "source batch layer"]) -> Schedule:
    """Order the rows marked in `joins` by the layer they join at."""
    n_sources, n_examples, n_layers = joins.shape
    layer, source, example = joins.permute(2, 0, 1).nonzero().T
    lengths = layout.span_example.bincount(minlength=n_examples)
    owner, offset = map(torch.from_numpy, _ragged(lengths[example].numpy()))
    place = (lengths.cumsum(0) - lengths)[example][owner] + offset
    # how many rows of an example join up to each one, and up to each layer
    order = torch.nn.functional.one_hot(example, n_examples).cumsum(0)
    joining = (layer * n_sources + source)[owner].bincount(minlength=n_layers * n_sources)
    by_layer = joining.view(n_layers, n_sources)
    return Schedule(
        joining=tuple(tuple(enumerate(row)) for row in by_layer.tolist()),
        span=place,
        rank=(order.gather(1, example.unsqueeze(1)).squeeze(1) - 1)[owner],
        row=((source * n_examples + example) * n_layers + layer)[owner],
        read=layout.read[place].nonzero().squeeze(1),
        count=tuple(by_layer.sum(1).cumsum(0).tolist()),
        n_rank=tuple(joins.sum(0).cumsum(1).amax(0).tolist()),
    )


Heads = Float[Tensor, "token head d_head"]


@dataclass(frozen=True)
class Rotation:
    """Rotary embedding at the positions of some packed tokens, of a head or of its first part."""

    cos: Float[Tensor, "token 1 d_turned"]
    sin: Float[Tensor, "token 1 d_turned"]
    """Negated at the first of each pair: what is added is then the head with its pairs swapped."""
    neighbours: bool = False
    """Pairs are neighbours, as in Cohere; else each has one value in either half, as in Llama."""

    @staticmethod
    def at(
        cos: Float[Tensor, "pos d_turned"],
        sin: Float[Tensor, "pos d_turned"],
        pos,
        *,
        neighbours: bool = False,
    ) -> "Rotation":
        """From the tables over all positions."""
        place = torch.arange(sin.shape[-1], device=sin.device)
        first = place % 2 == 0 if neighbours else place < len(place) // 2
        signed = torch.where(first, -sin, sin)
        return Rotation(cos[pos].unsqueeze(1), signed[pos].unsqueeze(1), neighbours)

    def __getitem__(self, tokens) -> "Rotation":
        return Rotation(self.cos[tokens], self.sin[tokens], self.neighbours)

    def turn(self, x: Heads) -> Heads:
        """Heads times cos, plus (-second, first) of each pair times sin; in the heads' own type."""
        n_turned = self.cos.shape[-1]
        if n_turned < x.shape[-1]:
            return torch.cat((self.turn(x[..., :n_turned]), x[..., n_turned:]), dim=-1)
        if self.neighbours:
            swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        else:
            swapped = x.roll(n_turned // 2, -1)
        return torch.addcmul(x * self.cos, swapped, self.sin).to(x.dtype)


Sight = tuple[Float[Tensor, "batch query prefix"], Float[Tensor, "column column"]]
"""Which keys a query sees, over the prefix (one row for all queries where no window depends on the
column) and over its own row: 0 where it does, -inf elsewhere. The same at every layer."""
Prefix = tuple[Float[Tensor, "batch_kv prefix d_head"], Float[Tensor, "batch_kv prefix d_head"]]
"""Keys and values of the clean prefix in one block, padded, by example and key head."""


def sight_of(layout: Layout, window: int | None, like: Tensor) -> Sight:
    """Causal, and no further back than `window`."""
    place = torch.arange(layout.n_prefix, device=like.device).view(1, 1, -1)
    column = torch.arange(layout.width, device=like.device)
    first = layout.first.view(-1, 1, 1)
    before = place < first
    back = column.unsqueeze(1) - column
    own = back >= 0
    if window is not None and window < layout.n_pos:
        before = before & (first + column.view(1, -1, 1) - place < window)
        own = own & (back < window)
    return _penalty(before, like), _penalty(own, like)


def _penalty(seen: Tensor, like: Tensor) -> Tensor:
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(
        ~seen, float("-inf")
    )


def prefix_of(
    block: Block, entering: Packed, layout: Layout, rotations: Mapping[Rotary, Rotation]
) -> Prefix:
    """From the stream that enters the block: norm, projections, rotary embedding."""
    attention, inner = block.attention, block.ln1(entering)
    key = turned(attention.keys(inner), attention, rotations)
    padded = []
    for part in (key, attention.values(inner)):
        grid = part.new_zeros(layout.n_examples, key.shape[1], layout.n_prefix, key.shape[2])
        grid.permute(0, 2, 1, 3).index_put_((layout.prefix_example, layout.prefix_pos), part)
        padded.append(grid.flatten(0, 1))
    return padded[0], padded[1]


@dataclass(frozen=True)
class RowGrid:
    """Places of the tokens of some rows on the rectangle."""

    layout: Layout
    n_rank: int
    example: Index
    rank: Index
    column: Index
    rotations: Mapping[Rotary, Rotation]

    @staticmethod
    def of(
        layout: Layout,
        rotations: Mapping[Rotary, Rotation],
        place: Index,
        rank: Index,
        n_rank: int,
    ) -> "RowGrid":
        """The smallest rectangle that holds the tokens at `place` of the packed span."""
        return RowGrid(
            layout,
            n_rank,
            layout.span_example[place],
            rank,
            layout.span_column[place],
            {name: one[place] for name, one in rotations.items()},
        )

    def head(self, n_tokens: int, n_rank: int) -> "RowGrid":
        """The first tokens: rows are packed in the order in which they join."""
        return RowGrid(
            self.layout,
            n_rank,
            self.example[:n_tokens],
            self.rank[:n_tokens],
            self.column[:n_tokens],
            {name: one[:n_tokens] for name, one in self.rotations.items()},
        )

    def spread(
        self, packed: Float[Tensor, "token n_kv group d_head"]
    ) -> Float[Tensor, "batch n_kv rank group column d_head"]:
        """Packed tokens on the rectangle; empty places are zero."""
        _, n_kv, n_group, d_head = packed.shape
        n, width = self.layout.n_examples, self.layout.width
        grid = packed.new_zeros(n, n_kv, self.n_rank, n_group, width, d_head)
        self._tokens(grid).index_put_((self.example, self.rank, self.column), packed)
        return grid

    def gather(
        self, grid: Float[Tensor, "batch n_kv rank group column d_head"]
    ) -> Float[Tensor, "token d_mixed"]:
        """The inverse of `spread`, heads joined."""
        return self._tokens(grid)[self.example, self.rank, self.column].flatten(1)

    @staticmethod
    def _tokens(grid: Tensor) -> Tensor:
        return grid.permute(0, 2, 4, 1, 3, 5)


def turned(heads: Heads, attention: Attention, rotations: Mapping[Rotary, Rotation]) -> Heads:
    """Heads at their positions; as they are where the layer has no rotary embedding."""
    return heads if attention.rotary is None else rotations[attention.rotary].turn(heads)


def attend(
    attention: Attention, inner: Packed, prefix: Prefix, rows: RowGrid, sight: Sight
) -> Float[Tensor, "token d_mixed"]:
    """Causal attention of each row over the clean prefix and its own earlier tokens."""
    query, key, value = attention.heads(inner)
    n_kv = key.shape[1]
    # query heads share a key head in groups
    query = rows.spread(turned(query, attention, rows.rotations).unflatten(1, (n_kv, -1)))
    key = rows.spread(turned(key, attention, rows.rotations).unsqueeze(2))
    value = rows.spread(value.unsqueeze(2))
    n_rank, n_group, width = query.shape[2:5]
    n_before = prefix[0].shape[1]
    # by example and key head over the prefix; by row and key head over the row itself
    flat, by_row = query.flatten(0, 1).flatten(1, 3), query.flatten(0, 2).flatten(1, 2)
    own_key, own_value = (part.flatten(0, 2).squeeze(1) for part in (key, value))
    own_seen = sight[1].repeat(n_group, 1).unsqueeze(0)
    # no names for what is joined and normed: at most two tensors of this size live at once
    weights = torch.cat(
        (
            _weigh(attention, flat, prefix[0], _over(sight[0], query)),
            _weigh(attention, by_row, own_key, own_seen).view(*flat.shape[:2], width),
        ),
        dim=-1,
    ).softmax(-1, dtype=torch.float32)
    weights = weights.to(query.dtype)
    mixed = torch.bmm(weights[..., :n_before], prefix[1])
    inside = weights[..., n_before:].unflatten(1, (n_rank, -1)).flatten(0, 1)
    mixed.view(by_row.shape).baddbmm_(inside, own_value)
    return rows.gather(mixed.view(query.shape))


def _over(before: Float[Tensor, "batch query prefix"], query: Tensor) -> Tensor:
    """The prefix mask for every key head, and for every query where it depends on the column."""
    n_kv, n_rank, n_group = query.shape[1:4]
    if before.shape[1] == 1:
        return before.repeat_interleave(n_kv, dim=0)
    spread = before[:, None, None, None].expand(-1, n_kv, n_rank, n_group, -1, -1)
    return spread.flatten(2, 4).flatten(0, 1)


def _weigh(attention: Attention, query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
    """Scaled and masked products of queries and keys."""
    key = key.transpose(1, 2)
    if attention.softcap is None:
        return torch.baddbmm(seen, query, key, alpha=attention.scaling)
    capped = torch.bmm(query, key).mul_(attention.scaling / attention.softcap).tanh_()
    return capped.mul_(attention.softcap).add_(seen)
