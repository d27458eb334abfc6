"""Where each token of the sweep lies: index arrays made once per batch, on the host.

A *row* is one example with one source patched in at one layer. It carries the tokens of its
example from the first replaced position to the last read one; tokens of all rows are packed end
to end, in the order in which the rows join.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lensaudit.data.spans import Encoded, Scope, patched_range

Index = Int[Tensor, " token"]


@dataclass(frozen=True)
class Layout:
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
    read_token: Int[Tensor, " read"]
    """Places where `read` holds."""
    prefix_example: Int[Tensor, " prefix_token"]
    prefix_pos: Int[Tensor, " prefix_token"]
    first: Int[Tensor, " batch"]
    """First replaced position of each example."""


Record = TypeVar("Record")


def on(record: Record, device: torch.device) -> Record:
    """The same record with its tensors on another device."""
    values = {one.name: getattr(record, one.name) for one in fields(record)}  # pyright: ignore[reportArgumentType]
    moved = {name: one.to(device) for name, one in values.items() if torch.is_tensor(one)}
    return replace(record, **moved)  # pyright: ignore[reportArgumentType]


def layout_of(encoded: Sequence[Encoded], scope: Scope) -> Layout:
    """Index arrays of a batch under a patch scope."""
    ranges = [patched_range(e, scope) for e in encoded]
    first = np.array([low for low, _ in ranges])
    end = np.array([e.end for e in encoded])
    span_example, span_column = _ragged(end - first)
    span_pos = first[span_example] + span_column
    prefix_example, prefix_pos = _ragged(first)
    starts = np.array([e.start for e in encoded])[span_example]
    patch_end = np.array([high for _, high in ranges])[span_example]
    read = torch.from_numpy(span_pos >= starts)
    patched = torch.from_numpy(span_pos < patch_end)
    labels = np.concatenate(
        [e.token_ids[low + 1 : e.end + 1] for e, (low, _) in zip(encoded, ranges, strict=True)]
    )
    return Layout(
        n_examples=len(encoded),
        n_pos=int(end.max()),
        n_prefix=int(first.max()),
        width=int((end - first).max()),
        span_example=torch.from_numpy(span_example),
        span_pos=torch.from_numpy(span_pos),
        span_column=torch.from_numpy(span_column),
        span_label=torch.from_numpy(labels.astype(np.int64)),
        patched=patched,
        all_patched=bool(patched.all()),
        read=read,
        read_token=read.nonzero().squeeze(1),
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
    """Which rows join after which layer, as indices into the packed span."""

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
    seen = torch.zeros(n_examples, dtype=torch.long)
    joining, span, rank, row, count, n_rank = [], [], [], [], [], []
    for layer in range(n_layers):
        here = []
        for source in range(n_sources):
            chosen = joins[source, :, layer]
            tokens = chosen[layout.span_example].nonzero().squeeze(1)
            example = layout.span_example[tokens]
            here.append((source, len(tokens)))
            span.append(tokens)
            rank.append(seen[example])
            row.append((source * n_examples + example) * n_layers + layer)
            seen = seen + chosen
        joining.append(tuple(here))
        count.append(sum(map(len, span)))
        n_rank.append(int(seen.max()))
    place = torch.cat(span)
    return Schedule(
        joining=tuple(joining),
        span=place,
        rank=torch.cat(rank),
        row=torch.cat(row),
        read=layout.read[place].nonzero().squeeze(1),
        count=tuple(count),
        n_rank=tuple(n_rank),
    )


def packed_span(
    stack: Float[Tensor, "batch layer pos *d"], layout: Layout
) -> Float[Tensor, "layer token *d"]:
    """The span positions of a padded stack."""
    return stack[layout.span_example, :, layout.span_pos].movedim(0, 1).contiguous()
