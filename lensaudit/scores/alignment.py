"""Which linear map carries one model's residual stream to another's, and how well?

A model whose stream was turned into another basis computes the same and cannot be read by `full`.
From pairs (x, y), the source's and `full`'s stream at the same neutral tokens, a map of one of
three classes is fitted per layer (docs/uds.md):

    shift        y = x - mean x + mean y
    procrustes   y = c (x - mean x) Q + mean y,  Q orthogonal (Schoenemann 1966), one scale c
    affine       y = (x - mean x) W + mean y,    W by ridge, shrunk to c Q and not to 0

Nothing beyond linear: an unrestricted map can carry anything (arXiv:2507.08802).
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MapClass = Literal["shift", "procrustes", "affine"]

CROSS_RIDGE = 1e-3
"""Of the mean singular value, added to the cross moment: where it has no rank Q stays near 1."""
AFFINE_RIDGE = 1e-3
"""Of the mean variance of a direction of x."""


@dataclass(frozen=True)
class Moments:
    """Centred sums over n pairs, in float64; sums of parts add up exactly as those of the whole."""

    n: int
    mean_x: Float[Tensor, " d_x"]
    mean_y: Float[Tensor, " d_y"]
    xx: Float[Tensor, "d_x d_x"]
    xy: Float[Tensor, "d_x d_y"]
    yy: float
    """Sum of squared distances of y from its mean."""

    @staticmethod
    def empty(d_x: int, d_y: int) -> "Moments":
        """Moments of no pairs."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64)

        return Moments(0, zeros(d_x), zeros(d_y), zeros(d_x, d_x), zeros(d_x, d_y), 0.0)

    @staticmethod
    def of(x: Float[Tensor, "pair d_x"], y: Float[Tensor, "pair d_y"]) -> "Moments":
        """Moments of these pairs.

        Raises:
            ValueError: a value is not finite.
        """
        x, y = x.double(), y.double()
        if not len(x):
            return Moments.empty(x.shape[1], y.shape[1])
        mean_x, mean_y = x.mean(0), y.mean(0)
        x, y = x - mean_x, y - mean_y
        found = Moments(len(x), mean_x, mean_y, x.T @ x, x.T @ y, float((y * y).sum()))
        if not (math.isfinite(float(found.xx.sum() + found.xy.sum())) and math.isfinite(found.yy)):
            raise ValueError("alignment: a stream holds values that are not finite")
        return found

    def reordered(self, x: Float[Tensor, "pair d_x"], y: Float[Tensor, "pair d_y"]) -> "Moments":
        """Moments of the same x and the same y, paired in another order."""
        return replace(self, xy=(x.double() - self.mean_x).T @ (y.double() - self.mean_y))

    def __add__(self, other: "Moments") -> "Moments":
        """Of both sets of pairs (Chan, Golub and LeVeque 1979)."""
        n = self.n + other.n
        if not self.n or not other.n:
            return self if self.n else other
        gap_x, gap_y = other.mean_x - self.mean_x, other.mean_y - self.mean_y
        weight = self.n * other.n / n
        return Moments(
            n,
            self.mean_x + gap_x * (other.n / n),
            self.mean_y + gap_y * (other.n / n),
            self.xx + other.xx + weight * torch.outer(gap_x, gap_x),
            self.xy + other.xy + weight * torch.outer(gap_x, gap_y),
            self.yy + other.yy + weight * float(gap_y @ gap_y),
        )


@dataclass(frozen=True)
class LinearMap:
    """h -> (h - mean_x) @ matrix + mean_y."""

    mean_x: Float[Tensor, " d_x"]
    mean_y: Float[Tensor, " d_y"]
    matrix: Float[Tensor, "d_x d_y"]

    def __call__(self, h: Float[Tensor, "*pos d_x"]) -> Float[Tensor, "*pos d_y"]:
        """In float64, given back in the dtype of `h`."""
        moved = (h.double() - self.mean_x.to(h.device)) @ self.matrix.to(h.device)
        return (moved + self.mean_y.to(h.device)).to(h.dtype)


def fitted(moments: Moments, kind: MapClass) -> LinearMap:
    """The map of a class that carries x to y with the least squared error.

    Raises:
        ValueError: shift between widths, no variance in x, or sums that cannot be solved.
    """
    d_x, d_y = moments.xy.shape
    if kind == "shift":
        if d_x != d_y:
            raise ValueError(f"alignment: shift needs equal widths, found {d_x} and {d_y}")
        return _map(moments, torch.eye(d_x, dtype=torch.float64))
    turned = _turn(moments)
    if kind == "procrustes":
        return _map(moments, turned)
    ridge = AFFINE_RIDGE * float(moments.xx.trace()) / d_x
    left = moments.xx + ridge * torch.eye(d_x, dtype=torch.float64)
    return _map(moments, torch.linalg.solve(left, moments.xy + ridge * turned))


def _turn(moments: Moments) -> Float[Tensor, "d_x d_y"]:
    """C Q: an orthogonal matrix (between widths a partial isometry) and one scale."""
    variance = float(moments.xx.trace())
    if not variance > 0:
        raise ValueError("alignment: the source's stream is the same at every token")
    cross = moments.xy
    if cross.shape[0] == cross.shape[1]:
        nuclear = float(torch.linalg.svdvals(cross).mean())
        cross = cross + CROSS_RIDGE * nuclear * torch.eye(len(cross), dtype=torch.float64)
    left, _, right = torch.linalg.svd(cross, full_matrices=False)
    turn = left @ right
    # the best scale for this Q; of a map between widths only what Q keeps of x counts
    kept = float((turn * (moments.xx @ turn)).sum())
    return turn * (float((turn * moments.xy).sum()) / kept if kept > 0 else 0.0)


def _map(moments: Moments, matrix: Float[Tensor, "d_x d_y"]) -> LinearMap:
    return LinearMap(moments.mean_x, moments.mean_y, matrix)


def r_squared(found: LinearMap, held_out: Moments) -> float:
    """1 - |y - map(x)|^2 / |y - mean y|^2 over pairs that were not fitted; NaN without variance.

    Follows from their moments alone. Below 0: worse than `full`'s mean. It lives in directions of
    large variance; facts live in small ones, so it is no check of what a map carries.
    """
    if not held_out.yy > 0:
        return math.nan
    offset = held_out.mean_y - found(held_out.mean_x)
    moved = found.matrix
    error = (
        held_out.yy
        - 2 * float((moved * held_out.xy).sum())
        + float((moved * (held_out.xx @ moved)).sum())
        + held_out.n * float(offset @ offset)
    )
    return 1 - error / held_out.yy


def ordinary(
    norms: Float[Tensor, "layer pos"], medians: Float[Tensor, " layer"], times: float
) -> Bool[Tensor, "layer pos"]:
    """Which tokens are no sinks: norms up to `times` the layer's median.

    A few tokens of real models carry 100 to 1,000 times the norm and would own every sum.
    """
    return norms <= times * medians.unsqueeze(1)
