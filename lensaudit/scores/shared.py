"""Which one direction sets a source's stream most apart from `full`'s, seen on other authors?

A model may hold every fact and add one constant vector where it is asked for them: then `full`
reads nothing, aligned or not. The vector is the same for all authors, a fact is not, so the
direction is taken from the facts of the others: the first right singular vector, uncentred, of
source minus `full` over their positions (`verdict.md`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

_PRECISE = 1e-10
"""Residual of the vector in units of its eigenvalue."""
_CANCELLED = 1e-12
"""Share of all folds' second moment under which what is left without one fold is rounding."""


@dataclass(frozen=True)
class SharedDirection:
    """One direction of a layer's stream, and what `full` has along it."""

    direction: Float[Tensor, " d_model"]
    """Of length 1; 0 where the source is `full` there."""
    coefficient: float
    """`full`'s mean over the positions that the direction was taken from."""

    def taken_out(self, resid: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos d_model"]:
        """The stream with `full`'s mean along the direction; in float64, given back as it came.

        >>> first = SharedDirection(torch.tensor([1.0, 0.0]).double(), 0.5)
        >>> first.taken_out(torch.tensor([[7.0, 2.0]]))
        tensor([[0.5000, 2.0000]])
        """
        wide, along = resid.double(), self.direction
        return (wide + torch.outer(self.coefficient - wide @ along, along)).to(resid.dtype)


def shared_directions(
    apart: Sequence[Float[Tensor, "_ d_model"]], full: Sequence[Float[Tensor, "_ d_model"]]
) -> list[SharedDirection]:
    """For each fold the direction that all other folds share; nothing of its own is used.

    Args:
        apart: source minus `full`, by fold.
        full: `full`'s stream at the same positions, by fold.

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
        along = _first(seconds - _second(one), least)
        others = (sums.sum(0) - sums[fold]) / (counts.sum() - counts[fold])
        found.append(SharedDirection(along, float(others @ along)))
    return found


def _second(rows: Float[Tensor, "pos d_model"]) -> Float[Tensor, "d_model d_model"]:
    wide = rows.double()
    return wide.T @ wide


def _first(moment: Float[Tensor, "d_model d_model"], least: float) -> Float[Tensor, " d_model"]:
    """The eigenvector of the largest eigenvalue, by Lanczos; 0 where no more than least is left."""
    from scipy.sparse.linalg import eigsh  # a third of a second to import

    if not float(moment.trace()) > least:
        return torch.zeros(len(moment), dtype=torch.float64)
    # a column of its own: one of all folds may lie across what is left of them
    start = moment[:, int(moment.diagonal().argmax())].numpy()
    _, vectors = eigsh(moment.numpy(), k=1, which="LA", v0=start, tol=_PRECISE)  # pyright: ignore[reportArgumentType]
    return torch.from_numpy(vectors[:, 0].copy())
