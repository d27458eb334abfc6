"""How likely is each of some candidates after a prompt, to a reader or to heads on its streams?

A prompt is read once, whatever continues it.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lensaudit.errors import WorkError
from lensaudit.groups import batched
from lensaudit.models.bridge import (
    TransformerBridge,
    captured,
    device_of,
    hook_name,
    n_layers,
    passing,
    unembedded,
)
from lensaudit.models.decoder import FAMILIES
from lensaudit.models.generation import started
from lensaudit.models.sizes import rows_at_once
from lensaudit.patching.reader import BothPasts, Ids, Reader, Rows, keeping
from lensaudit.patching.speech import SAID_ROWS
from lensaudit.types import Logits, Resid, Tokens, padded_rows

READ_TOKENS = 8192
"""Tokens of candidates after their prompts whose keys and values are held at once; of prompts that
wait for their candidates a quarter."""
BRANCHES = 64
"""Beginnings of candidates side by side after one prompt: attention grows with their square."""


def exposures(
    reader: Reader, prompts: Sequence[Ids], candidates: Sequence[Sequence[Ids]]
) -> list[Float[Tensor, " candidate"]]:
    """Log-probs of each prompt's own candidates after it, nats, summed over their tokens.

    Prompts of like length are read together; candidates on their keys and values, those that
    differ in their last token only as one row, short ones apart from long ones.

    Raises:
        WorkError: logits are not finite.
    """
    return [row[0] for row in _scored(reader, prompts, candidates, lambda said, *_: [said])]


def _scored(
    reader: Reader,
    prompts: Sequence[Ids],
    candidates: Sequence[Sequence[Ids]],
    readings: Callable[[Tensor, "Summed", Tensor], Sequence[Tensor]],
) -> list[Float[Tensor, "reading candidate"]]:
    """By prompt, what is made of all readings, and of the streams of the same pass."""
    found: dict[int, Tensor] = {}
    longest_first = sorted(range(len(prompts)), key=lambda at: -len(prompts[at]))
    most = READ_TOKENS // 4
    for places in _batched(longest_first, lambda n, first, _: n * len(prompts[first]) > most):
        own = [candidates[at] for at in places]
        parts = (
            torch.stack([*readings(summed(last, logits_of), summed, last)])
            for summed, last, logits_of in _passes(reader, prompts, own, places)
        )
        total = _finite(reduce(torch.add, parts)).cpu()
        found.update(zip(places, total.split(list(map(len, own)), dim=-1), strict=True))
    return [found[at] for at in range(len(prompts))]


def _batched(
    order: Iterable[int], too_many: Callable[[int, int, int], bool]
) -> Iterator[list[int]]:
    """What is read at once; `too_many`: of so many, the first of which and the last are these."""
    batch: list[int] = []
    for one in order:
        if batch and too_many(len(batch) + 1, batch[0], one):
            yield batch
            batch = []
        batch = [*batch, one]
    if batch:
        yield batch


Summed = Callable[
    [Float[Tensor, "row pos d"], Callable[[Resid], Logits]], Float[Tensor, " candidate"]
]
"""Log-probs of each candidate's tokens that a pass reads, 0 where none is, nats: from a stream at
every position, and what makes logits of it."""


def _passes(
    reader: Reader,
    prompts: Sequence[Ids],
    candidates: Sequence[Sequence[Ids]],
    places: Sequence[int],
) -> Iterator[tuple[Summed, Float[Tensor, "row pos d"], Callable[[Resid], Logits]]]:
    """The prompts, then batches of what candidates begin with.

    What sums the log-probs that are read, the last stream, and what makes logits of it. A family
    whose readout is known unembeds the positions that are wanted; else the model does it, and its
    logits stand for the stream.

    Args:
        reader: who reads.
        prompts: all of them.
        candidates: of each place.
        places: of the prompts that are read here.
    """
    device = device_of(reader.model)
    config: Any = reader.model.original_model.config
    n_logits = rows_at_once(config.get_text_config().vocab_size, device.type)
    known = type(reader.model.original_model).__name__ in FAMILIES
    logits_of = partial(unembedded, reader.model) if known else (lambda logits: logits)
    prompt = torch.tensor(places, device=device)
    branch = _takes_branches(reader)
    # a token's stream is then the same whichever prompt it is read for
    read = _read_as_tree if branch and (reader.alike or reader.edits is None) else _read_each
    mask, past, stream, last = read(reader, [tuple(prompts[at]) for at in places], prompt)
    every = [(owner, tuple(ids)) for owner, own in enumerate(candidates) for ids in own]
    wanted = partial(_summing, every, n_logits, device)
    yield wanted({n: [(*last[owner], 0)] for n, (owner, _) in enumerate(every)}), stream, logits_of
    rows, row_of = _rows_of(every, BRANCHES if branch else 0)
    # logits of a row that the model makes itself are held in any case
    most = READ_TOKENS if known else n_logits

    def too_many(n: int, _: int, one: int) -> bool:
        width = len(rows[one][1])
        return n * (mask.shape[1] + width) > READ_TOKENS or n * width > most

    shortest_first = sorted(range(len(rows)), key=lambda row: len(rows[row][1]))
    for at in _batched(shortest_first, too_many):
        owner = torch.tensor([rows[one][0] for one in at], device=device)
        width = len(rows[at[-1]][1])
        tokens, depth, below = _laid_out([rows[one][1] for one in at], width, device)
        grown = copy.deepcopy(past)
        grown.batch_select_indices(owner)
        # padded on the right: no token that counts sees a padded one
        before = mask[owner]
        seen = torch.cat((before, before.new_ones(len(at), width)), dim=1)
        if branch:
            visible = torch.cat((before.bool().unsqueeze(1).expand(-1, width, -1), below), 2)
            seen = _added(reader.model, visible)
        positions = before.sum(1, keepdim=True) + depth
        where = {"mask": seen, "positions": positions, "past": grown, "rows": prompt[owner]}
        stream, _ = _streamed(reader, tokens, width, **where)
        place = {one: row for row, one in enumerate(at)}
        places_of = {
            n: [
                (place[row], rows[row][1][every[n][1][:length]], length)
                for length in range(1, len(every[n][1]))
            ]
            for n, row in row_of.items()
            if row in place
        }
        yield wanted(places_of), stream, logits_of


def _streamed(reader: Reader, tokens: Tokens, n_logits: int, **where: Any) -> tuple[Tensor, Any]:
    """The stream that enters the final norm, or logits where it is not known; and the past."""
    known = type(reader.model.original_model).__name__ in FAMILIES
    n_logits = 1 if known else n_logits
    with passing(reader.model, "ln_final.hook_in") as streams:
        logits, past = reader.read(tokens, **where, n_logits=n_logits)
    return streams[-1] if known else logits, past


_Begun = tuple[Int[Tensor, "prompt pos"], Any, Float[Tensor, "row read d"], list[tuple[int, int]]]
"""Prompts that were read: 1 at their tokens and 0 at the padding before them, keys and values of
each, the stream that enters the final norm (or logits), and where each prompt's last token is."""


