"""A shard file: its layout, how it is made in memory, checked and read.

The whole file's hash is compared before HDF5 sees it, each slab's when it is read. Arrays are
contiguous and unfiltered, so a small file cannot claim much memory, and each (layer, example) slab
has its own XXH3-64: a read touches and checks exactly the bytes it returns. A foreign file may
point to other files, claim more memory than it has bytes or name strange types: only plain arrays
of the expected names, types and shapes pass.

To make one, HDF5 writes its metadata and small arrays and only reserves room for the activations,
whose own buffers are put there. So a full disk never meets the HDF5 library, which ends the
interpreter with a segmentation fault when it does, and a writer needs no second copy.
"""

import hashlib
import io
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash
from jaxtyping import Int64, Shaped

from lensaudit.activations.spec import FORMAT, REPAIR, SCHEMA, SealedShard, Shard, Spec
from lensaudit.errors import VerificationError
from lensaudit.files import os_errors, reading

SHARD_ERRORS = (OSError, KeyError, ValueError, RuntimeError, TypeError, AttributeError)
"""What h5py raises on a damaged file."""


def check_bytes(path: Path, sealed: SealedShard | None = None) -> SealedShard:
    """Hash the whole file and compare with its header, and with the seal if there is one.

    Raises:
        VerificationError: any byte differs from what was written.
        InputError | WorkError: the file is missing, no ordinary one, or cannot be read.
    """
    with reading(path, REPAIR), path.open("rb", buffering=0) as stream:
        first = stream.read(HEADER_BYTES)
        found = hash_rest(stream)
        n_bytes = stream.tell()
    if first != header(n_bytes, found):
        raise VerificationError(
            f"{path}: {n_bytes} bytes hash to {found}, its header says otherwise: damaged; {REPAIR}"
        )
    checked = SealedShard(int(path.stem.rpartition("-")[2]), n_bytes, found)
    if sealed is not None and checked != sealed:
        raise VerificationError(
            f"{path}: holds {n_bytes} bytes {found}, "
            f"the seal says {sealed.n_bytes} bytes {sealed.xxh3_128}; {REPAIR}"
        )
    return checked


def hash_rest(stream: io.RawIOBase) -> str:
    """XXH3-128 from the stream's position to its end."""
    return hashlib.file_digest(stream, xxhash.xxh3_128).hexdigest()


def hash_of(parts: Iterable[bytes | memoryview]) -> str:
    """XXH3-128 of parts end to end."""
    hasher = xxhash.xxh3_128()
    for part in parts:
        hasher.update(part)
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


@dataclass(frozen=True)
class Slabs:
    """One example as stored: numbers in the shard's stored type."""

    token_ids: Int64[np.ndarray, " token"]
    positions: Int64[np.ndarray, " pos"]
    resid: Shaped[np.ndarray, "layer pos d_model"]
    final_norm: Shaped[np.ndarray, "norm_pos d_norm"]
    """Of the same positions; no rows where it was not asked for."""


