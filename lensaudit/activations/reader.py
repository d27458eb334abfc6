"""Reading a cache: lazily, a few files at a time, each byte checked before it is used."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.activations.fingerprint import Fingerprint
from lensaudit.activations.image import Slabs
from lensaudit.activations.presence import Mark
from lensaudit.activations.shard import ShardFile, check_bytes
from lensaudit.activations.spec import REPAIR, SEAL, Seal, Shard, Spec
from lensaudit.activations.tensors import ExampleActivations, LayerRows, SpanRows
from lensaudit.activations.values import TORCH, from_bits
from lensaudit.errors import InputError
from lensaudit.settings import Kept

OPEN_SHARDS = 8
"""Shard files held open at once."""

_whole: set[tuple[str, int, int, int, int]] = set()
"""Shards this process hashed from end to end: path, device, inode, bytes, time of change."""


class Activations:
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
    def fingerprint(self) -> Fingerprint:
        """What determined these numbers."""
        return self.spec.fingerprint

    @property
    def part(self) -> Kept:
        """Which part of every layer it holds: the residual stream, or a component."""
        return self.fingerprint.part

    @property
    def n_layers(self) -> int:
        """Layers cached."""
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

    def __enter__(self) -> "Activations":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            InputError: the cache does not hold the example or a layer.
            VerificationError: the bytes on disk are not those that were written.
        """
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


class LayerView:
    """One layer of a cache, ragged: each example has as many rows as positions were cached."""

    def __init__(self, activations: Activations, layer: int):
        self._activations, self.layer = activations, layer

    @property
    def idx(self) -> tuple[int, ...]:
        """Examples in order."""
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