def _read_each(reader: Reader, prompts: Sequence[tuple[int, ...]], rows: Rows) -> _Begun:
    """A row for each prompt."""
    asked = started(prompts, rows.device)
    where = {"mask": asked.mask, "positions": asked.positions.clamp(min=0)}
    stream, past = _streamed(reader, asked.tokens, 1, **where, past=None, rows=rows)
    return asked.mask, past, stream[:, -1:], [(row, 0) for row in range(len(prompts))]


def _read_as_tree(reader: Reader, prompts: Sequence[tuple[int, ...]], rows: Rows) -> _Begun:
    """All prompts in one row, side by side; what they begin with alike is read once."""
    nodes: dict[tuple[int, ...], int] = {}
    paths = [
        [nodes.setdefault(ids[:length], len(nodes)) for length in range(1, len(ids) + 1)]
        for ids in prompts
    ]
    tokens, depth, below = _laid_out([nodes], len(nodes), rows.device)
    where = {"mask": _added(reader.model, below), "positions": depth}
    stream, past = _streamed(reader, tokens, 1, **where, past=None, rows=rows[:1])
    own = started(paths, rows.device)
    for one in (past.own, past.below) if isinstance(past, BothPasts) else (past,):
        for layer in one.layers:
            both = (part[0][:, own.tokens].transpose(0, 1) for part in (layer.keys, layer.values))
            layer.keys, layer.values = both
    return own.mask, past, stream, [(0, path[-1]) for path in paths]


