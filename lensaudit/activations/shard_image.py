"""The bytes of a shard file, made in memory.

HDF5 writes its metadata and small arrays and only reserves room for the activations, whose own
buffers are put there. So a full disk never meets the HDF5 library, which ends the interpreter with
a segmentation fault when it does, and a writer needs no second copy.
"""

import io
import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import numpy as np
import xxhash
from jaxtyping import Int64

from lensaudit.activations.shard import (
    HASH,
    HEADER_BYTES,
    INTEGER,
    NONFINITE,
    STORED,
    Slabs,
    attributes,
    hash_of,
    header,
)
from lensaudit.activations.spec import Shard, Spec

METADATA_BYTES = 1 << 20
"""More than HDF5 takes beside the arrays of a shard: some kilobytes."""


class Pages(mmap.mmap):
    """A file in memory that takes room only where it was written; the rest reads as zeros."""

    _size = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> None:
        """Move to `offset`."""
        super().seek(offset + (0, self.tell(), self._size)[whence])

    def truncate(self, size: int) -> None:
        """HDF5 says how long the file is."""
        self._size = size

    def write(self, content: Any) -> int:
        """All of `content`, a buffer of HDF5's."""
        n_bytes = super().write(content)
        self._size = max(self._size, self.tell())
        return n_bytes


def build(
    spec: Spec, shard: Shard, examples: Sequence[Slabs], *, n_large: int = 0
) -> tuple[memoryview, ...]:
    """The bytes of the file of `shard`, header first; views of the activations, not copies."""
    identity = spec.fingerprint
    offsets = _edges([len(one.positions) for one in examples])
    hashes = [
        [xxhash.xxh3_64_intdigest(slab.data) for slab in (*one.resid, one.final_norm)]
        for one in examples
    ]
    small = {
        "example_ids": np.array(shard.idx, INTEGER),
        "offsets": offsets,
        "token_offsets": _edges([len(one.token_ids) for one in examples]),
        "token_ids": np.concatenate([one.token_ids for one in examples]),
        "positions": np.concatenate([one.positions for one in examples]),
        "checksums": np.array(hashes, HASH).T,
        NONFINITE: np.zeros(0, INTEGER),
        "spec": np.frombuffer(spec.content(), np.uint8),
    }
    shape = (identity.layers, int(offsets[-1]), identity.d_model)
    large = {
        "final_norm": (identity.norm_shape(shape[1]), [one.final_norm for one in examples]),
        identity.hook: (
            shape,
            [one.resid[layer] for layer in range(identity.layers) for one in examples],
        ),
    }
    room = sum(slab.nbytes for _, slabs in large.values() for slab in slabs)
    memory = Pages(-1, room + sum(one.nbytes for one in small.values()) + METADATA_BYTES)
    with h5py.File(memory, "w", libver=("v110", "v110")) as file:
        for name, value in {**attributes(spec, shard), "n_large": n_large}.items():
            file.attrs[name] = value
        for name, array in small.items():
            file[name] = array
        reserved = {
            _reserve(file, name, shape, STORED[identity.dtype]): slabs
            for name, (shape, slabs) in large.items()
        }
        file.flush()
        n_bytes = file.id.get_filesize()
    parts = tuple(_assemble(memory, n_bytes, reserved))
    return memoryview(header(HEADER_BYTES + sum(map(len, parts)), hash_of(parts))), *parts


def _edges(lengths: Sequence[int]) -> Int64[np.ndarray, " edge"]:
    return np.cumsum([0, *lengths], dtype=INTEGER)


def _reserve(file: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Room for an array in the file; where it begins, -1 if it is empty."""
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_layout(h5py.h5d.CONTIGUOUS)
    create.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    create.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space, kind = h5py.h5s.create_simple(shape), h5py.h5t.py_create(dtype)
    offset = h5py.h5d.create(file.id, name.encode(), kind, space, dcpl=create).get_offset()
    return -1 if offset is None else offset


def _assemble(
    memory: Pages, n_bytes: int, reserved: dict[int, list[np.ndarray]]
) -> Iterator[memoryview]:
    """What HDF5 wrote, with the reserved places filled."""
    end = 0
    for offset, slabs in sorted(reserved.items()):
        if offset >= 0:
            yield memoryview(memory[end:offset])
            yield from (slab.data.cast("B") for slab in slabs if slab.size)
            end = offset + sum(slab.nbytes for slab in slabs)
    yield memoryview(memory[end:n_bytes])
