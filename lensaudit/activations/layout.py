"""Is this HDF5 file laid out as a shard of ours, and nothing else?

A foreign file may point to other files (external links, external storage, virtual datasets), claim
more memory than it has bytes (late allocation, filters, huge attributes) or name strange types.
Only plain contiguous arrays of the expected names, types and shapes pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import h5py
import numpy as np
from jaxtyping import Int64, Shaped

from lensaudit.activations.fingerprint import FORMAT, SCHEMA
from lensaudit.activations.spec import Shard, Spec

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


@dataclass(frozen=True)
class Index:
    """Where each example's rows and tokens lie in a shard, and what they must hash to."""

    offsets: Int64[np.ndarray, " edge"]
    token_offsets: Int64[np.ndarray, " edge"]
    token_ids: Int64[np.ndarray, " token"]
    positions: Int64[np.ndarray, " row"]
    checksums: Shaped[np.ndarray, "slab example"]
    """XXH3-64 of each layer's rows of each example; the last slab is `final_norm`."""
    spec: bytes
    """The bytes of `spec.json`: a shard alone tells what it is."""


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


def read_index(file: h5py.File, spec: Spec, shard: Shard) -> Index:
    """Check the layout, then read everything but the activations.

    Raises:
        ValueError: what differs from a shard of ours, in words.
    """
    hook = spec.fingerprint.hook
    integers = ("example_ids", *_INTEGER_ARRAYS, NONFINITE)
    check_names(file, {hook, "final_norm", "spec", "checksums", *integers})
    check_attributes(file, attributes(spec, shard))
    vectors = {name: _array(file, name, INTEGER, 1) for name in integers}
    index = Index(
        **{name: vectors[name] for name in _INTEGER_ARRAYS},
        checksums=_array(file, "checksums", HASH, 2),
        spec=_array(file, "spec", BYTE, 1).tobytes(),
    )
    if tuple(vectors["example_ids"].tolist()) != shard.idx:
        raise ValueError(f"holds other examples than shard {shard.number} of its spec.json")
    check_index(index, n_examples=len(shard.idx), n_slabs=spec.fingerprint.layers + 1)
    return index


def activation_arrays(
    file: h5py.File, spec: Spec, index: Index
) -> tuple[h5py.Dataset, h5py.Dataset]:
    """The stream or component, and `final_norm`, of the type and shape that the spec implies.

    Raises:
        ValueError: they are not.
    """
    stored = STORED[spec.fingerprint.dtype]
    shape = (spec.fingerprint.layers, len(index.positions), spec.fingerprint.d_model)
    return (
        check_array(file, spec.fingerprint.hook, stored, shape),
        check_array(file, "final_norm", stored, spec.fingerprint.norm_shape(shape[1])),
    )


_INTEGER_ARRAYS = ("offsets", "token_offsets", "token_ids", "positions")
NONFINITE = "nonfinite_rows"
"""Rows that hold NaN or infinity: the format has room for them, and none is ever written."""


def check_names(file: h5py.File, wanted: set[str]) -> None:
    """Exactly the wanted datasets, by hard links: no link that leaves the file."""
    if len(file) != len(wanted):
        raise ValueError(f"holds {len(file)} objects, a shard has {len(wanted)}")
    for name in wanted:
        if type(file.get(name, getlink=True)) is not h5py.HardLink:
            raise ValueError(f"{name} is missing or a link")


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
    file: h5py.File, name: str, dtype: np.dtype, shape: tuple[int, ...] | None = None
) -> h5py.Dataset:
    """A plain array whose bytes are all in this file.

    Raises:
        ValueError: external, virtual, chunked, filtered, unallocated, or of another type or shape.
    """
    data = file[name]
    if not isinstance(data, h5py.Dataset):
        raise ValueError(f"{name} is not an array")
    create = data.id.get_create_plist()
    if data.is_virtual or data.external or create.get_nfilters():
        raise ValueError(f"{name} is external, virtual or filtered")
    if create.get_layout() != h5py.h5d.CONTIGUOUS:
        raise ValueError(f"{name} is not contiguous")
    if data.dtype != dtype:
        raise ValueError(f"{name} is of type {data.dtype}, wanted {dtype}")
    if shape is not None and data.shape != shape:
        raise ValueError(f"{name} has shape {data.shape}, wanted {shape}")
    if data.size and data.id.get_storage_size() != data.size * dtype.itemsize:
        raise ValueError(f"{name} claims more than it holds")
    return data


def _array(file: h5py.File, name: str, dtype: np.dtype, n_axes: int) -> np.ndarray:
    data = check_array(file, name, dtype)
    if data.ndim != n_axes:
        raise ValueError(f"{name} has {data.ndim} axes, wanted {n_axes}")
    return data[...]


def check_index(index: Index, *, n_examples: int, n_slabs: int) -> None:
    """Offsets that rise from 0 to the end, ascending positions inside the sequence.

    Raises:
        ValueError: what is wrong.
    """
    ends = ((index.offsets, index.positions), (index.token_offsets, index.token_ids))
    for offsets, values in ends:
        rises = len(offsets) == n_examples + 1 and bool((np.diff(offsets) >= 0).all())
        if not rises or offsets[0] != 0 or offsets[-1] != len(values):
            raise ValueError("offsets do not fit the rows or tokens")
    if index.checksums.shape != (n_slabs, n_examples):
        raise ValueError(f"checksums have shape {index.checksums.shape}")
    for slot in range(n_examples):
        positions = index.positions[index.offsets[slot] : index.offsets[slot + 1]]
        n_tokens = index.token_offsets[slot + 1] - index.token_offsets[slot]
        check_positions(positions, int(n_tokens))


def check_positions(positions: Int64[np.ndarray, " pos"], n_tokens: int) -> None:
    """Ascending, and inside a sequence of `n_tokens`.

    Raises:
        ValueError: they are not.
    """
    if len(positions) == 0:
        return
    if positions[0] < 0 or positions[-1] >= n_tokens or (np.diff(positions) <= 0).any():
        raise ValueError(f"positions are not ascending inside {n_tokens} tokens")
