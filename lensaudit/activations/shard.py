"""One shard file: an HDF5 image behind a 512-byte header that holds the hash of the rest.

The header is HDF5's user block: any HDF5 tool skips it. Arrays are contiguous and unfiltered, so a
small file cannot claim much memory, and each (layer, example) slab has its own XXH3-64, checked
on every read. The whole file's XXH3-128 is checked before the HDF5 library sees a byte of it.
"""

import math
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import h5py
import numpy as np
import xxhash
from jaxtyping import Int64, Shaped

from lensaudit.activations.fingerprint import FORMAT
from lensaudit.activations.layout import HASH, INTEGER, STORED, attributes, read_index
from lensaudit.activations.spec import SealedShard, Shard, Spec
from lensaudit.errors import InputError, LensAuditError, VerificationError
from lensaudit.files import os_error

HEADER_BYTES = 512
HASH_BLOCK_BYTES = 1 << 20
SHARD_ERRORS = (OSError, KeyError, ValueError, RuntimeError, TypeError, AttributeError)
"""What h5py raises on a damaged file."""


@dataclass(frozen=True)
class Slabs:
    """One example as stored: numbers in the shard's stored type."""

    idx: int
    token_ids: Int64[np.ndarray, " token"]
    positions: Int64[np.ndarray, " pos"]
    resid: Shaped[np.ndarray, "layer pos d_model"]
    final_norm: Shaped[np.ndarray, "pos d_model"]
    nonfinite_rows: Int64[np.ndarray, " bad"]
    """Rows, counted in this example, that hold NaN or infinity."""


def header(n_bytes: int, xxh3_128: str) -> bytes:
    """The user block: what the rest of the file is, in text."""
    text = f"{FORMAT} shard\nbytes {n_bytes}\nxxh3_128 {xxh3_128}\n"
    return text.encode().ljust(HEADER_BYTES, b"\n")


def build(
    spec: Spec, shard: Shard, examples: Sequence[Slabs], *, n_large: int = 0
) -> tuple[bytes, bytes]:
    """Header and HDF5 image of a shard, built in memory: a full disk cannot break it half-way.

    Writing HDF5 to a full disk ends the interpreter with a segmentation fault at exit.
    """
    fingerprint = spec.fingerprint
    rows = [len(example.positions) for example in examples]
    tokens = [len(example.token_ids) for example in examples]
    offsets = np.concatenate([[0], np.cumsum(rows)]).astype(INTEGER)
    shape = (fingerprint.layers, int(offsets[-1]), fingerprint.d_model)
    stored = STORED[fingerprint.dtype]
    with _memory_file(math.prod(shape) * stored.itemsize) as file:
        for name, value in attributes(spec, shard).items():
            file.attrs[name] = value
        file.attrs["n_large"] = n_large
        file["example_ids"] = np.array(shard.idx, INTEGER)
        file["offsets"] = offsets
        file["token_offsets"] = np.concatenate([[0], np.cumsum(tokens)]).astype(INTEGER)
        file["token_ids"] = np.concatenate([example.token_ids for example in examples])
        file["positions"] = np.concatenate([example.positions for example in examples])
        file["checksums"] = np.stack([slab_hashes(example) for example in examples], axis=1)
        file["nonfinite_rows"] = np.concatenate(
            [
                start + example.nonfinite_rows
                for start, example in zip(offsets[:-1], examples, strict=True)
            ]
        )
        file["spec"] = np.frombuffer(spec.content(), np.uint8)
        resid = file.create_dataset(fingerprint.hook, shape, stored)
        final_norm = file.create_dataset("final_norm", shape[1:], stored)
        for start, end, example in zip(offsets[:-1], offsets[1:], examples, strict=True):
            if end > start:
                resid[:, start:end] = example.resid
                final_norm[start:end] = example.final_norm
        file.flush()
        image = file.id.get_file_image()
    n_bytes = HEADER_BYTES + len(image)
    return header(n_bytes, xxhash.xxh3_128_hexdigest(image)), image


def slab_hashes(example: Slabs) -> Shaped[np.ndarray, " slab"]:
    """XXH3-64 per layer, then of `final_norm`."""
    slabs = [*example.resid, example.final_norm]
    hashes = [xxhash.xxh3_64_intdigest(np.ascontiguousarray(slab)) for slab in slabs]
    return np.array(hashes, HASH)


