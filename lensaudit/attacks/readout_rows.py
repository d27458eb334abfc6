"""The token of each row of a readout whose rows may have been exchanged.

A readout whose rows were exchanged says nothing of what the stream holds. A row of it is known by
its direction: rows are assigned to `full`'s one to one, so that the sum of cosines is largest. A
vector added to all rows moves no probability, so rows are taken from their mean.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

MOVED_BELOW = 0.9
"""Cosine with `full`'s row of the same token below which a row may have been exchanged."""
UNMOVED_FROM = 0.9999
"""From which it was not, where others were: tokens that are alike may have been exchanged, too."""
SAME_FROM = 0.7
"""Cosine from which a row may be that of another token."""
N_NEAREST = 8
"""Rows of `full` that are compared with each."""
CHUNK = 1 << 25
"""Cosines in memory at once."""


def tokens_of_rows(
    own: Float[Tensor, "token d_own"], full: Float[Tensor, "known d_model"]
) -> Int[Tensor, " token"]:
    """For each row, the token whose row of `full` it is: its own where nothing was exchanged.

    Rows of another width are no one's.

    >>> full = torch.eye(4)
    >>> tokens_of_rows(full[[1, 0, 2, 3]], full)
    tensor([1, 0, 2, 3])
    """
    found = torch.arange(len(own))
    if own.shape[1] != full.shape[1]:
        return found
    n = min(len(own), len(full))  # one of them may be padded
    own, full = _directions(own[:n]), _directions(full[:n])
    same = (own * full).sum(1)
    if not bool((same < MOVED_BELOW).any()):
        return found
    moved = (same < UNMOVED_FROM).nonzero().squeeze(1)
    rows, columns, cosines = _nearest(own[moved], full[moved])
    if len(rows):
        assigned = _assigned(rows, columns, cosines, same[moved].cpu().numpy())
        found[moved.cpu()] = moved.cpu()[torch.from_numpy(assigned).long()]
    return found


def _directions(rows: Float[Tensor, "token d_model"]) -> Float[Tensor, "token d_model"]:
    wide = rows.detach().float()
    return torch.nn.functional.normalize(wide - wide.mean(0), dim=1)


def _nearest(
    own: Float[Tensor, "moved d_model"], full: Float[Tensor, "moved d_model"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of different tokens that may be each other's: row, column, cosine."""
    found, step = [], max(1, CHUNK // len(full))
    for low in range(0, len(own), step):
        near = (own[low : low + step] @ full.T).topk(min(N_NEAREST, len(full)), dim=1)
        row = torch.arange(low, low + len(near.values), device=own.device).unsqueeze(1)
        kept = (near.values >= SAME_FROM) & (near.indices != row)
        found.append((row.expand_as(kept)[kept], near.indices[kept], near.values[kept]))
    rows, columns, cosines = (torch.cat(part).cpu().numpy() for part in zip(*found, strict=True))
    return rows, columns, cosines


def _assigned(
    rows: np.ndarray, columns: np.ndarray, cosines: np.ndarray, stays: np.ndarray
) -> np.ndarray:
    """The one-to-one assignment with the largest sum; staying is open to every row."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching

    n = len(stays)
    itself = np.arange(n)
    costs = 2 - np.concatenate((cosines, stays)).astype(np.float64)  # above 0: no edge is lost
    at = (np.concatenate((rows, itself)), np.concatenate((columns, itself)))
    return min_weight_full_bipartite_matching(coo_array((costs, at), (n, n)).tocsr())[1]