class ShardFile:
    """An open shard whose bytes and structure were checked; reads check their slabs again."""

    def __init__(self, path: Path, spec: Spec, shard: Shard):
        """Open after `check_bytes`: the HDF5 library must not see damaged bytes.

        Raises:
            VerificationError: the structure is not that of shard `shard` of `spec`.
        """
        self.path, self.shard = path, shard
        with ExitStack() as opened:
            try:
                # no lock call: published shards never change, and some network disks refuse locks
                file = opened.enter_context(h5py.File(path, "r", locking=False))
                self.index, self._resid, self._final_norm = read_arrays(file, spec, shard)
            except SHARD_ERRORS as error:
                raise VerificationError(
                    f"{path}: not a shard that lensaudit wrote ({error}); {REPAIR}"
                ) from error
            self.close = opened.pop_all().close

    def read(self, idx: int, layers: Sequence[int], *, final_norm: bool = True) -> Slabs:
        """The rows of one example at `layers`, checked against their hashes.

        Raises:
            VerificationError: the bytes read are not the bytes written.
            WorkError: the disk cannot be read.
        """
        slot = self.shard.idx.index(idx)
        start, end = self.index["offsets"][slot : slot + 2].tolist()
        tokens = slice(*self.index["token_offsets"][slot : slot + 2].tolist())
        first, last = (layers[0], layers[-1] + 1) if layers else (0, 0)
        with os_errors(self.path):
            if list(layers) == list(range(first, last)):
                resid = self._resid[first:last, start:end]
            else:
                resid = np.stack([self._resid[layer, start:end] for layer in layers])
            final = self._final_norm[start : end if final_norm else start]
        sums = self.index["checksums"][:, slot]
        slabs = {f"layer {at}": (rows, sums[at]) for at, rows in zip(layers, resid, strict=True)}
        slabs |= {"final_norm": (final, sums[-1])} if final_norm else {}
        for place, (rows, wanted) in slabs.items():
            if xxhash.xxh3_64_intdigest(rows.data) != wanted:
                raise VerificationError(
                    f"{self.path}: example idx {idx}, {place} is not what was written; {REPAIR}"
                )
        return Slabs(
            token_ids=self.index["token_ids"][tokens].copy(),
            positions=self.index["positions"][start:end].copy(),
            resid=resid,
            final_norm=final,
        )


STORED = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2")}
"""HDF5 has no bfloat16: its bits are stored as uint16."""

INTEGER = np.dtype("<i8")

HASH = np.dtype("<u8")

BYTE = np.dtype("u1")

ABOUT = (
    "Residual streams of a language model after each block: [layer, row, d_model]; final_norm is "
    "the last of them after the final norm. Rows offsets[n]:offsets[n+1] are of example "
    "example_ids[n], at its token positions positions[row]; its tokens are "
    "token_ids[token_offsets[n]:token_offsets[n+1]]. logical_dtype bfloat16 is stored as its bits "
    "in uint16. checksums are XXH3-64 of each layer's rows of each example, then of final_norm. "
    "spec is the JSON that identifies the model, the data and how to make this again."
)

ABOUT_PART = ABOUT.replace(
    "Residual streams of a language model after each block: [layer, row, d_model]; final_norm is "
    "the last of them after the final norm.",
    "One component of every layer of a language model, named by its hook: [layer, row, width]; "
    "heads lie end to end in a row; final_norm is empty.",
)


Index = Mapping[str, np.ndarray]
"""Where each example's rows and tokens lie in a shard: its small arrays, by name.

`checksums` are XXH3-64 of each layer's rows of each example; the last slab is `final_norm`."""


def attributes(spec: Spec, shard: Shard) -> dict[str, str | int]:
    """The attributes of the file's root."""
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "key": spec.fingerprint.key(),
        "shard": shard.number,
        "logical_dtype": spec.fingerprint.dtype,
        "complete": 1,
        "about": ABOUT if spec.fingerprint.part == "resid" else ABOUT_PART,
    }


