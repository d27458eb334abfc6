"""Where would a model's weights lie, in words, and how much is brought in each pass?"""

from collections import Counter
from collections.abc import Mapping

import torch
from rich.filesize import decimal as size

from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.large.placement import DISK, Placement, placement_of


def bytes_by_place(placement: Placement) -> Mapping[str, int]:
    """Bytes of weights by place; those on disk count as what they are in memory."""
    places = Counter({placement.device: placement.rest})
    for place, n_bytes in zip(placement.blocks, placement.sizes, strict=True):
        places[place] += n_bytes
    return places


def brought_bytes(placement: Placement) -> int:
    """Bytes that one pass over the blocks brings to the device."""
    return sum(n for place, n in bytes_by_place(placement).items() if place != placement.device)


def words_of(placement: Placement) -> str:
    """Where the weights are, in words, with the bytes at each place."""
    listed = ", ".join(
        f"{size(n)} {'on' if place[:4] in (DISK, 'cuda') else 'in memory of'} {place}"
        for place, n in bytes_by_place(placement).items()
    )
    return f"{placement.way} ({listed})"


def planned_text(
    checkpoint: Checkpoint, *, dtype: str, device: str, spread: int | None, n_passes: int
) -> str:
    """Where `load_causal` would put the weights, and the bytes that each pass brings.

    Args:
        checkpoint: of the model.
        dtype: in which it runs.
        device: on which.
        spread: bytes left for activations of a model that may be spread; None: it may not.
        n_passes: over all blocks.

    Raises:
        InputError: it would not fit.
    """
    run_in = getattr(torch, dtype)
    placement = placement_of(checkpoint, dtype=run_in, device=device, spread=spread)
    said = f"weights: {words_of(placement)}"
    if placement.way == "whole":
        return said
    brought = size(n_passes * brought_bytes(placement))
    return f"{said}; {brought} to bring in {n_passes} pass{'es' * (n_passes != 1)}"
