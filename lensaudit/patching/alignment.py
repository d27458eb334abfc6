"""The source's stream in `full`'s basis: maps fitted on neutral text, applied to what is cached.

An aligned source is a source like another: the engine patches what a source hands over. Sums are
accumulated in one pass over the caches of both models, as many layers at a time as memory holds.
Where a source has another tokenizer, its positions are matched by characters. `without_shared` is
the control against a model that adds the same vector wherever it is asked for what it is to hide:
the aligned stream without the one direction that it shares with other authors' facts, or without as
many as there are authors, learnt from all facts but the judged one.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from lensaudit.activations.spec import MAPS, Fingerprint
from lensaudit.activations.store import Activations
from lensaudit.data.facts import Fact
from lensaudit.data.spans import (
    Encoded,
    Places,
    Scope,
    Tokenizer,
    encoded_row,
    ends_of,
    matched,
    patched_range,
)
from lensaudit.errors import InputError
from lensaudit.files import make_folder
from lensaudit.groups import batched
from lensaudit.patching.score_cache import example_hash
from lensaudit.patching.sources import CachedSource, Layers
from lensaudit.results.keyed import read_marked, write_marked
from lensaudit.scores.alignment import (
    LinearMap,
    MapClass,
    Moments,
    SharedDirections,
    fitted,
    ordinary,
    r_squared,
    shared_directions,
)
from lensaudit.text import digest

ALIGN_TOKENS_PER_DIM = 16
"""Neutral tokens per dimension of the stream; 2 suffice as measured."""
FEWEST_TOKENS_PER_DIM = 2
SINK_NORM = 10.0
"""Times the layer's median norm above which a token is a sink and stays out of fit and R2."""
CHUNK_ROWS = 32
"""Rows read at once."""
HELD_OUT = 5
"""One row in so many is held out of the fit, for R2."""
_SCHEMA = 1


@dataclass(frozen=True)
class Alignment:
    """A map per layer of `full`, and how well it was fitted."""

    kind: MapClass
    maps: tuple[LinearMap, ...]
    layer_of: tuple[int, ...]
    """The source's layer that each layer of `full` is given."""
    r2: tuple[float, ...]
    """On rows that were not fitted, by layer of `full`."""
    n_tokens: int
    shuffled: tuple[LinearMap, ...]
    """The control: fitted on pairs of different tokens."""
    key: str
    """Content hash of all that the maps depend on."""


def mapped(
    source: CachedSource,
    maps: Sequence[LinearMap],
    layer_of: Sequence[int],
    places: Places | None = None,
) -> CachedSource:
    """A source whose stream is carried to `full`'s basis, layer by layer.

    Args:
        source: as it is cached.
        maps: by layer of `full`.
        layer_of: the source's layer that each is given.
        places: where the source stands for each position of `full`; None: their tokens are alike.
    """

    def handed(idx: int, layers: Layers) -> tuple[Tensor, Float[Tensor, "layer pos d_model"]]:
        if places is None:
            positions, resid = source.example(idx)
        elif here := places.get(idx):
            positions = torch.tensor(list(here))
            resid = source.example(idx)[1][:, list(here.values())]
        else:  # a row that the source lost
            positions, cache = torch.zeros(0, dtype=torch.long), source.activations
            resid = torch.zeros(cache.n_layers, 0, cache.d_model, dtype=cache.dtype)
        wanted = range(len(maps)) if layers is None else layers
        return positions, torch.stack([maps[at](resid[layer_of[at]]) for at in wanted])

    return replace(source, handed=handed)


def alignment_key(source: Fingerprint, full: Fingerprint, kind: MapClass, n_tokens: int) -> str:
    """Content hash of all that maps depend on: both caches, the class, how much is used."""
    return digest([_SCHEMA, source.key(), full.key(), kind, n_tokens, SINK_NORM])


def rows_to_fit(
    encoded: Sequence[Encoded], n_tokens: int, width: int, places: Places | None = None
) -> tuple[tuple[Encoded, ...], int]:
    """Rows in an order of their own, until so many tokens are to be fitted; and how many are.

    Every `HELD_OUT`-th is held out; no more rows are run than are used.

    Raises:
        InputError: there are none, or too few tokens for the width.
    """
    chosen, n = [], 0
    for e in sorted(encoded, key=lambda e: digest([e.idx, "align"])):
        if n >= n_tokens:
            break
        if n_here := len(_paired(e, places)):
            n += n_here if len(chosen) % HELD_OUT else 0
            chosen.append(e)
    if not encoded:
        raise InputError(
            "alignment: no rows are left to fit a map on, as every row was left out, or shares an "
            "author with the forget set or with the facts for validity; name rows of other "
            "authors with --align-data"
        )
    if not chosen:
        raise InputError(
            f"alignment: the source can be fitted on none of {len(encoded)} neutral rows: they "
            "are longer than its context, or none of its tokens ends where one of full does; name "
            "others with --align-data"
        )
    if n < (wanted := FEWEST_TOKENS_PER_DIM * width):
        raise InputError(
            f"alignment: {n} neutral tokens, wanted {FEWEST_TOKENS_PER_DIM} per dimension, "
            f"{wanted}; give more rows with --align-data"
        )
    return tuple(chosen), n


