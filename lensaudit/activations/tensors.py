"""What a cache gives back: one example's residual stream, and one layer over many examples."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor


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
    final_norm: Float[Tensor, "norm_pos d_model"]
    """The last layer's stream after `ln_final`; no rows in the cache of a component."""

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.resid.shape))
        kind = str(self.resid.dtype).removeprefix("torch.")
        return f"<example idx {self.idx}: {shape} (layer, pos, d_model), {kind}>"

    def at(self, positions: Int[Tensor, " wanted"]) -> "ExampleActivations":
        """The rows at some token positions, in the order asked.

        Raises:
            ValueError: a position was not cached.
        """
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


@dataclass(frozen=True)
class LayerRows:
    """One layer's rows of several examples, laid end to end: ragged, nothing padded."""

    layer: int
    idx: tuple[int, ...]
    offsets: Int[Tensor, " edge"]
    """Rows `offsets[n]:offsets[n + 1]` are those of example `idx[n]`."""
    positions: Int[Tensor, " row"]
    """Token position of each row."""
    resid: Float[Tensor, "row d_model"]

    def example(self, idx: int) -> Float[Tensor, "pos d_model"]:
        """The rows of one example."""
        slot = self.idx.index(idx)
        return self.resid[self.offsets[slot] : self.offsets[slot + 1]]


@dataclass(frozen=True)
class SpanRows:
    """One layer's row at the same place of several examples' spans."""

    layer: int
    idx: tuple[int, ...]
    """The examples that have such a place."""
    absent: tuple[int, ...]
    """The examples whose cached rows are too few to have it."""
    resid: Float[Tensor, "example d_model"]


TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

LARGE = 1e4
"""An activation above it is worth a look, and float16 ends at 65504."""


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


def extremes(rows: Float[Tensor, "*any row d_model"]) -> tuple[set[int], int]:
    """Rows that hold a NaN or an infinity at any layer, and the number of finite large values.

    >>> extremes(torch.tensor([[0.0, 1.0], [torch.inf, 2e4]]))
    ({1}, 1)
    """
    size = rows.abs()
    if not size.numel() or bool(size.max() <= LARGE):
        return set(), 0
    finite = size.isfinite()
    bad = (~finite).any(dim=-1).reshape(-1, rows.shape[-2]).any(dim=0)
    return set(bad.nonzero().flatten().tolist()), int(((size > LARGE) & finite).sum())
