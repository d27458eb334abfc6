"""A cache filled block by block over all examples, so that each weight is brought once.

For a model that does not fit (`models.streaming`). What is read, and the streams between two
blocks, lie in a scratch file beside the shards, which the system keeps in memory as far as there is
room; it has no name once it is open, so nothing is left of it whatever happens.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.activations.fingerprint import Fingerprint
from lensaudit.activations.parts import check_width, hooked
from lensaudit.activations.publish import check_space
from lensaudit.activations.tensors import ExampleActivations
from lensaudit.activations.values import TORCH
from lensaudit.data.spans import Encoded
from lensaudit.files import os_error
from lensaudit.models.bridge import TransformerBridge, check_finite, residuals_by_block
from lensaudit.models.decoder import VERIFIED
from lensaudit.models.streaming import streamed
from lensaudit.partials import partial_path
from lensaudit.types import Resid, Tokens


@dataclass(frozen=True)
class Batch:
    """Examples that run together."""

    examples: Sequence[Encoded]
    tokens: Tokens
    kept: Sequence[Int[Tensor, " kept"]]
    """By example, the positions that are kept."""

    @property
    def idx(self) -> tuple[int, ...]:
        """The examples' numbers."""
        return tuple(e.idx for e in self.examples)


@dataclass(frozen=True)
class _Scratch:
    """Room for all that is kept, rows of examples end to end, and for every batch's stream."""

    resid: Float[Tensor, "layer row d"]
    final_norm: Float[Tensor, "norm_row d"]
    streams: Sequence[Resid]


def goes_by_block(model: TransformerBridge) -> bool:
    """Its blocks are brought one by one, and each is called alike whatever runs through it."""
    hf = model.original_model
    return streamed(hf) is not None and type(hf).__name__ in VERIFIED


def run_by_block(
    model: TransformerBridge,
    batches: Sequence[Batch],
    fingerprint: Fingerprint,
    *,
    name: str,
    folder: Path,
    reserve_bytes: int,
    told: Callable[[float], None],
) -> Iterator[ExampleActivations]:
    """Every example of every batch, in their order; `told` of the share of the work that is done.

    Args:
        model: one that `goes_by_block`.
        batches: what runs.
        fingerprint: what is kept of it.
        name: of the model, for errors.
        folder: where there is room for the scratch file.
        reserve_bytes: that stay free there.
        told: called after every block of every batch.

    Raises:
        InputError: the architecture has no such component, or not of this width.
        WorkError: an activation is not finite.
        TryAgainError: the disk has no room for the scratch file.
    """
    scratch = _scratch_for(batches, fingerprint, model, folder, reserve_bytes)
    device = next(model.original_model.parameters()).device
    running = residuals_by_block(
        model,
        [batch.tokens.to(device) for batch in batches],
        scratch.streams,
        component=hooked(fingerprint.part),
    )
    edges = [0]
    for batch in batches:
        edges.append(edges[-1] + sum(map(len, batch.kept)))
    for layer, at, read in running:
        batch, value = batches[at], read.flatten(2)
        check_finite(value.unsqueeze(1), batch.idx, name)
        # after the last block comes the final norm, which is kept beside the stream alone
        into = scratch.resid[layer] if layer < fingerprint.layers else scratch.final_norm
        if len(into):
            check_width(fingerprint, value.shape[-1])
            rows = [one[kept.to(device)] for one, kept in zip(value, batch.kept, strict=True)]
            into[edges[at] : edges[at + 1]] = torch.cat(rows).to(into.device)
        told((layer * len(batches) + at + 1) / (len(batches) * (fingerprint.layers + 1)))
    row = 0
    for batch in batches:
        for e, kept in zip(batch.examples, batch.kept, strict=True):
            rows = slice(row, row + len(kept))
            row += len(kept)
            yield ExampleActivations(
                idx=e.idx,
                token_ids=torch.tensor(e.token_ids),
                positions=kept,
                resid=scratch.resid[:, rows],
                final_norm=scratch.final_norm[rows],
            )


def _scratch_for(
    batches: Sequence[Batch],
    fingerprint: Fingerprint,
    model: TransformerBridge,
    folder: Path,
    reserve_bytes: int,
) -> _Scratch:
    hf: Any = model.original_model
    d_stream = hf.config.get_text_config().hidden_size
    n_rows = sum(len(kept) for batch in batches for kept in batch.kept)
    shapes = [
        (fingerprint.layers, n_rows, fingerprint.d_model),
        fingerprint.norm_shape(n_rows),
        *((*batch.tokens.shape, d_stream) for batch in batches),
    ]
    sizes = [*map(math.prod, shapes)]
    flat = _mapped(folder, sum(sizes), TORCH[fingerprint.dtype], reserve_bytes).split(sizes)
    resid, final_norm, *streams = (one.view(shape) for one, shape in zip(flat, shapes, strict=True))
    return _Scratch(resid, final_norm, streams)


def _mapped(folder: Path, n: int, dtype: torch.dtype, reserve_bytes: int) -> Tensor:
    """Room for `n` numbers in a file without a name."""
    n_bytes, path = n * dtype.itemsize, partial_path(folder / "blocks")
    check_space(folder, n_bytes, reserve_bytes=reserve_bytes)
    try:
        try:
            with path.open("xb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, n_bytes)  # a full disk is told here
                else:
                    file.truncate(n_bytes)
            return torch.from_file(str(path), shared=True, size=n, dtype=dtype)
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise os_error(error, folder) from error