def fit_alignment(
    source: Activations,
    full: Activations,
    encoded: Sequence[Encoded],
    kind: MapClass,
    *,
    n_tokens: int,
    memory_bytes: int,
    root: Path,
    places: Places | None = None,
) -> Alignment:
    """The maps from `source` to `full`, fitted on these rows and kept.

    Args:
        source: cached at all positions.
        full: cached at all positions.
        encoded: neutral rows.
        kind: of map.
        n_tokens: at most so many are used.
        memory_bytes: what sums may take.
        root: the activations folder.
        places: where the source stands for `full`, if its tokens are others.

    Raises:
        InputError: too few tokens for the width, or streams that no map can be fitted to.
    """
    n, (d_x, d_y) = full.n_layers, (source.d_model, full.d_model)
    # the source's layer at the same relative depth
    layer_of = tuple(-(-(layer + 1) * source.n_layers // n) - 1 for layer in range(n))
    pairs, empty = partial(_paired_streams, source, full, places), Moments.empty(d_x, d_y)
    rows, used = rows_to_fit(encoded, n_tokens, max(d_x, d_y), places)
    held_out, fit = rows[::HELD_OUT], [row for at, row in enumerate(rows) if at % HELD_OUT]
    norms = [[one.norm(dim=-1) for one in pairs(chunk)] for chunk in batched(fit, CHUNK_ROWS)]
    medians = [torch.cat(side, dim=1).median(dim=1).values for side in zip(*norms, strict=True)]
    # moments of the fit, of the rows held out and of shuffled pairs
    at_once = max(1, memory_bytes // (2 * 3 * 8 * (d_x * d_x + d_x * d_y)))
    maps, shuffled, r2 = list[LinearMap](), list[LinearMap](), list[float]()
    for layers in batched(range(n), at_once):
        sums = _sums(pairs, fit, layers, layer_of, medians, empty)
        checks = _sums(pairs, held_out, layers, layer_of, medians, empty, shuffle=False)
        for (found, mixed), (check, _) in zip(sums, checks, strict=True):
            try:
                maps.append(fitted(found, kind))
                shuffled.append(fitted(mixed, kind))
            except (ValueError, RuntimeError) as error:  # RuntimeError: of LAPACK
                raise InputError(f"--align {kind}: {error}") from error
            r2.append(r_squared(maps[-1], check))
    key = alignment_key(source.fingerprint, full.fingerprint, kind, n_tokens)
    tensors = {
        "r2": torch.tensor(r2, dtype=torch.float64),
        "layer_of": torch.tensor(layer_of),
        "n_tokens": torch.tensor(used),
        **{
            f"{name}.{field}": torch.stack([getattr(one, field) for one in ones])
            for name, ones in (("map", maps), ("shuffled", shuffled))
            for field in _FIELDS
        },
    }
    write_marked(make_folder(root / MAPS) / f"{key}.safetensors", save_tensors(tensors), key)
    return Alignment(kind, tuple(maps), layer_of, tuple(r2), used, tuple(shuffled), key)


def _paired(e: Encoded, places: Places | None) -> list[tuple[int, int]]:
    """Positions of `full` and of the source at which both have read as much; 0 is a sink."""
    same = {at: at for at in range(len(e.token_ids))}
    both = same if places is None else places.get(e.idx, {})
    return [(at, own) for at, own in both.items() if at > 0 and own > 0]


def _paired_streams(
    source: Activations, full: Activations, places: Places | None, rows: Sequence[Encoded]
) -> tuple[Float[Tensor, "layer_x pos d_x"], Float[Tensor, "layer_y pos d_y"]]:
    """Streams of two models that have read the same, rows end to end, without first positions."""
    xs, ys = [], []
    for e in rows:
        paired = _paired(e, places)
        at, own = [at for at, _ in paired], [own for _, own in paired]
        xs.append(source.example(e.idx).resid[:, own].float())
        ys.append(full.example(e.idx).resid[:, at].float())
    return torch.cat(xs, dim=1), torch.cat(ys, dim=1)


def _sums(
    pairs: Callable[[Sequence[Encoded]], tuple[Tensor, Tensor]],
    rows: Sequence[Encoded],
    layers: Sequence[int],
    layer_of: Sequence[int],
    medians: Sequence[Float[Tensor, " _"]],
    empty: Moments,
    *,
    shuffle: bool = True,
) -> list[tuple[Moments, Moments]]:
    """Moments of the pairs of each layer, and of pairs of tokens half a chunk apart."""
    sums = [(empty, empty) for _ in layers]
    for chunk in batched(rows, CHUNK_ROWS):
        xs, ys = streams = pairs(chunk)
        x_kept, y_kept = (
            ordinary(one.norm(dim=-1), median, SINK_NORM)
            for one, median in zip(streams, medians, strict=True)
        )
        for at, layer in enumerate(layers):
            kept = x_kept[layer_of[layer]] & y_kept[layer]
            x, y = xs[layer_of[layer]][kept], ys[layer][kept]
            found, mixed = sums[at]
            here = Moments.of(x, y)
            apart = here.reordered(x, y.roll(len(y) // 2, dims=0)) if shuffle else empty
            sums[at] = found + here, mixed + apart
    return sums


def known_alignment(root: Path, kind: MapClass, key: str) -> Alignment | None:
    """The maps that an earlier run left in the activations folder, if they are whole."""
    if (content := read_marked(root / MAPS / f"{key}.safetensors", key)) is None:
        return None
    tensors = load_tensors(content)
    maps, shuffled = (
        tuple(map(LinearMap, *(tensors[f"{name}.{field}"] for field in _FIELDS)))
        for name in ("map", "shuffled")
    )
    layer_of, r2 = (tuple(tensors[name].tolist()) for name in ("layer_of", "r2"))
    return Alignment(kind, maps, layer_of, r2, int(tensors["n_tokens"]), shuffled, key)


_FIELDS = ("mean_x", "mean_y", "matrix")


FOLDS = 50
"""Groups that are left out one at a time; where there are more, several at a time."""
_SHARED_SCHEMA = 1


ROW_FOLDS = 8
"""Folds of the rows, where facts of one author may be in several."""
DIMENSIONS_EACH = 8
"""Of the stream for each direction that is taken out: no more are."""
MOST_DIRECTIONS = 32
"""As many as are kept in memory for every fold and layer."""


@dataclass(frozen=True)
class Removal:
    """What is taken out of a stream, and from which facts that is learnt."""

    folds: Mapping[int, int]
    """Idx -> fold; what is taken out of a fold's rows is learnt from all others."""
    n: int = 1
    """Directions of each layer."""

    def key(self, map_key: str, rows: Sequence[Encoded]) -> str:
        """Content hash of what they depend on, beside the source's weights and the conditions."""
        learnt = sorted((example_hash(e), self.folds[e.idx]) for e in rows)
        return digest([_SHARED_SCHEMA, *([self.n] if self.n > 1 else []), map_key, learnt])


def one_direction(rows: Sequence[Encoded]) -> Removal:
    """The direction that the facts of other groups share.

    All rows of a group are in one fold, in whatever order the rows come.
    """
    groups = sorted({e.group for e in rows}, key=lambda group: (str(group), str(type(group))))
    place = {group: at % FOLDS for at, group in enumerate(groups)}
    return Removal({e.idx: place[e.group] for e in rows})


def one_a_group(rows: Sequence[Encoded], d_model: int) -> Removal:
    """As many directions as there are groups, learnt from all facts outside a fold.

    Rows of a group are dealt out to the folds, so that each is judged by directions to which the
    others of its group add theirs; none by one to which it adds its own.
    """
    placed = sorted(rows, key=lambda e: (str(e.group), str(type(e.group)), e.idx))
    folds = {e.idx: at % ROW_FOLDS for at, e in enumerate(placed)}
    n_groups = len({e.group for e in rows})
    return Removal(folds, max(1, min(n_groups, d_model // DIMENSIONS_EACH, MOST_DIRECTIONS)))


def too_few_groups(rows: Sequence[Encoded]) -> str | None:
    """Why no direction can be learnt from other authors' facts; None where it can."""
    n = len({e.group for e in rows})
    return None if n > 1 else f"{n} author: no other's facts to take a shared direction from"


def without_shared(
    moved: CachedSource,
    full: CachedSource,
    rows: Sequence[Encoded],
    layers: Sequence[int],
    memory_bytes: int,
    removal: Removal,
) -> CachedSource:
    """An aligned source whose stream has `full`'s mean along each layer's shared directions.

    Directions are taken by fold: nothing of the fold's own rows is in them, or in that mean.

    Args:
        moved: the aligned source.
        full: into which it is patched.
        rows: the facts that the source can be read on.
        layers: that are patched; the others stay as they are.
        memory_bytes: what streams may take while directions are found.
        removal: how many directions, and from which facts.
    """
    folds = removal.folds

    @functools.cache
    def directions() -> dict[int, list[SharedDirections]]:
        n_numbers = sum(e.n_span for e in rows) * full.activations.d_model
        # float32 streams and differences of every position; half is left for what a layer needs
        parts = batched(layers, max(1, memory_bytes // (2 * 2 * 4 * n_numbers)))
        return {at: one for part in parts for at, one in _shared(moved, full, rows, removal, part)}

    def handed(idx: int, layers: Layers) -> tuple[Tensor, Float[Tensor, "layer pos d_model"]]:
        positions, resid = moved.example(idx, layers)
        if idx not in folds:  # read with its bucket, and not scored
            return positions, resid
        wanted = range(len(resid)) if layers is None else layers
        found = ((directions().get(at), one) for at, one in zip(wanted, resid, strict=True))
        each = [one if taken is None else taken[folds[idx]].taken_out(one) for taken, one in found]
        return positions, torch.stack(each)

    return replace(moved, handed=handed)


def at_span(
    source: CachedSource, full: CachedSource, e: Encoded, layers: Sequence[int]
) -> tuple[Float[Tensor, "layer pos d_model"], Float[Tensor, "layer pos d_model"]]:
    """Both streams of an example at the positions that predict."""
    at, resid = source.example(e.idx, layers)
    here = (at >= e.start) & (at < e.end)
    return resid[:, here], full.activations.example(e.idx, layers=layers).at(at[here]).resid


def _shared(
    moved: CachedSource,
    full: CachedSource,
    rows: Sequence[Encoded],
    removal: Removal,
    layers: Sequence[int],
) -> Iterator[tuple[int, list[SharedDirections]]]:
    """Directions for each fold by layer, at the positions that predict."""
    folds = removal.folds
    apart: list[list[Tensor]] = [[] for _ in range(max(folds.values()) + 1)]
    own: list[list[Tensor]] = [[] for _ in apart]
    for e in rows:
        x, y = (one.float() for one in at_span(moved, full, e, layers))
        apart[folds[e.idx]].append(x - y)
        own[folds[e.idx]].append(y)
    xs, ys = ([torch.cat(one, dim=1) for one in side] for side in (apart, own))
    for at, layer in enumerate(layers):
        yield layer, shared_directions([x[at] for x in xs], [y[at] for y in ys], removal.n)


BETWEEN = "no token of it ends where a token of full does, at a position that is patched"


@dataclass(frozen=True)
class TokenMatch:
    """Rows in the tokens of one source."""

    rows: tuple[Encoded, ...]
    """Without those it loses."""
    places: Places | None
    """None: those of `full`."""
    unscored: Mapping[int, str]
    """Idx -> why nothing of the source can stand for `full`'s tokens."""

    def scored(self, rows: Sequence[Encoded]) -> list[tuple[Encoded, Encoded]]:
        """Each row that can be patched, in `full`'s tokens and in its own."""
        own = {e.idx: e for e in self.rows}
        return [(e, own[e.idx]) for e in rows if e.idx not in self.unscored]


def token_match(
    rows: Sequence[Encoded],
    text_of: Callable[[Encoded], Fact],
    full: Tokenizer,
    own: Tokenizer,
    scope: Scope,
    too_long: Callable[[int], str | None],
) -> TokenMatch:
    """Encode the texts anew and match positions by characters.

    Args:
        rows: in `full`'s tokens.
        text_of: the text behind a row.
        full: the tokenizer of `full`.
        own: that of the source.
        scope: positions that are replaced; where one has no match the row is unscored.
        too_long: why the source cannot read so many tokens.
    """
    found, places, unscored = list[Encoded](), dict[int, Mapping[int, int]](), dict[int, str]()
    for e in rows:
        text = text_of(e)
        other = encoded_row(text, own, too_long)
        if isinstance(other, str):
            unscored[e.idx] = other
            continue
        found.append(other)
        places[e.idx] = here = matched(ends_of(text, full), ends_of(text, own))
        if any(at not in here for at in range(*patched_range(e, scope))):
            unscored[e.idx] = BETWEEN
    return TokenMatch(tuple(found), places, unscored)
