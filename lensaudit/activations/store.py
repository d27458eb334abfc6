"""The activation store: a folder of caches, each found by what determines its numbers.

A cache is read lazily, a few files at a time, each byte checked before it is used.
"""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.activations.inventory import (
    Wanted,
    cache_folders,
    find,
    folder_key,
    folder_of,
    is_cache,
)
from lensaudit.activations.presence import RESERVE_BYTES, Mark, check_trusted, publish
from lensaudit.activations.shard import ShardFile, Slabs, check_bytes
from lensaudit.activations.spec import (
    REPAIR,
    SEAL,
    SPEC,
    Fingerprint,
    Seal,
    Shard,
    Spec,
    check_part,
    checked_seal,
    plan,
    read_spec,
)
from lensaudit.activations.tensors import TORCH, ExampleActivations, LayerRows, SpanRows, from_bits
from lensaudit.activations.writer import CacheWriter
from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError, VerificationError
from lensaudit.files import make_folder, os_error, sync_folder
from lensaudit.partials import sweep_partials
from lensaudit.settings import ACTIVATIONS, Kept, Place, Positions

__all__ = [
    "ActivationStore",
    "Activations",
    "CacheWriter",
    "ExampleActivations",
    "Fingerprint",
    "LayerRows",
    "LayerView",
    "Shard",
    "SpanRows",
    "Spec",
    "open_activations",
]


