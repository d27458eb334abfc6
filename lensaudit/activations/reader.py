"""Reading a cache: lazily, one shard at a time, each byte checked before it is used."""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.activations.fingerprint import Fingerprint
from lensaudit.activations.shard import ShardFile, check_bytes
from lensaudit.activations.spec import Seal, Shard, Spec
from lensaudit.activations.tensors import ExampleActivations, LayerRows, SpanRows
from lensaudit.activations.values import TORCH, from_bits
from lensaudit.errors import InputError

OPEN_SHARDS = 8
"""Shard files held open at once."""

_whole: set[tuple[str, int, int, int, int]] = set()
"""Shards this process hashed from end to end: path, device, inode, bytes, time of change."""


class Activations:
    """A cache on disk, read when asked; holds no more than what was asked for last."""

    def __init__(self, folder: Path, spec: Spec, seal: Seal | None):
        self.folder, self.spec = folder, spec
        sealed = seal.shards if seal else ()
        self._sealed = {shard.number: shard for shard in sealed}
        self._shards: dict[int, Shard] = {}
        for shard in spec.shards():
            if seal or (folder / shard.file_name).exists():
                self._shards.update(dict.fromkeys(shard.idx, shard))
        self.idx: tuple[int, ...] = tuple(self._shards)
        """Examples that can be read, in the order of the plan."""
        self.complete = seal is not None
        self._open: OrderedDict[int, ShardFile] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> Fingerprint:
        """What determined these numbers."""
        return self.spec.fingerprint

    @property
    def n_layers(self) -> int:
        """Layers cached."""
        return self.fingerprint.layers

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self.fingerprint.d_model

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tensors given back: that of the model that was cached."""
        return TORCH[self.fingerprint.dtype]

    def __len__(self) -> int:
        return len(self.idx)

    def __repr__(self) -> str:
        print_ = self.fingerprint
        state = "" if self.complete else ", incomplete"
        return (
            f"<Activations {self.spec.name}: {len(self)} examples x {print_.layers} layers "
            f"x {print_.d_model}, {print_.positions} positions, {print_.dtype}{state}>"
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
        """Close the shard files."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def example(self, idx: int, *, layers: Sequence[int] | None = None) -> ExampleActivations:
        """One example at all layers, or at `layers` in the order given.

        Raises:
            InputError: the cache does not hold the example or a layer.
            VerificationError: the bytes on disk are not those that were written.
        """
        return self._tensors(idx, self._layers(layers))

    def examples(self, idx: Iterable[int] | None = None) -> Iterator[ExampleActivations]:
        """Examples one after the other; at most one is in memory on our side."""
        for wanted in self.idx if idx is None else idx:
            yield self.example(wanted)

    def layer(self, layer: int) -> "LayerView":
        """One layer over all examples."""
        self._layers([layer])
        return LayerView(self, layer)

    def _layers(self, layers: Sequence[int] | None) -> Sequence[int]:
        if layers is None:
            return range(self.n_layers)
        for layer in layers:
            if not 0 <= layer < self.n_layers:
                raise InputError(
                    f"{self.folder}: no layer {layer}; it holds 0 to {self.n_layers - 1}"
                )
        return layers

    def _tensors(self, idx: int, layers: Sequence[int]) -> ExampleActivations:
        with self._lock:
            slabs = self._shard_file(idx).read(idx, layers)
        dtype = self.fingerprint.dtype
        return ExampleActivations(
            idx=idx,
            token_ids=torch.from_numpy(slabs.token_ids),
            positions=torch.from_numpy(slabs.positions),
            resid=from_bits(slabs.resid, dtype),
            final_norm=from_bits(slabs.final_norm, dtype),
        )

    def _shard_file(self, idx: int) -> ShardFile:
        """The open file that holds `idx`; the least recently used one makes room."""
        if idx not in self._shards:
            raise InputError(f"{self.folder}: does not hold example idx {idx} ({self._holds()})")
        shard = self._shards[idx]
        if shard.number not in self._open:
            path = self.folder / shard.file_name
            self._check_once(path, shard)
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
            raise InputError(
                f"{path}: cannot be read ({error.strerror}); run `lensaudit cache` again to fill it"
            ) from error
        state = (str(path), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if state not in _whole:
            check_bytes(path, self._sealed.get(shard.number))
            _whole.add(state)

    def _holds(self) -> str:
        if not self.idx:
            return "it is empty"
        state = "complete" if self.complete else "incomplete"
        return f"it holds {len(self)}, {min(self.idx)} to {max(self.idx)}, {state}"


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

    def __iter__(self) -> Iterator[ExampleActivations]:
        """Examples one after the other, with this layer alone."""
        for idx in self.idx:
            yield self._activations.example(idx, layers=[self.layer])

    def example(self, idx: int) -> Float[Tensor, "pos d_model"]:
        """The rows of one example."""
        return self._activations.example(idx, layers=[self.layer]).resid[0]

    def rows(self, idx: Iterable[int] | None = None) -> LayerRows:
        """All rows of the examples, end to end; in memory at once."""
        wanted = self.idx if idx is None else tuple(idx)
        found = [self._activations.example(number, layers=[self.layer]) for number in wanted]
        lengths = [len(example.positions) for example in found]
        return LayerRows(
            layer=self.layer,
            idx=wanted,
            offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)),
            positions=torch.cat([example.positions for example in found]),
            resid=torch.cat([example.resid[0] for example in found]),
        )

    def at_span(self, place: int) -> SpanRows:
        """The `place`-th cached row of each example; -1 is the last. Too short ones are listed."""
        present, absent, rows = [], [], []
        for example in self:
            if -len(example.positions) <= place < len(example.positions):
                present.append(example.idx)
                rows.append(example.resid[0, place])
            else:
                absent.append(example.idx)
        empty = torch.empty(0, self._activations.d_model, dtype=self._activations.dtype)
        return SpanRows(
            layer=self.layer,
            idx=tuple(present),
            absent=tuple(absent),
            resid=torch.stack(rows) if rows else empty,
        )