def _memory_file(n_bytes: int) -> h5py.File:
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fapl_core(max(1 << 16, min(n_bytes // 8, 1 << 26)), False)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    return h5py.File(h5py.h5f.create(b"shard", h5py.h5f.ACC_TRUNC, fapl=access))


def check_bytes(path: Path, sealed: SealedShard | None = None) -> SealedShard:
    """Hash the whole file and compare with its header, and with the seal if there is one.

    Raises:
        VerificationError: any byte differs from what was written.
        InputError | WorkError: the file is missing or cannot be read.
    """
    try:
        with path.open("rb", buffering=0) as stream:
            first = stream.read(HEADER_BYTES)
            found = hash_rest(stream)
            n_bytes = stream.tell()
    except FileNotFoundError as error:
        raise InputError(
            f"{path}: no such shard; run `lensaudit cache` again to fill it"
        ) from error
    except OSError as error:
        raise os_error(error, path) from error
    if first != header(n_bytes, found):
        raise VerificationError(
            f"{path}: {n_bytes} bytes hash to {found}, its header says otherwise: damaged; "
            "run `lensaudit activations repair`"
        )
    number = int(path.stem.rpartition("-")[2])
    checked = SealedShard(number=number, n_bytes=n_bytes, xxh3_128=found)
    if sealed is not None and checked != sealed:
        raise VerificationError(
            f"{path}: holds {n_bytes} bytes {found}, "
            f"the seal says {sealed.n_bytes} bytes {sealed.xxh3_128}; "
            "run `lensaudit activations repair`"
        )
    return checked


def hash_rest(stream: BinaryIO) -> str:
    """XXH3-128 from the stream's position to its end."""
    hasher = xxhash.xxh3_128()
    block = memoryview(bytearray(HASH_BLOCK_BYTES))
    while count := stream.readinto(block):
        hasher.update(block[:count])
    return hasher.hexdigest()


def check_shard(
    path: Path, spec: Spec, shard: Shard, sealed: SealedShard | None = None
) -> SealedShard:
    """Check every byte, the structure, and each slab of a shard; what a seal says about it.

    Raises:
        VerificationError: it is damaged or belongs elsewhere.
    """
    checked = check_bytes(path, sealed)
    with closing(ShardFile(path, spec, shard)) as file:
        for idx in shard.idx:
            file.read(idx, range(spec.fingerprint.layers))
    return checked


class ShardFile:
    """An open shard whose bytes and structure were checked; reads check their slabs again."""

    def __init__(self, path: Path, spec: Spec, shard: Shard):
        """Open after `check_bytes`: the HDF5 library must not see damaged bytes.

        Raises:
            VerificationError: the structure is not that of shard `shard` of `spec`.
        """
        self.path, self.spec, self.shard = path, spec, shard
        self._lock = threading.Lock()
        try:
            # no lock call: published shards never change, and some network disks refuse locks
            self._file = h5py.File(path, "r", locking=False)
        except FileNotFoundError as error:
            raise InputError(f"{path}: no such shard; run `lensaudit cache` again") from error
        except OSError as error:
            raise VerificationError(f"{path}: not HDF5 ({error}); {_REPAIR}") from error
        try:
            self.index = read_index(self._file, spec, shard)
            self._resid = self._file[spec.fingerprint.hook]
            self._final_norm = self._file["final_norm"]
        except SHARD_ERRORS as error:
            self.close()
            raise VerificationError(f"{path}: not a shard of ours ({error}); {_REPAIR}") from error
        except LensAuditError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, idx: int, layers: Sequence[int]) -> Slabs:
        """The rows of one example at `layers`, checked against their hashes.

        Raises:
            VerificationError: the bytes read are not the bytes written.
        """
        slot = self.shard.idx.index(idx)
        start, end = (int(edge) for edge in self.index.offsets[slot : slot + 2])
        first, last = (int(edge) for edge in self.index.token_offsets[slot : slot + 2])
        bad = self.index.nonfinite_rows
        slabs = Slabs(
            idx=idx,
            token_ids=self.index.token_ids[first:last],
            positions=self.index.positions[start:end],
            resid=self._rows(start, end, layers),
            final_norm=self._final_rows(start, end),
            nonfinite_rows=np.array([row - start for row in bad if start <= row < end], INTEGER),
        )
        wanted = self.index.checksums[[*layers, -1], slot]
        wrong = np.flatnonzero(slab_hashes(slabs) != wanted)
        if len(wrong):
            place = [*(f"layer {layer}" for layer in layers), "final_norm"][wrong[0]]
            raise VerificationError(
                f"{self.path}: example idx {idx}, {place} is not what was written; {_REPAIR}"
            )
        return slabs

    def _rows(self, start: int, end: int, layers: Sequence[int]) -> np.ndarray:
        fingerprint = self.spec.fingerprint
        rows = np.empty((len(layers), end - start, fingerprint.d_model), self._resid.dtype)
        if end == start or not layers:
            return rows
        with self._lock:
            if list(layers) == list(range(layers[0], layers[0] + len(layers))):
                self._resid.read_direct(rows, np.s_[layers[0] : layers[-1] + 1, start:end])
            else:
                for row, layer in enumerate(layers):
                    self._resid.read_direct(rows, np.s_[layer, start:end], np.s_[row])
        return rows

    def _final_rows(self, start: int, end: int) -> np.ndarray:
        rows = np.empty((end - start, self.spec.fingerprint.d_model), self._final_norm.dtype)
        if end > start:
            with self._lock:
                self._final_norm.read_direct(rows, np.s_[start:end])
        return rows


_REPAIR = "run `lensaudit activations repair`"