class Activations(AbstractContextManager):
    """A cache on disk, read when asked: keeps file handles and indices, no activations."""

    def __init__(self, folder: Path, spec: Spec, seal: Seal | None):
        self.folder, self.spec = folder, spec
        self.complete = seal is not None
        self._sealed = {shard.number: shard for shard in seal.shards} if seal else {}
        self._shards: dict[int, Shard] = {}
        for shard in spec.shards():
            if seal or (folder / shard.file_name).exists():
                self._shards.update(dict.fromkeys(shard.idx, shard))
        self._open: OrderedDict[int, ShardFile] = OrderedDict()
        self._lock = threading.Lock()
        self._mark = Mark(folder)
        weakref.finalize(self, self._mark.remove)
        with suppress(OSError):  # when it was last used, for `gc`; a read-only disk keeps its own
            os.utime(folder / SEAL)

    @property
    def idx(self) -> tuple[int, ...]:
        """Examples that can be read, in the order of the plan."""
        return tuple(self._shards)

    @property
    def authors(self) -> dict[int, int | str]:
        """Author of each example, idx -> `group`, of the rows that the cache was made of.

        Raises:
            InputError: those rows are not there any more, or are others by now.
        """
        recipe = self.spec.provenance
        if "data" not in recipe:
            raise InputError(f"{self.folder}: does not say of which rows it was made")
        how = {"exclude": recipe.get("exclude") or (), "limit": recipe.get("limit")}
        found = {one.idx: one.group for one in forget_set(recipe["data"], **how)}
        if missing := [idx for idx in self.idx if idx not in found]:
            raise InputError(f"{recipe['data']}: has no idx {missing[0]}; the cache has other rows")
        return {idx: found[idx] for idx in self.idx}

    @property
    def fingerprint(self) -> Fingerprint:
        """What determined these numbers."""
        return self.spec.fingerprint

    @property
    def part(self) -> Kept:
        """Which part of every layer it holds: the residual stream, or a component."""
        return self.fingerprint.part

    @property
    def n_layers(self) -> int:
        """Number of layers that are cached."""
        return self.fingerprint.layers

    @property
    def d_model(self) -> int:
        """Width of a row: of the residual stream, or of all heads end to end."""
        return self.fingerprint.d_model

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tensors given back: that of the model that was cached."""
        return TORCH[self.fingerprint.dtype]

    def __len__(self) -> int:
        return len(self._shards)

    def __repr__(self) -> str:
        identity = self.fingerprint
        state = "" if self.complete else ", incomplete"
        part = "" if self.part == "resid" else f" {self.part}"
        return (
            f"<Activations {self.spec.name}{part}: {len(self)} examples x {identity.layers} layers "
            f"x {identity.d_model}, {identity.positions} positions, {identity.dtype}{state}>"
        )

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the shard files; reading again opens them again."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()
        self._mark.remove()

    def example(self, idx: int, *, layers: Sequence[int] | None = None) -> ExampleActivations:
        """One example at all layers, or at `layers` in the order given.

        Raises:
            InputError: the cache does not hold the example or a layer, or `layers` is no list.
            VerificationError: the bytes on disk are not those that were written.
        """
        if isinstance(layers, int):
            raise InputError(f"layers={layers}: wanted several, in a list: [{layers}]")
        slabs = self._read(idx, range(self.n_layers) if layers is None else layers)
        return ExampleActivations(
            idx=idx,
            token_ids=torch.from_numpy(slabs.token_ids),
            positions=torch.from_numpy(slabs.positions),
            resid=from_bits(slabs.resid, self.fingerprint.dtype),
            final_norm=from_bits(slabs.final_norm, self.fingerprint.dtype),
        )

    def examples(self, idx: Iterable[int] | None = None) -> Iterator[ExampleActivations]:
        """Examples one after the other."""
        for wanted in self.idx if idx is None else idx:
            yield self.example(wanted)

    def layer(self, layer: int) -> "LayerView":
        """One layer over all examples."""
        self._check_layers([layer])
        return LayerView(self, layer)

    def layer_rows(self, layer: int, idx: Iterable[int]) -> LayerRows:
        """One layer's rows of some examples, laid end to end; all of them in memory."""
        wanted = tuple(idx)
        found = [self._read(number, [layer], final_norm=False) for number in wanted]
        edges = np.cumsum([0, *(len(slabs.positions) for slabs in found)], dtype=np.int64)
        positions = [torch.from_numpy(slabs.positions) for slabs in found]
        rows = [from_bits(slabs.resid[0], self.fingerprint.dtype) for slabs in found]
        return LayerRows(
            layer=layer,
            idx=wanted,
            offsets=torch.from_numpy(edges),
            positions=torch.cat([torch.empty(0, dtype=torch.int64), *positions]),
            resid=torch.cat([torch.empty(0, self.d_model, dtype=self.dtype), *rows]),
        )

    def _read(self, idx: int, layers: Sequence[int], *, final_norm: bool = True) -> Slabs:
        self._check_layers(layers)
        if idx not in self._shards:
            raise InputError(f"{self.folder}: does not hold example idx {idx} ({self._holds()})")
        with self._lock:
            return self._shard_file(self._shards[idx]).read(idx, layers, final_norm=final_norm)

    def _check_layers(self, layers: Sequence[int]) -> None:
        for layer in layers:
            if not 0 <= layer < self.n_layers:
                raise InputError(
                    f"{self.folder}: no layer {layer}; it holds 0 to {self.n_layers - 1}"
                )

    def _shard_file(self, shard: Shard) -> ShardFile:
        """The open file of a shard; the least recently used one makes room."""
        if shard.number not in self._open:
            path = self.folder / shard.file_name
            self._check_once(path, shard)
            self._mark.renew()
            self._open[shard.number] = ShardFile(path, self.spec, shard)
            if len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(shard.number)
        return self._open[shard.number]

    def _check_once(self, path: Path, shard: Shard) -> None:
        """Hash the whole file the first time this process opens it."""
        try:
            stat = os.stat(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); {REPAIR}") from error
        state = (str(path), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if state not in _whole:
            check_bytes(path, self._sealed.get(shard.number))
            _whole.add(state)

    def _holds(self) -> str:
        if not self._shards:
            return "it is empty"
        state = "complete" if self.complete else "incomplete"
        return f"it holds {len(self)}, {min(self._shards)} to {max(self._shards)}, {state}"


class ActivationStore:
    """The caches under one folder."""

    def __init__(self, root: Place, *, reserve_bytes: int = RESERVE_BYTES):
        self.root, self.reserve_bytes = Path(root), reserve_bytes

    def folders(self) -> list[Path]:
        """The cache folders, by name."""
        return cache_folders(self.root)

    def writer(
        self,
        fingerprint: Fingerprint,
        *,
        name: str,
        idx: Sequence[int],
        provenance: Mapping[str, Any],
    ) -> CacheWriter:
        """Begin or continue a cache of the examples `idx`, in this order, 32 to a shard.

        Raises:
            InputError: the folder cannot be written, or holds a cache of other examples.
        """
        make_folder(self.root)
        check_trusted(self.root)
        spec = plan(name, fingerprint, idx, provenance)
        folder = folder_of(fingerprint.key(), self.root) or self.root / spec.folder_name()
        make_private(folder)
        sweep_partials(folder)
        if not (folder / SPEC).exists():
            publish(folder / SPEC, (spec.content(),))
        found = read_spec(folder / SPEC)
        check_same(folder, found, fingerprint)
        if found.idx != spec.idx:
            raise InputError(
                f"{folder}: is planned for {len(found.idx)} examples (first {found.idx[0]}), "
                f"this run wants {len(spec.idx)} (first {spec.idx[0]}) in another order or number; "
                "name another --activations folder"
            )
        return CacheWriter(folder, found, reserve_bytes=self.reserve_bytes)

    def open(self, fingerprint: Fingerprint, *, allow_partial: bool = False) -> Activations | None:
        """The cache of these numbers; None when absent, or incomplete unless `allow_partial`.

        Raises:
            VerificationError: the folder of this key says it holds something else.
        """
        folder = folder_of(fingerprint.key(), self.root)
        if folder is None or not (folder / SPEC).exists():
            return None
        check_same(folder, read_spec(folder / SPEC), fingerprint)
        if not (folder / SEAL).exists() and not allow_partial:
            return None
        return open_folder(folder, allow_partial=allow_partial)


def make_private(folder: Path) -> None:
    """Make a cache folder that only its owner can enter, and check that it is ours."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
    except OSError as error:
        raise os_error(error, folder) from error
    check_trusted(folder)


def check_same(folder: Path, found: Spec, wanted: Fingerprint) -> None:
    """The identity documents are compared in full: a key is a hash, a document is a fact."""
    if differences := found.fingerprint.differences(wanted):
        raise VerificationError(
            f"{folder}: holds {'; '.join(differences)} (theirs, ours); "
            "run `lensaudit cache` for the model or name another --activations folder"
        )


def open_folder(folder: Path, *, allow_partial: bool = False) -> Activations:
    """The cache in one folder.

    Raises:
        InputError: it is incomplete and `allow_partial` is not set.
        VerificationError: its spec or seal is damaged, or they contradict each other.
    """
    check_trusted(folder)
    spec = read_spec(folder / SPEC)
    key = folder_key(folder)
    if is_cache(folder) and key != spec.fingerprint.key():
        raise VerificationError(
            f"{folder}: is named for key {key}, its spec.json says {spec.fingerprint.key()}"
        )
    seal = checked_seal(folder, spec)
    if seal is None and not allow_partial:
        raise InputError(f"{folder}: is not complete; {spec.how_to_fill(folder.parent)}")
    return Activations(folder, spec, seal)


def open_activations(
    name_or_key_or_path: Place,
    *,
    root: Place = ACTIVATIONS,
    data: Place | None = None,
    limit: int | Literal["all"] | None = None,
    positions: Positions | None = None,
    component: Kept | None = None,
    allow_partial: bool = False,
) -> Activations:
    """A cache by the model's name, by its key or the beginning of it, or by its folder.

        from lensaudit.activations.store import open_activations
        cache = open_activations("full", limit=8, positions="span")
        cache.example(0).resid      # Float[Tensor, "layer pos d_model"]

    Args:
        name_or_key_or_path: of a name there may be several caches.
        root: folder of the caches.
        data: that of these rows: `forget10`, `demo`, or a file.
        limit: that of the first so many rows, or of "all"; None prefers that of all.
        positions: that of the read positions (`span`) or of every token (`all`).
        component: that of `attn`, `mlp`, `resid_mid`, or of all `heads`; None of a name: the
            residual stream. `.resid` of an example is then that component.
        allow_partial: open one that is not complete.

    Raises:
        InputError: none or several match; says in what they differ.
    """
    check_part(component)
    wanted = Wanted(data, limit, positions, component)
    folder = find(name_or_key_or_path, root=Path(root), wanted=wanted)
    return open_folder(folder, allow_partial=allow_partial)


OPEN_SHARDS = 8
"""Shard files held open at once."""

_whole: set[tuple[str, int, int, int, int]] = set()
"""Shards this process hashed from end to end: path, device, inode, bytes, time of change."""


class LayerView:
    """One layer of a cache, ragged: each example has as many rows as positions were cached."""

    def __init__(self, activations: Activations, layer: int):
        self._activations, self.layer = activations, layer

    @property
    def idx(self) -> tuple[int, ...]:
        """Numbers of the examples, in order."""
        return self._activations.idx

    def __len__(self) -> int:
        return len(self._activations)

    def __iter__(self) -> Iterator[tuple[int, Float[Tensor, "pos d_model"]]]:
        """Each example's idx and rows, one after the other."""
        for idx in self.idx:
            yield idx, self.example(idx)

    def example(self, idx: int) -> Float[Tensor, "pos d_model"]:
        """The rows of one example."""
        return self.rows([idx]).resid

    def rows(self, idx: Iterable[int] | None = None) -> LayerRows:
        """All rows of some or all examples, laid end to end; in memory at once."""
        return self._activations.layer_rows(self.layer, self.idx if idx is None else idx)

    def at_span(self, place: int) -> SpanRows:
        """The `place`-th cached row of each example; -1 is the last. Too short ones are listed."""
        found = {idx: rows[place] for idx, rows in self if -len(rows) <= place < len(rows)}
        empty = torch.empty(0, self._activations.d_model, dtype=self._activations.dtype)
        return SpanRows(
            layer=self.layer,
            idx=tuple(found),
            absent=tuple(idx for idx in self.idx if idx not in found),
            resid=torch.stack(list(found.values())) if found else empty,
        )
