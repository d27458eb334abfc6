"""Weights that lie packed in four bits, as bitsandbytes saves them: read as what they stand for.

Beside a matrix of two codes per byte stand the sixteen levels (`quant_map`), a scale per block
(`absmax`), itself in eight bits where double quantisation was used, and the rest as JSON. Layout
and arithmetic: bitsandbytes 0.50, `functional.QuantState` and `dequantize_4bit`; arXiv:2305.14314.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lensaudit.errors import InputError
from lensaudit.models.nf4 import from_codes
from lensaudit.models.stored import Stored, stored_tensors

_STATE = ".quant_state.bitsandbytes__"
_PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")


@dataclass(frozen=True, eq=False)
class Packed(Stored):
    """A matrix of four bits; type and shape are those of the matrix that it stands for."""

    codes: Stored
    parts: Mapping[str, Stored]
    state: Mapping[str, Any]

    @property
    def disk_bytes(self) -> int:
        """Of the codes and all beside them."""
        return self.codes.n_bytes + sum(one.n_bytes for one in self.parts.values())

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
