"""The tensors of a checkpoint as they lie in its safetensors files: found by name, read one by one.

Plain reads, no mapping of whole files: what is taken of memory is the tensor that was asked for,
also under a limit of the process (`ulimit -v`). Format: huggingface.co/docs/safetensors.

Matrices that bitsandbytes packed in four bits are read as what they stand for. Beside two codes per
byte stand the sixteen levels (`quant_map`), a scale per block (`absmax`), itself in eight bits
where double quantisation was used, and the rest as JSON. Layout and arithmetic: bitsandbytes 0.50,
`functional.QuantState` and `dequantize_4bit`; arXiv:2305.14314.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lensaudit.errors import InputError, WorkError
from lensaudit.models.checkpoint import header_of, weight_files
from lensaudit.models.quantize import from_codes

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}
"""Safetensors' names of types."""

_BLOCK = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


@dataclass(frozen=True)
class Stored:
    """One tensor in a file; nothing of it is in memory."""

    name: str
    file: Path
    start: int
    """Byte of the file where it begins."""
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Size in the file, bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> Tensor:
        """The tensor, in its stored type.

        Raises:
            WorkError: the file has become shorter.
        """
        flat = torch.empty(math.prod(self.shape), dtype=self.dtype)
        self.read_into(flat)
        return flat.view(self.shape)

    def read_into(self, flat: Tensor) -> None:
        """The tensor end to end into memory of its type.

        Raises:
            WorkError: the file has become shorter.
        """
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.start)
            into, done = flat.view(torch.uint8).numpy().data, 0
            while done < len(into):
                n_read = file.readinto(into[done:])  # at most 2 GiB a call
                if not n_read:
                    raise WorkError(f"{self.file}: ends inside {self.name}; fetch or save it again")
                done += n_read


def stored_tensors(folder: Path) -> Mapping[str, Stored]:
    """Every tensor of a checkpoint by name; only headers are read."""
    return {
        name: Stored(name, file, one["start"], DTYPES[one["dtype"]], tuple(one["shape"]))
        for file in weight_files(folder)
        for name, one in header_of(file).items()
    }


def block_of(name: str) -> int | None:
    """The decoder block that a tensor belongs to; None: to none.

    >>> block_of("model.layers.11.mlp.up_proj.weight"), block_of("model.norm.weight")
    (11, None)
    """
    found = _BLOCK.search(name)
    return None if found is None or "vision" in name else int(found[1])


def block_name(name: str) -> str:
    """The module that holds a block, from one of its tensors.

    >>> block_name("model.layers.11.mlp.up_proj.weight")
    'model.layers.11'
    """
    found = _BLOCK.search(name)
    assert found is not None
    return name[: found.end(1)]


_STATE = ".quant_state.bitsandbytes__"

_PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")


@dataclass(frozen=True, eq=False)
class Packed(Stored):
    """A matrix of four bits; type and shape are those of the matrix that it stands for."""

    codes: Stored
    parts: Mapping[str, Stored]
    state: Mapping[str, Any]

    def read(self) -> Tensor:
        """The matrix, with what rounding left of it."""
        scales = self.parts["absmax"].read()
        if "nested_absmax" in self.parts:
            levels, outer = (self.parts[f"nested_{one}"].read() for one in ("quant_map", "absmax"))
            scales = from_codes(scales, levels, outer, int(self.state["nested_blocksize"]))
            scales = scales + self.state["nested_offset"]
        packed = self.codes.read().flatten()
        n, block = math.prod(self.shape), int(self.state["blocksize"])
        # of two codes the first lies in the upper half of a byte
        codes = torch.stack((packed >> 4, packed & 15), 1).flatten()[:n]
        levels = self.parts["quant_map"].read()
        return from_codes(codes, levels, scales, block).to(self.dtype).view(self.shape)


def weights_of(folder: Path) -> Mapping[str, Stored]:
    """The weights of a checkpoint by name; nothing but headers and states is read.

    Raises:
        InputError: a packed matrix is not whole.
    """
    tensors = dict(stored_tensors(folder))
    for key in [name for name in tensors if _STATE in name]:
        name = key[: key.index(_STATE)]
        try:
            state = json.loads(bytes(tensors.pop(key).read().tolist()))
            codes = tensors.pop(name)
            parts = {
                one: tensors.pop(f"{name}.{one}") for one in _PARTS if f"{name}.{one}" in tensors
            }
            dtype, shape = getattr(torch, state["dtype"]), tuple(state["shape"])
            wanted = _PARTS if "nested_offset" in state else _PARTS[:2]
            if not set(wanted) <= parts.keys() or 2 * codes.n_bytes < math.prod(shape):
                raise KeyError("scales")
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"{folder}: {name} is packed, and not as bitsandbytes saves four bits "
                f"({error}); fetch or save the checkpoint again"
            ) from error
        tensors[name] = Packed(name, codes.file, codes.start, dtype, shape, codes, parts, state)
    return tensors