def _added(model: TransformerBridge, visible: Bool[Tensor, "row pos seen"]) -> Tensor:
    """What is added to the scores of attention, of every head alike."""
    weight = next(model.original_model.parameters())
    hidden = torch.finfo(weight.dtype).min
    mask = torch.zeros(visible.shape, dtype=weight.dtype, device=visible.device)
    return mask.masked_fill_(~visible, hidden).unsqueeze(1)


_Row = tuple[int, dict[tuple[int, ...], int]]
"""A prompt, and the place of each beginning of a candidate that is read after it."""


def _takes_branches(reader: Reader) -> bool:
    """Whether attention goes by the mask it is given alone: tokens may then see some of a row."""
    for model in (reader.model, reader.source or reader.model):
        config: Any = model.original_model.config
        config = config.get_text_config()
        windows = {*(getattr(config, "layer_types", None) or ())} - {"full_attention"}
        if (
            type(model.original_model).__name__ not in FAMILIES
            or windows
            or getattr(config, "sliding_window", None)
        ):
            return False
    return True


def _rows_of(
    every: Sequence[tuple[int, tuple[int, ...]]], width: int
) -> tuple[list[_Row], dict[int, int]]:
    """Pack the prefixes of candidates into rows of one prompt each, and find each candidate's row.

    A row is a prefix tree of at most `width` nodes; with width 0 it is one chain of prefixes.
    """
    rows: list[_Row] = []
    row_of = {}
    for n in sorted(range(len(every)), key=every.__getitem__):  # those that begin alike in turn
        owner, ids = every[n]
        path = [ids[:length] for length in range(1, len(ids))]
        before, held = rows[-1] if rows else (None, {})
        new = len({*path} - held.keys())
        if path and (before != owner or (new and len(held) + new > width)):
            held = {}
            rows.append((owner, held))
        for one in path:
            held.setdefault(one, len(held))
            row_of[n] = len(rows) - 1
    return rows, row_of


def _laid_out(
    rows: Sequence[Mapping[tuple[int, ...], int]], width: int, device: torch.device
) -> tuple[Tokens, Tokens, Bool[Tensor, "row width width"]]:
    """Tokens, how far each stands behind its prompt, and which of its row it sees."""
    tokens, depth = torch.zeros(2, len(rows), width, dtype=torch.long)
    sees = torch.zeros(len(rows), width, width, dtype=torch.bool)
    placed = [(row, at, ids) for row, nodes in enumerate(rows) for ids, at in nodes.items()]
    row, at = torch.tensor([one[:2] for one in placed]).T
    tokens[row, at] = torch.tensor([ids[-1] for *_, ids in placed])
    depth[row, at] = torch.tensor([len(ids) - 1 for *_, ids in placed])
    seen = [
        (row, at, rows[row][ids[:length]])
        for row, at, ids in placed
        for length in range(1, len(ids) + 1)
    ]
    sees[tuple(torch.tensor(seen).T)] = True
    return tokens.to(device), depth.to(device), sees.to(device)


