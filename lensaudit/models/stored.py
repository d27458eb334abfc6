"""The tensors of a checkpoint as they lie in its safetensors files: found by name, read one by one.

Plain reads, no mapping of whole files: what is taken of memory is the tensor that was asked for,
also under a limit of the process (`ulimit -v`). Format: huggingface.co/docs/safetensors.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lensaudit.errors import WorkError
from lensaudit.models.checkpoint import weight_files

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
        """In the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def disk_bytes(self) -> int:
        """That are read for it."""
        return self.n_bytes

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
    found = {}
    for file in weight_files(folder):
        with file.open("rb") as opened:
            n_header = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(n_header))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start = 8 + n_header + entry["data_offsets"][0]
            shape, dtype = tuple(entry["shape"]), DTYPES[entry["dtype"]]
            found[name] = Stored(name, file, start, dtype, shape)
    return found


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
