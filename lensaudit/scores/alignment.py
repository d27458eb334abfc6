"""The linear map that carries one model's residual stream to another's, and how well it fits.

A model whose stream was turned into another basis computes the same and cannot be read by `full`.
From pairs (x, y), the source's and `full`'s stream at the same neutral tokens, a map of one of
three classes is fitted per layer (docs/uds.md):

    shift        y = x - mean x + mean y
    procrustes   y = c (x - mean x) Q + mean y,  Q orthogonal (Schoenemann 1966), one scale c
    affine       y = (x - mean x) W + mean y,    W by ridge, shrunk to c Q and not to 0

Nothing beyond linear: an unrestricted map can carry anything (arXiv:2507.08802).

A model may also hold every fact and add one constant vector where it is asked for them: then `full`
reads nothing, aligned or not. The vector is the same for all authors, a fact is not, so the
direction is taken from the facts of the others: the first right singular vector, uncentred, of
source minus `full` over their positions. With a vector for each author no direction is shared: then
as many are taken out, learnt from all facts but the judged one, those of its author too.
"""

import math
from collections.abc import Sequence
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
        shapes = ((d_x,), (d_y,), (d_x, d_x), (d_x, d_y))
        x, y, xx, xy = (torch.zeros(one, dtype=torch.float64) for one in shapes)
        return Moments(0, x, y, xx, xy, 0.0)

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
        """Moments of both sets of pairs together (Chan, Golub and LeVeque 1979)."""
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
        """The mapped stream, computed in float64, in the dtype of `h`."""
        moved = (h.double() - self.mean_x.to(h.device)) @ self.matrix.to(h.device)
        return (moved + self.mean_y.to(h.device)).to(h.dtype)


def fitted(moments: Moments, kind: MapClass) -> LinearMap:
    """The map of a class that carries x to y with the least squared error.

    Raises:
        ValueError: shift between widths, no variance in x, or sums that cannot be solved.
    """
    d_x, d_y = moments.xy.shape
    eye = torch.eye(d_x, dtype=torch.float64)
    if kind == "shift" and d_x != d_y:
        raise ValueError(f"alignment: shift needs equal widths, found {d_x} and {d_y}")
    matrix = eye if kind == "shift" else _turn(moments)
    if kind == "affine":
        ridge = AFFINE_RIDGE * float(moments.xx.trace()) / d_x
        matrix = torch.linalg.solve(moments.xx + ridge * eye, moments.xy + ridge * matrix)
    return LinearMap(moments.mean_x, moments.mean_y, matrix)


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
    """Tokens that are no sinks: their norms are at most `times` the layer's median.

    A few tokens of real models carry 100 to 1,000 times the norm and would own every sum.
    """
    return norms <= times * medians.unsqueeze(1)


LEAST_APART = 0.01
"""Distance, as a share of `full`'s length, below which streams differ by rounding."""


def relative_distance(
    found: Float[Tensor, "layer pos d_model"], full: Float[Tensor, "layer pos d_model"]
) -> Float[Tensor, "layer pos"]:
    """How far a stream lies from `full`'s at each position, in lengths of `full`'s.

    >>> relative_distance(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[0.0, 4.0]]]))
    tensor([[0.7500]], dtype=torch.float64)
    """
    own, theirs = found.double(), full.double()
    return (own - theirs).norm(dim=-1) / theirs.norm(dim=-1)


def times_apart(
    source: Float[Tensor, " layer"], never: Float[Tensor, " layer"]
) -> Float[Tensor, " layer"]:
    """Distance of a model from `full`, over that of models that never knew, by layer.

    >>> times_apart(torch.tensor([0.75, 0.02]), torch.tensor([0.25, 0.0]))
    tensor([3., 2.])
    """
    return source / never.clamp(min=LEAST_APART)


_PRECISE = 1e-10
"""Residual of the vector in units of its eigenvalue."""
_CANCELLED = 1e-12
"""Share of all folds' second moment under which what is left without one fold is rounding."""


@dataclass(frozen=True)
class SharedDirections:
    """Directions of a layer's stream, and what `full` has along them."""

    directions: Float[Tensor, "n d_model"]
    """Of length 1, one across the other; 0 where the source is `full` there."""
    coefficients: Float[Tensor, " n"]
    """`full`'s mean over the positions that the directions were taken from."""

    def taken_out(self, resid: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos d_model"]:
        """The stream with `full`'s mean along the directions; in float64, given back as it came.

        >>> along, mean = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([0.5]).double()
        >>> SharedDirections(along, mean).taken_out(torch.tensor([[7.0, 2.0]]))
        tensor([[0.5000, 2.0000]])
        """
        wide, along = resid.double(), self.directions
        return (wide + (self.coefficients - wide @ along.T) @ along).to(resid.dtype)


def shared_directions(
    apart: Sequence[Float[Tensor, "_ d_model"]],
    full: Sequence[Float[Tensor, "_ d_model"]],
    n: int = 1,
) -> list[SharedDirections]:
    """For each fold the directions that all other folds share; nothing of its own is used.

    Args:
        apart: source minus `full`, by fold.
        full: `full`'s stream at the same positions, by fold.
        n: how many directions, fewer than there are dimensions.

    Raises:
        ValueError: fewer than two folds.
    """
    if len(apart) < 2:
        raise ValueError(f"shared direction: {len(apart)} fold, wanted 2 or more")
    d_model = apart[0].shape[1]
    nothing = torch.zeros(d_model, d_model, dtype=torch.float64)
    seconds = sum((_second(one) for one in apart), start=nothing)
    sums = torch.stack([one.double().sum(0) for one in full])
    counts = torch.tensor([len(one) for one in full])
    least = _CANCELLED * float(seconds.trace())
    found = []
    for fold, one in enumerate(apart):
        along = _leading(seconds - _second(one), n, least)
        others = (sums.sum(0) - sums[fold]) / (counts.sum() - counts[fold])
        found.append(SharedDirections(along, along @ others))
    return found


def _second(rows: Float[Tensor, "pos d_model"]) -> Float[Tensor, "d_model d_model"]:
    wide = rows.double()
    return wide.T @ wide


def _leading(
    moment: Float[Tensor, "d_model d_model"], n: int, least: float
) -> Float[Tensor, "n d_model"]:
    """Eigenvectors of the n largest eigenvalues, by Lanczos; 0 where it is no more than least."""
    from scipy.sparse.linalg import eigsh  # a third of a second to import

    if not float(moment.trace()) > least:
        return torch.zeros(n, len(moment), dtype=torch.float64)
    # within what is left of the folds, and across none of it
    drawn = torch.randn(
        len(moment), generator=torch.Generator().manual_seed(0), dtype=torch.float32
    )
    start = (moment @ drawn.double()).numpy()
    values, vectors = eigsh(moment.numpy(), k=n, which="LA", v0=start, tol=_PRECISE)  # pyright: ignore[reportArgumentType]
    return torch.from_numpy((vectors * (values > least)).T.copy())
