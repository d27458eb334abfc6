"""The activation store: a folder of caches, each found by what determines its numbers.

A cache is read lazily, a few files at a time, each byte checked before it is used: one example's
stream, or one layer over many. It is filled by any number of processes, in any order, each shard
whole or not there.
"""

import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from lensaudit.activations.naming import folder_of
from lensaudit.activations.presence import (
    RESERVE_BYTES,
    InUse,
    check_space,
    check_trusted,
    claim,
    publish,
)
from lensaudit.activations.shard import ShardFile, Slabs, build, check_bytes, check_shard
from lensaudit.activations.spec import (
    REPAIR,
    SEAL,
    SPEC,
    Fingerprint,
    Seal,
    Shard,
    Spec,
    checked_seal,
    read_spec,
    seal_content,
)
from lensaudit.errors import InputError, VerificationError, WorkError
from lensaudit.files import make_folder, os_errors, reading, sync_folder, write_bytes
from lensaudit.partials import sweep_partials
from lensaudit.settings import Place
from lensaudit.turns import in_turn


@dataclass(frozen=True)
class ExampleActivations:
    """The residual stream of one example at the cached positions."""

    idx: int
    token_ids: Int[Tensor, " token"]
    """The whole encoded sequence."""
    positions: Int[Tensor, " pos"]
    """Token positions of the rows, ascending."""
    resid: Float[Tensor, "layer pos d_model"]
    """After each block, before any final norm; in the cache of a component, that component, and
    in one of heads all of them end to end."""
    final_norm: Float[Tensor, "norm_pos d_norm"]
    """The last layer's stream after `ln_final`; no rows in the cache of a component, whose rows
    may be wider than the stream."""

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.resid.shape))
        kind = str(self.resid.dtype).removeprefix("torch.")
        return f"<example idx {self.idx}: {shape} (layer, pos, d_model), {kind}>"

    def at(self, positions: Int[Tensor, " wanted"]) -> "ExampleActivations":
        """The rows at some token positions, in the order asked.

        Raises:
            ValueError: a position was not cached.
            InputError: they are a mask.
        """
        if positions.dtype == torch.bool:
            raise InputError(f"example idx {self.idx}: found a mask, wanted token positions")
        rows = torch.searchsorted(self.positions, positions)
        cached = rows < len(self.positions)
        cached &= self.positions[rows.clamp(max=len(self.positions) - 1)] == positions
        if not cached.all():
            raise ValueError(
                f"example idx {self.idx}: token positions {positions[~cached].tolist()} "
                f"are not cached, {self.positions.tolist()} are"
            )
        return ExampleActivations(
            idx=self.idx,
            token_ids=self.token_ids,
            positions=positions,
            resid=self.resid[:, rows],
            final_norm=self.final_norm[rows] if len(self.final_norm) else self.final_norm,
        )


LARGE = 1e4
"""An activation above it is worth a look, and float16 ends at 65504."""


def to_bits(tensor: Float[Tensor, "*shape"]) -> Shaped[np.ndarray, "*shape"]:
    """The tensor as numpy holds it: float32 and float16 as they are, bfloat16 as uint16 bits."""
    tensor = tensor.detach().cpu().contiguous()
    half = tensor.dtype == torch.bfloat16
    return tensor.view(torch.int16).numpy().view(np.uint16) if half else tensor.numpy()


def from_bits(bits: Shaped[np.ndarray, "*shape"], dtype: str) -> Float[Tensor, "*shape"]:
    """The inverse of `to_bits`, sharing memory."""
    plain = bits.view(np.int16) if dtype == "bfloat16" else bits
    return torch.from_numpy(plain).view(getattr(torch, dtype))


PATIENCE_S = 1800.0
"""A shard of 32 examples takes seconds to minutes; one held for longer counts as free."""
POLL_S = 0.2


