"""The bytes of a shard file, made without touching the disk or copying the activations.

HDF5 writes its metadata and small arrays to memory and only reserves room for the activations;
the file is that memory with the activations' own buffers put in the reserved places. So a full
disk never meets the HDF5 library, which ends the interpreter with a segmentation fault when it
does, and a writer needs no second copy of a shard.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import xxhash
from jaxtyping import Int64, Shaped

from lensaudit.activations.fingerprint import FORMAT
from lensaudit.activations.layout import HASH, INTEGER, NONFINITE, STORED, attributes
from lensaudit.activations.spec import SealedShard, Shard, Spec

PAGE_BYTES = 4096
HEADER_BYTES = 512
"""HDF5's user block: any HDF5 tool skips it."""


@dataclass(frozen=True)
class Slabs:
    """One example as stored: numbers in the shard's stored type."""

    idx: int
    token_ids: Int64[np.ndarray, " token"]
    positions: Int64[np.ndarray, " pos"]
    resid: Shaped[np.ndarray, "layer pos d_model"]
    final_norm: Shaped[np.ndarray, "norm_pos d_model"]
    """Of the same positions; no rows where it was not asked for."""


@dataclass(frozen=True)
class Image:
    """A shard file in memory."""

    parts: tuple[memoryview, ...]
    """Its bytes in order, header first; views of the activations, not copies."""
    sealed: SealedShard
    """What a seal says about it."""


class Pages:
    """A file in memory that takes room only where it was written; the rest reads as zeros."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._at = self._size = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to `offset`."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """Where the next byte is read or written."""
        return self._at

    def truncate(self, size: int | None = None) -> int:
        """HDF5 says how long the file is."""
        self._size = self._at if size is None else size
        return self._size

    def write(self, content: Any) -> int:
        """All of `content`, a buffer of HDF5's."""
        left = memoryview(content).cast("B")
        n_bytes = len(left)
        for page, start, end in self._spans(self._at, self._at + n_bytes):
            stored = self._pages.setdefault(page, bytearray(PAGE_BYTES))
            stored[start:end] = left[: end - start]
            left = left[end - start :]
        self._at += n_bytes
        self._size = max(self._size, self._at)
        return n_bytes

    def read(self, size: int = -1) -> memoryview:
        """The next `size` bytes."""
        end = self._size if size < 0 else self._at + size
        found = self.between(self._at, end)
        self._at = end
        return found

    def flush(self) -> None:
        """Nothing waits."""

    def between(self, start: int, end: int) -> memoryview:
        """Bytes `start:end`."""
        blank = bytes(PAGE_BYTES)
        spans = self._spans(start, end)
        return memoryview(
            b"".join(self._pages.get(page, blank)[first:last] for page, first, last in spans)
        )

    @staticmethod
    def _spans(start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Pages, each with the part of it that lies in `start:end`."""
        for page in range(start // PAGE_BYTES, -(-end // PAGE_BYTES)):
            base = page * PAGE_BYTES
            yield page, max(start - base, 0), min(end - base, PAGE_BYTES)


def header(n_bytes: int, xxh3_128: str) -> bytes:
    """The user block, in text: the file's size and the hash of all that follows."""
    text = f"{FORMAT} shard\nbytes {n_bytes}\nxxh3_128 {xxh3_128}\n"
    return text.encode().ljust(HEADER_BYTES, b"\n")


def slab_hashes(slabs: Iterable[np.ndarray]) -> Shaped[np.ndarray, " slab"]:
    """XXH3-64 of each array's bytes."""
    return np.array([xxhash.xxh3_64_intdigest(slab.data) for slab in slabs], HASH)


def build(spec: Spec, shard: Shard, examples: Sequence[Slabs], *, n_large: int = 0) -> Image:
    """The file of `shard`, from the slabs of its examples in order."""
    fingerprint = spec.fingerprint
    offsets = _edges([len(example.positions) for example in examples])
    shape = (fingerprint.layers, int(offsets[-1]), fingerprint.d_model)
    memory = Pages()
    with h5py.File(memory, "w", libver=("v110", "v110")) as file:
        for name, value in attributes(spec, shard).items():
            file.attrs[name] = value
        file.attrs["n_large"] = n_large
        for name, array in _small_arrays(spec, shard, examples, offsets).items():
            file[name] = array
        reserved = {
            _reserve(
                file, "final_norm", fingerprint.norm_shape(shape[1]), STORED[fingerprint.dtype]
            ): [example.final_norm for example in examples],
            _reserve(file, fingerprint.hook, shape, STORED[fingerprint.dtype]): [
                example.resid[layer] for layer in range(fingerprint.layers) for example in examples
            ],
        }
        file.flush()
        n_bytes = file.id.get_filesize()
    parts = tuple(_assemble(memory, n_bytes, reserved))
    return _with_header(shard, parts)


def _edges(lengths: Sequence[int]) -> Int64[np.ndarray, " edge"]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(INTEGER)


def _small_arrays(
    spec: Spec, shard: Shard, examples: Sequence[Slabs], offsets: Int64[np.ndarray, " edge"]
) -> dict[str, np.ndarray]:
    """Everything but the activations."""
    hashes = [slab_hashes([*example.resid, example.final_norm]) for example in examples]
    return {
        "example_ids": np.array(shard.idx, INTEGER),
        "offsets": offsets,
        "token_offsets": _edges([len(example.token_ids) for example in examples]),
        "token_ids": np.concatenate([example.token_ids for example in examples]),
        "positions": np.concatenate([example.positions for example in examples]),
        "checksums": np.stack(hashes, axis=1),
        NONFINITE: np.zeros(0, INTEGER),
        "spec": np.frombuffer(spec.content(), np.uint8),
    }


def _reserve(file: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Room for an array in the file; where it begins, -1 if it is empty."""
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_layout(h5py.h5d.CONTIGUOUS)
    create.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    create.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space, kind = h5py.h5s.create_simple(shape), h5py.h5t.py_create(dtype)
    data = h5py.h5d.create(file.id, name.encode(), kind, space, dcpl=create)
    offset = data.get_offset()
    return -1 if offset is None else offset


def _assemble(
    memory: Pages, n_bytes: int, reserved: dict[int, list[np.ndarray]]
) -> Iterator[memoryview]:
    """What HDF5 wrote, with the reserved places filled."""
    end = 0
    for offset, slabs in sorted(reserved.items()):
        if offset < 0:
            continue
        yield memory.between(end, offset)
        yield from (slab.data.cast("B") for slab in slabs if slab.size)
        end = offset + sum(slab.nbytes for slab in slabs)
    yield memory.between(end, n_bytes)


def _with_header(shard: Shard, parts: tuple[memoryview, ...]) -> Image:
    hasher = xxhash.xxh3_128()
    for part in parts:
        hasher.update(part)
    n_bytes = HEADER_BYTES + sum(map(len, parts))
    sealed = SealedShard(number=shard.number, n_bytes=n_bytes, xxh3_128=hasher.hexdigest())
    first = memoryview(header(n_bytes, sealed.xxh3_128))
    return Image(parts=(first, *parts), sealed=sealed)
