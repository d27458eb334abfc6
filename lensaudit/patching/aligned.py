"""The source's stream in `full`'s basis: maps fitted on neutral text, applied to what is cached.

An aligned source is a source like another: the engine patches what a source hands over. Sums are
accumulated in one pass over the caches of both models, as many layers at a time as memory holds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from lensaudit.activations.fingerprint import Fingerprint
from lensaudit.activations.gc import MAPS
from lensaudit.activations.store import Activations
from lensaudit.data.matching import Places
from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.files import digest, make_folder
from lensaudit.patching.sources import CachedSource
from lensaudit.results.keyed import read_marked, write_marked
from lensaudit.scores.alignment import LinearMap, MapClass, Moments, fitted, ordinary, r_squared

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


@dataclass(frozen=True)
class MappedSource(CachedSource):
    """A cached source whose stream is carried to `full`'s basis, layer by layer."""

    maps: tuple[LinearMap, ...] = ()
    layer_of: tuple[int, ...] = ()
    places: Places | None = None
    """Where the source stands for each position of `full`; None: their tokens are the same."""

    def _example(self, idx: int) -> tuple[Tensor, Float[Tensor, "layer pos d_model"]]:
        return self.at_layers(idx, range(len(self.maps)))

    def at_layers(
        self, idx: int, layers: Sequence[int]
    ) -> tuple[Tensor, Float[Tensor, "layer pos d_model"]]:
        """Positions of `full`, and what is handed over there at some of its layers."""
        if self.places is None:
            positions, resid = super()._example(idx)
        elif here := self.places.get(idx):
            positions = torch.tensor(list(here))
            resid = super()._example(idx)[1][:, list(here.values())]
        else:
            positions = torch.zeros(0, dtype=torch.long)
            n_layers, d_model = self.activations.n_layers, self.activations.d_model
            resid = torch.zeros(n_layers, 0, d_model, dtype=self.activations.dtype)
        moved = [self.maps[layer](resid[self.layer_of[layer]]) for layer in layers]
        return positions, torch.stack(moved)

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and width of what is handed over."""
        return len(self.maps), len(self.maps[0].mean_y)


@dataclass(frozen=True)
class OtherRowSource(CachedSource):
    """`full`'s own stream, of another row: what patching does when nothing fits.

    The k-th kept position of a row is given what the other row has at its k-th, around again
    where that one is shorter.
    """

    rows: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    """idx, idx of the row that it is given, and the positions of its own that are read."""

    def _example(self, idx: int) -> tuple[Tensor, Float[Tensor, "layer pos d_model"]]:
        read = {own: (other, positions) for own, other, positions in self.rows}
        other, positions = read[idx]
        kept, resid = super()._example(other)
        resid = resid[:, torch.isin(kept, torch.tensor(read[other][1]))]
        return torch.tensor(positions), resid[:, torch.arange(len(positions)) % resid.shape[1]]


def next_rows(
    encoded: Sequence[Encoded], *, whole: bool = False
) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """For each row one of another group, if there is one: the next in a list turned by groups.

    Args:
        encoded: rows.
        whole: every position up to the span's end is read, not the span's alone.
    """
    order = sorted(encoded, key=lambda e: (str(e.group), e.idx))
    turned = []
    for at, e in enumerate(order):
        others = [o for o in (*order[at + 1 :], *order[:at]) if o.group != e.group]
        other = (others or [*order[at + 1 :], *order[:at], e])[0]
        turned.append((e.idx, other.idx, tuple(range(e.end)) if whole else e.read_positions))
    return tuple(turned)


def alignment_key(source: Fingerprint, full: Fingerprint, kind: MapClass, n_tokens: int) -> str:
    """Content hash of all that maps depend on: both caches, the class, how much is used."""
    return digest([_SCHEMA, source.key(), full.key(), kind, n_tokens, SINK_NORM])


def known_alignment(root: Path, kind: MapClass, key: str) -> Alignment | None:
    """The maps that an earlier run left in the activations folder, if they are whole."""
    return _read(root / MAPS, kind, key)


def rows_to_fit(
    encoded: Sequence[Encoded], n_tokens: int, places: Places | None = None
) -> tuple[Encoded, ...]:
    """Rows in an order of their own, until so many tokens are to be fitted.

    Every `HELD_OUT`-th is held out; no more rows are run than are used.
    """
    chosen, n = [], 0
    for e in sorted(encoded, key=lambda e: digest([e.idx, "align"])):
        if n >= n_tokens:
            break
        if n_here := len(_paired(e, places)):
            n += n_here if len(chosen) % HELD_OUT else 0
            chosen.append(e)
    return tuple(chosen)


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
    key = alignment_key(source.fingerprint, full.fingerprint, kind, n_tokens)
    pairs = _Pairs(source, full, places)
    made = _fit(pairs, encoded, kind, n_tokens=n_tokens, memory_bytes=memory_bytes, key=key)
    _write(root / MAPS, made)
    return made


def _fit(
    pairs: "_Pairs",
    encoded: Sequence[Encoded],
    kind: MapClass,
    *,
    n_tokens: int,
    memory_bytes: int,
    key: str,
) -> Alignment:
    source, full = pairs.source, pairs.full
    layer_of = relative_layers(source.n_layers, full.n_layers)
    d_x, d_y = source.d_model, full.d_model
    rows = rows_to_fit(encoded, n_tokens, pairs.places)
    held_out, fit = rows[::HELD_OUT], [row for at, row in enumerate(rows) if at % HELD_OUT]
    used = sum(len(_paired(e, pairs.places)) for e in fit)
    if used < FEWEST_TOKENS_PER_DIM * max(d_x, d_y):
        raise InputError(
            f"alignment: {used} neutral tokens, wanted {FEWEST_TOKENS_PER_DIM} per dimension, "
            f"{FEWEST_TOKENS_PER_DIM * max(d_x, d_y)}; give more rows with --align-data"
        )
    medians = _median_norms(pairs, fit)
    # moments of the fit, of the rows held out and of shuffled pairs
    per_layer = 3 * 8 * (d_x * d_x + d_x * d_y)
    at_once = max(1, memory_bytes // (2 * per_layer))
    maps, shuffled, r2 = [], [], []
    for start in range(0, full.n_layers, at_once):
        layers = range(start, min(start + at_once, full.n_layers))
        sums = _sums(pairs, fit, layers, layer_of, medians)
        checks = _sums(pairs, held_out, layers, layer_of, medians, shuffle=False)
        for (found, mixed), (check, _) in zip(sums, checks, strict=True):
            try:
                maps.append(fitted(found, kind))
                shuffled.append(fitted(mixed, kind))
            except (ValueError, RuntimeError) as error:  # RuntimeError: of LAPACK
                raise InputError(f"--align {kind}: {error}") from error
            r2.append(r_squared(maps[-1], check))
    return Alignment(kind, tuple(maps), layer_of, tuple(r2), used, tuple(shuffled), key)


def relative_layers(n_source: int, n_full: int) -> tuple[int, ...]:
    """The source's layer at the same relative depth.

    >>> relative_layers(4, 4), relative_layers(2, 4), relative_layers(6, 3)
    ((0, 1, 2, 3), (0, 0, 1, 1), (1, 3, 5))
    """
    return tuple(-(-(layer + 1) * n_source // n_full) - 1 for layer in range(n_full))


def _paired(e: Encoded, places: Places | None) -> list[tuple[int, int]]:
    """Positions of `full` and of the source at which both have read as much; 0 is a sink."""
    here = range(len(e.token_ids)) if places is None else places.get(e.idx, {})
    both = [(at, at if places is None else places[e.idx][at]) for at in here]
    return [(at, own) for at, own in both if at > 0 and own > 0]


@dataclass(frozen=True)
class _Pairs:
    """The streams of two models that have read the same."""

    source: Activations
    full: Activations
    places: Places | None

    def of(
        self, rows: Sequence[Encoded]
    ) -> tuple[Float[Tensor, "layer_x pos d_x"], Float[Tensor, "layer_y pos d_y"]]:
        """Rows end to end, the source's and `full`'s, without their first position."""
        xs, ys = [], []
        for e in rows:
            at, own = slice(1, None), slice(1, None)
            if self.places is not None:
                paired = _paired(e, self.places)
                at, own = [at for at, _ in paired], [own for _, own in paired]
            xs.append(self.source.example(e.idx).resid[:, own].float())
            ys.append(self.full.example(e.idx).resid[:, at].float())
        return torch.cat(xs, dim=1), torch.cat(ys, dim=1)


def _chunks(rows: Sequence[Encoded]) -> Iterator[Sequence[Encoded]]:
    for start in range(0, len(rows), CHUNK_ROWS):
        yield rows[start : start + CHUNK_ROWS]


def _median_norms(
    pairs: _Pairs, rows: Sequence[Encoded]
) -> tuple[Float[Tensor, " layer_x"], Float[Tensor, " layer_y"]]:
    """Of the source and of `full`."""
    norms = [[one.norm(dim=-1) for one in pairs.of(chunk)] for chunk in _chunks(rows)]
    x, y = (torch.cat(side, dim=1).median(dim=1).values for side in zip(*norms, strict=True))
    return x, y


def _sums(
    pairs: _Pairs,
    rows: Sequence[Encoded],
    layers: Sequence[int],
    layer_of: Sequence[int],
    medians: Sequence[Float[Tensor, " layer"]],
    *,
    shuffle: bool = True,
) -> list[tuple[Moments, Moments]]:
    """Moments of the pairs of each layer, and of pairs of tokens half a chunk apart."""
    empty = Moments.empty(pairs.source.d_model, pairs.full.d_model)
    sums = [(empty, empty) for _ in layers]
    for chunk in _chunks(rows):
        xs, ys = pairs.of(chunk)
        x_kept, y_kept = (
            ordinary(one.norm(dim=-1), median, SINK_NORM)
            for one, median in zip((xs, ys), medians, strict=True)
        )
        for at, layer in enumerate(layers):
            kept = x_kept[layer_of[layer]] & y_kept[layer]
            x, y = xs[layer_of[layer]][kept], ys[layer][kept]
            found, mixed = sums[at]
            if shuffle:
                mixed = mixed + Moments.of(x, y.roll(len(y) // 2, dims=0))
            sums[at] = found + Moments.of(x, y), mixed
    return sums


def _write(folder: Path, made: Alignment) -> None:
    tensors: dict[str, Tensor] = {
        "r2": torch.tensor(made.r2, dtype=torch.float64),
        "layer_of": torch.tensor(made.layer_of),
        "n_tokens": torch.tensor(made.n_tokens),
    }
    for name, maps in (("map", made.maps), ("shuffled", made.shuffled)):
        for field in _FIELDS:
            tensors[f"{name}.{field}"] = torch.stack([getattr(one, field) for one in maps])
    write_marked(make_folder(folder) / f"{made.key}.safetensors", save_tensors(tensors), made.key)


def _read(folder: Path, kind: MapClass, key: str) -> Alignment | None:
    """The maps in a file; None where there is none, or where it is not as it was written."""
    content = read_marked(folder / f"{key}.safetensors", key)
    if content is None:
        return None
    tensors = load_tensors(content)
    maps, shuffled = (
        tuple(map(LinearMap, *(tensors[f"{name}.{field}"] for field in _FIELDS)))
        for name in ("map", "shuffled")
    )
    layer_of, r2 = tuple(tensors["layer_of"].tolist()), tuple(tensors["r2"].tolist())
    return Alignment(kind, maps, layer_of, r2, int(tensors["n_tokens"]), shuffled, key)


_FIELDS = ("mean_x", "mean_y", "matrix")