class CacheWriter(InUse):
    """Fills a cache folder from one process; several may fill it together.

    `with store.writer(...) as writer:` then, for each `shard` of `writer.claims()`, compute and
    `writer.publish(shard, examples)`; `writer.seal()` at the end.
    """

    def __init__(self, folder: Path, spec: Spec, *, reserve_bytes: int = RESERVE_BYTES):
        super().__init__(folder)
        self.spec, self.reserve_bytes = spec, reserve_bytes

    def missing(self) -> list[Shard]:
        """Shards that no process has published yet."""
        return [shard for shard in self.spec.shards() if not self.path(shard).exists()]

    def n_free(self) -> int:
        """Missing shards that no process works on now."""
        with ExitStack() as held:
            return sum(
                held.enter_context(claim(self.folder, shard.file_name, patience_s=math.inf))
                for shard in self.missing()
            )

    def claims(self, *, patience_s: float = PATIENCE_S) -> Iterator[Shard]:
        """Missing shards, each held until it is published; ends when nothing is left to do.

        Shards that other processes work on are left to them, and waited for; a shard held for
        longer than `patience_s`, or by a process that died, is handed out as well. Publishing may
        lag behind, in another thread.
        """
        held: dict[Shard, ExitStack] = {}
        with ExitStack() as every:
            while missing := [shard for shard in self.missing() if shard not in held]:
                before = len(held)
                for shard in missing:
                    for published in filter(lambda one: self.path(one).exists(), held):
                        held[published].close()
                    hold = every.enter_context(ExitStack())
                    claimed = claim(self.folder, shard.file_name, patience_s=patience_s)
                    if not hold.enter_context(claimed) or self.path(shard).exists():
                        hold.close()
                        continue
                    held[shard] = hold
                    yield shard
                if len(held) == before:
                    time.sleep(POLL_S)

    def path(self, shard: Shard) -> Path:
        """Path of a shard, whether it is there or not."""
        return self.folder / shard.file_name

    def publish(self, shard: Shard, examples: Sequence[ExampleActivations]) -> None:
        """Write one shard, read it back and give it its name; a no-op if it is there and whole.

        Raises:
            ValueError: the examples are not those of the shard, or of another type or shape.
            WorkError: a value is NaN or infinite, or the disk returned other bytes than written.
            TryAgainError: the disk is full; nothing changed.
        """
        if tuple(example.idx for example in examples) != shard.idx:
            raise ValueError(f"shard {shard.number} wants examples {shard.idx}")
        n_large = sum(map(self._check, examples))
        n_bytes = sum(one.resid.nbytes + one.final_norm.nbytes for one in examples)
        check_space(self.folder, n_bytes, reserve_bytes=self.reserve_bytes)
        self.renew()
        slabs = [
            Slabs(
                token_ids=one.token_ids.cpu().numpy().astype(np.int64),
                positions=one.positions.cpu().numpy().astype(np.int64),
                resid=to_bits(one.resid),
                final_norm=to_bits(one.final_norm),
            )
            for one in examples
        ]
        if not publish(self.path(shard), build(self.spec, shard, slabs, n_large=n_large)):
            check_shard(self.path(shard), self.spec, shard)  # somebody was first: theirs counts

    def _check(self, example: ExampleActivations) -> int:
        """Refuse what does not fit the plan, or is not finite; the number of large values."""
        identity, shape = self.spec.fingerprint, tuple(example.resid.shape)
        wanted = (identity.layers, len(example.positions), identity.d_model)
        if shape != wanted or example.resid.dtype != getattr(torch, identity.dtype):
            raise ValueError(
                f"example idx {example.idx}: {shape} {example.resid.dtype}, wanted {wanted} "
                f"{identity.dtype}"
            )
        layers = [one for one in (example.resid, example.final_norm.unsqueeze(0)) if one.numel()]
        # NaN is within no bounds
        if all(low >= -LARGE and high <= LARGE for low, high in map(torch.aminmax, layers)):
            return 0
        size = torch.cat(layers).abs()
        if bad := (~size.isfinite()).any(-1).any(0).nonzero().flatten().tolist():
            raise WorkError(
                f"example idx {example.idx}: NaN or infinity at token position "
                f"{int(example.positions[bad[0]])} "
                f"({len(bad)} of {len(example.positions)} rows) in {identity.dtype}; "
                "nothing was written for its shard: cache it again with a wider --dtype"
            )
        return int((size > LARGE).sum())

    def seal(self) -> None:
        """Write `SEAL.json`, from the bytes on disk, when every shard is there and whole.

        Raises:
            WorkError: shards are missing.
            VerificationError: a shard is damaged.
        """
        if missing := self.missing():
            raise WorkError(
                f"{self.folder}: {len(missing)} of {len(self.spec.shards())} shards are missing "
                f"(first {missing[0].file_name}); run the same `lensaudit cache` command again"
            )
        whole = [check_shard(self.path(one), self.spec, one) for one in self.spec.shards()]
        write_bytes(self.folder / SEAL, seal_content(self.spec, whole))