def read_arrays(
    file: h5py.File, spec: Spec, shard: Shard
) -> tuple[Index, h5py.Dataset, h5py.Dataset]:
    """Check the layout, then read the small arrays; with the activations and `final_norm`, unread.

    Raises:
        ValueError: what differs from a shard of ours, in words.
    """
    identity, n = spec.fingerprint, len(shard.idx)
    check_attributes(file, attributes(spec, shard))
    layout = {
        "example_ids": (INTEGER, (n,)),
        "offsets": (INTEGER, (n + 1,)),
        "token_offsets": (INTEGER, (n + 1,)),
        "token_ids": (INTEGER, (None,)),
        "positions": (INTEGER, (None,)),
        NONFINITE: (INTEGER, (None,)),
        "checksums": (HASH, (identity.layers + 1, n)),
        "spec": (BYTE, (None,)),
    }
    if len(file) != len(layout) + 2:
        raise ValueError(f"holds {len(file)} objects, a shard has {len(layout) + 2}")
    index = {name: check_array(file, name, *wanted)[...] for name, wanted in layout.items()}
    if tuple(index["example_ids"].tolist()) != shard.idx:
        raise ValueError(f"holds other examples than shard {shard.number} of its spec.json")
    edges, token_edges = index["offsets"], index["token_offsets"]
    for offsets, values in ((edges, index["positions"]), (token_edges, index["token_ids"])):
        if (np.diff(offsets) < 0).any() or offsets[0] != 0 or offsets[-1] != len(values):
            raise ValueError("offsets do not fit the rows or tokens")
    for (start, end), n_tokens in zip(pairwise(edges), np.diff(token_edges), strict=True):
        # ascending, and inside the sequence
        if (np.diff(index["positions"][start:end], prepend=-1, append=n_tokens) <= 0).any():
            raise ValueError(f"positions are not ascending inside {n_tokens} tokens")
    n_rows, stored = len(index["positions"]), STORED[identity.dtype]
    shape = (identity.layers, n_rows, identity.d_model)
    resid = check_array(file, identity.hook, stored, shape)
    return index, resid, check_array(file, "final_norm", stored, identity.norm_shape(n_rows))


NONFINITE = "nonfinite_rows"
"""Rows that hold NaN or infinity: the format has room for them, and none is ever written."""


def check_attributes(file: h5py.File, wanted: Mapping[str, str | int]) -> None:
    """Exactly the wanted attributes and `n_large`; each is a scalar, so none claims memory."""
    if set(file.attrs) != {*wanted, "n_large"}:
        raise ValueError(f"has attributes {sorted(file.attrs)!r:.80}")
    for name in file.attrs:
        if file.attrs.get_id(name).shape != ():
            raise ValueError(f"attribute {name} is not a single value")
    for name, value in wanted.items():
        if (found := file.attrs[name]) != value:
            raise ValueError(f"{name} is {found!s:.40}, its place wants {value!s:.40}")


def check_array(
    file: h5py.File, name: str, dtype: np.dtype, shape: tuple[int | None, ...]
) -> h5py.Dataset:
    """A plain array whose bytes are all in this file; None in its shape is any length.

    Raises:
        ValueError: a link, external, virtual, chunked, filtered, unallocated, or of another type or
            shape.
    """
    if type(file.get(name, getlink=True)) is not h5py.HardLink:
        raise ValueError(f"{name} is missing or a link")
    if not isinstance(data := file[name], h5py.Dataset):
        raise ValueError(f"{name} is not an array")
    create = data.id.get_create_plist()
    if data.is_virtual or data.external or create.get_nfilters():
        raise ValueError(f"{name} is external, virtual or filtered")
    if create.get_layout() != h5py.h5d.CONTIGUOUS:
        raise ValueError(f"{name} is not contiguous")
    if data.dtype != dtype:
        raise ValueError(f"{name} is of type {data.dtype}, wanted {dtype}")
    wanted = [n if n is not None else found for n, found in zip(shape, data.shape, strict=False)]
    if data.shape != tuple(wanted):
        raise ValueError(f"{name} has shape {data.shape}, wanted {shape}")
    if data.size and data.id.get_storage_size() != data.size * dtype.itemsize:
        raise ValueError(f"{name} claims more than it holds")
    return data


HEADER_BYTES = 512
"""HDF5's user block: any HDF5 tool skips it."""


def header(n_bytes: int, xxh3_128: str) -> bytes:
    """The user block, in text: the file's size and the hash of all that follows."""
    text = f"{FORMAT} shard\nbytes {n_bytes}\nxxh3_128 {xxh3_128}\n"
    return text.encode().ljust(HEADER_BYTES, b"\n")


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
