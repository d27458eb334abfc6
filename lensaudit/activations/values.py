"""Torch tensors as stored bits and back, exactly; and which of them are not plain numbers."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class _Bits:
    """A float type seen as unsigned integers, whose order is that of the magnitudes."""

    kind: type[np.unsignedinteger]
    magnitude: int
    infinity: int
    large: int
    """1e4: an activation above it is worth a look, and float16 ends at 65504."""


_BITS = {
    "float32": _Bits(np.uint32, 0x7FFFFFFF, 0x7F800000, 0x461C4000),
    "float16": _Bits(np.uint16, 0x7FFF, 0x7C00, 0x70E2),
    "bfloat16": _Bits(np.uint16, 0x7FFF, 0x7F80, 0x461C),
}


@dataclass(frozen=True)
class Extremes:
    """What is unusual about some rows."""

    nonfinite_rows: Int64[np.ndarray, " bad"]
    n_large: int
    """Values with 1e4 < |x| < infinity."""


def to_bits(tensor: Float[Tensor, "*shape"]) -> Shaped[np.ndarray, "*shape"]:
    """The tensor as numpy holds it: float32 and float16 as they are, bfloat16 as uint16 bits."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def from_bits(bits: Shaped[np.ndarray, "*shape"], dtype: str) -> Float[Tensor, "*shape"]:
    """The inverse of `to_bits`, sharing memory."""
    if dtype == "bfloat16":
        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(bits)


def extremes(bits: Shaped[np.ndarray, "... row d_model"], dtype: str) -> Extremes:
    """Rows that hold a NaN or an infinity at any layer, and the count of large values.

    >>> extremes(np.array([[0.0, 1.0], [np.inf, 2e4]], np.float32), "float32")
    Extremes(nonfinite_rows=array([1]), n_large=1)
    """
    view = _BITS[dtype]
    magnitude = bits.view(view.kind) & view.kind(view.magnitude)
    if magnitude.size == 0 or magnitude.max() <= view.large:
        return Extremes(nonfinite_rows=np.zeros(0, np.int64), n_large=0)
    infinite = magnitude >= view.infinity
    n_large = int((magnitude > view.large).sum() - infinite.sum())
    bad = infinite.reshape(-1, *bits.shape[-2:]).any(axis=(0, 2))
    return Extremes(nonfinite_rows=np.flatnonzero(bad), n_large=n_large)