class Activations(InUse):
    """A cache on disk, read when asked: keeps file handles and indices, no activations."""

    def __init__(self, folder: Path, spec: Spec, seal: Seal | None):
        super().__init__(folder)
        self.spec, self.seal, self.complete = spec, seal, seal is not None
        self.fingerprint = spec.fingerprint
        """What determined these numbers."""
        self.part = spec.fingerprint.part
        """Which part of every layer it holds: the residual stream, or a component."""
        self.n_layers, self.d_model = spec.fingerprint.layers, spec.fingerprint.d_model
        """Cached layers, and the width of a row: of the stream, or of all heads end to end."""
        self.dtype: torch.dtype = getattr(torch, spec.fingerprint.dtype)
        """Type of the tensors given back: that of the model that was cached."""
        self._shards = {
            idx: shard
            for shard in spec.shards()
            if seal or (folder / shard.file_name).exists()
            for idx in shard.idx
        }
        self.idx = tuple(self._shards)
        """Examples that can be read, in the order of the plan."""
        self._open: OrderedDict[int, ShardFile] = OrderedDict()
        self._lock = threading.Lock()
        with suppress(OSError):  # when it was last used, for `gc`; a read-only disk keeps its own
            os.utime(folder / SEAL)

    def __len__(self) -> int:
        return len(self._shards)

    def close(self) -> None:
        """Close the shard files; reading again opens them again."""
        with self._lock:
            for file in self._open.values():
                file.close()
            self._open.clear()
        super().close()

    def example(self, idx: int, *, layers: Sequence[int] | None = None) -> ExampleActivations:
        """One example at all layers, or at `layers` in the order given.

        Raises:
            InputError: the cache does not hold the example or a layer.
            VerificationError: the bytes on disk are not those that were written.
        """
        chosen = range(self.n_layers) if layers is None else layers
        slabs = self.slabs(idx, chosen)
        return ExampleActivations(
            idx=idx,
            token_ids=torch.from_numpy(slabs.token_ids),
            positions=torch.from_numpy(slabs.positions),
            resid=from_bits(slabs.resid, self.fingerprint.dtype),
            final_norm=from_bits(slabs.final_norm, self.fingerprint.dtype),
        )

    def slabs(self, idx: int, layers: Sequence[int], *, final_norm: bool = True) -> Slabs:
        """One example's rows as they are stored; see `example`."""
        self._check_layers(layers)
        if idx not in self._shards:
            there = f"{len(self)}, {min(self.idx)} to {max(self.idx)}" if self.idx else 0
            raise InputError(
                f"{self.folder}: does not hold example idx {idx} (it holds {there}, "
                f"{'complete' if self.complete else 'incomplete'})"
            )
        with self._lock:
            return self._shard_file(self._shards[idx]).read(idx, layers, final_norm=final_norm)

    def _check_layers(self, layers: Sequence[int]) -> None:
        if odd := [layer for layer in layers if not 0 <= layer < self.n_layers]:
            raise InputError(f"{self.folder}: no layer {odd[0]}; it holds 0 to {self.n_layers - 1}")

    def _shard_file(self, shard: Shard) -> ShardFile:
        """The open file of a shard; the least recently used one makes room."""
        if shard.number not in self._open:
            path = self.folder / shard.file_name
            with reading(path, REPAIR):
                stat = path.stat()
            state = (str(path), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if state not in _whole:
                check_bytes(path, (self.seal or {}).get(shard.number))
                _whole.add(state)
            self.renew()
            self._open[shard.number] = ShardFile(path, self.spec, shard)
            if len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(shard.number)
        return self._open[shard.number]


class CacheStore:
    """The caches under one folder."""

    def __init__(self, root: Place, *, reserve_bytes: int = RESERVE_BYTES):
        self.root, self.reserve_bytes = Path(root), reserve_bytes

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
        spec = Spec(name, fingerprint, tuple(map(int, idx)), dict(provenance))
        with in_turn(self.root):  # nobody removes it before the mark is there
            folder = folder_of(fingerprint.key(), self.root) or self.root / spec.folder_name()
            with os_errors(folder):
                folder.mkdir(mode=0o700, exist_ok=True)  # its owner alone can enter
                sync_folder(folder.parent)
            check_trusted(folder)
            sweep_partials(folder)
            if not (folder / SPEC).exists():
                publish(folder / SPEC, (spec.content(),))
            found = read_spec(folder / SPEC)
            check_same(folder, found, fingerprint)
            if found.idx != spec.idx:
                raise InputError(
                    f"{folder}: is planned for {len(found.idx)} examples (first {found.idx[0]}), "
                    f"this run wants {len(spec.idx)} (first {spec.idx[0]}) in another order or "
                    "number; name another --activations folder"
                )
            return CacheWriter(folder, found, reserve_bytes=self.reserve_bytes)

    def open(self, fingerprint: Fingerprint, *, allow_partial: bool = False) -> Activations | None:
        """The cache of these numbers; None when absent, or incomplete unless `allow_partial`.

        Raises:
            VerificationError: the folder of this key says it holds something else.
        """
        with in_turn(self.root):
            folder = folder_of(fingerprint.key(), self.root)
            needed = (SPEC,) if allow_partial else (SPEC, SEAL)
            if folder is None or not all((folder / name).exists() for name in needed):
                return None
            check_trusted(folder)
            spec = read_spec(folder / SPEC)
            check_same(folder, spec, fingerprint)
            return Activations(folder, spec, checked_seal(folder, spec))


def check_same(folder: Path, found: Spec, wanted: Fingerprint) -> None:
    """The identity documents are compared in full: a key is a hash, a document is a fact."""
    held, asked = found.fingerprint.document(), wanted.document()
    if odd := [
        f"{name}: {held[name]}, {asked[name]}" for name in held if held[name] != asked[name]
    ]:
        raise VerificationError(
            f"{folder}: holds {'; '.join(odd)} (the cache's, this run's); run `lensaudit "
            "cache` for the model or name another --activations folder"
        )


OPEN_SHARDS = 32
"""Shard files held open at once: a batch of a sweep is alike in its spans and lies in many."""

_whole: set[tuple[str, int, int, int, int]] = set()
"""Shards this process hashed from end to end: path, device, inode, bytes, time of change."""