def _summing(
    every: Sequence[tuple[int, Ids]],
    at_once: int,
    device: torch.device,
    places: Mapping[int, Sequence[tuple[int, int, int]]],
) -> Summed:
    """Sum log-probs of candidates' tokens in a batch.

    Args:
        every: candidate, after the prompt it belongs to.
        at_once: positions whose logits are held.
        device: of the model.
        places: of a candidate, (row, position, which of its tokens follows there).
    """
    found = [
        (n, row, pos, every[n][1][which])
        for n, several in places.items()
        for row, pos, which in several
    ]
    candidate, row, pos, token = torch.tensor(found, device=device).T

    def summed(
        stream: Float[Tensor, "row pos d"], logits_of: Callable[[Resid], Logits]
    ) -> Float[Tensor, " candidate"]:
        at, which = (row * stream.shape[1] + pos).unique(return_inverse=True)
        total = torch.zeros(len(every), dtype=torch.float32, device=stream.device)
        for start, part in enumerate(stream.flatten(0, 1)[at].split(at_once)):
            # half the time of a logsumexp; a row with a logit that is not finite is NaN throughout
            each = logits_of(part.unsqueeze(0))[0].log_softmax(-1, dtype=torch.float32)
            here = (which // at_once == start).nonzero().squeeze(1)
            total.index_add_(0, candidate[here], each[which[here] - start * at_once, token[here]])
        return total

    return summed


@dataclass(frozen=True)
class Head:
    """A final norm and unembedding that read other streams, and what carries those there."""

    model: TransformerBridge
    maps: Mapping[int, Callable[[Resid], Resid]] = field(default_factory=dict)
    """By layer; none: the stream is read as it is."""

    def logits(self, layer: int, resid: Resid) -> Logits:
        """What the head makes of a stream after `layer`."""
        return unembedded(self.model, self.maps[layer](resid) if layer in self.maps else resid)


def layered_exposures(
    source: TransformerBridge,
    heads: Sequence[Head],
    layers: Sequence[int],
    prompts: Sequence[Ids],
    candidates: Sequence[Sequence[Ids]],
    work: Counter[str] | None = None,
) -> list[Float[Tensor, "reading candidate"]]:
    """As `exposures`, with readings of the stream by heads from the same pass over the source.

    By prompt: what the source says, then what the first head reads after each of the layers, then
    the second.

    Raises:
        WorkError: logits are not finite.
    """
    streams: dict[int, Resid] = {}
    edits, top = {layer: keeping(streams, layer) for layer in layers}, n_layers(source) - 1
    reader = Reader(source, lambda rows: edits, Counter() if work is None else work, alike=True)

    def readings(said: Tensor, summed: Summed, last: Tensor) -> list[Tensor]:
        # as many positions as are read: of prompts the last
        return [said] + [
            said
            if head.model is source and layer not in head.maps and layer == top
            else summed(streams[layer][:, -last.shape[1] :], partial(head.logits, layer))
            for head in heads
            for layer in layers
        ]

    return _scored(reader, prompts, candidates, readings)


def stream_after(
    model: TransformerBridge, prompts: Sequence[Ids], layer: int, work: Counter[str]
) -> Float[Tensor, "row d_model"]:
    """The residual stream after `layer` at the last token of each prompt."""
    found = []
    for rows in batched(prompts, SAID_ROWS):
        # padded on the right, where no token that counts sees it
        tokens, _ = padded_rows(rows)
        work["forwards"] += 1
        work["tokens"] += tokens.numel()
        name, given = hook_name(layer), tokens.to(device_of(model))
        stream = captured(model, given, [name], stop_at_layer=layer + 1)[name]
        found += [stream[at, len(prompt) - 1].float() for at, prompt in enumerate(rows)]
    return torch.stack(found)


def _finite(logits: Tensor) -> Tensor:
    if not bool(logits.isfinite().all()):
        raise WorkError("logits are not finite; try --dtype float32")
    return logits
