"""Do a model's weights fit where they are to go, and if not, what would do? Said before reading."""

import gc
import math
from collections.abc import Iterator, Mapping

import torch
from rich.filesize import decimal as size

from lensaudit.errors import InputError
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.device import free_bytes
from lensaudit.models.packed import weights_of
from lensaudit.models.placement import Needs, Placement, needs_of, placed
from lensaudit.models.sizes import LEAST_BUDGET, n_parameters, planned_bytes

NARROW = torch.bfloat16


def check_fits(checkpoint: Checkpoint, *, dtype: torch.dtype, device: str) -> None:
    """Refuse a model whose weights alone take more than is free.

    Raises:
        InputError: says what is taken, what is free, and which option would do.
    """
    n, free = _n_weights(checkpoint), free_bytes(device)
    needed = n * dtype.itemsize
    if free is not None and needed > free:
        raise InputError(
            f"{checkpoint.spec.name}: its weights take {size(needed)} in {_name(dtype)}, "
            f"{size(free)} are free on {device}; {_what_would_do(checkpoint, n, dtype, device)}"
        )


def _n_weights(checkpoint: Checkpoint) -> int:
    if not checkpoint.packed:
        return n_parameters(checkpoint.folder)
    weights = weights_of(checkpoint.folder).values()
    return sum(math.prod(one.shape) for one in weights)


def placement_of(
    checkpoint: Checkpoint, *, dtype: torch.dtype, device: str, memory_bytes: int
) -> Placement:
    """Where the weights of a model that may be spread go: `--device auto`.

    Args:
        checkpoint: an opened checkpoint.
        dtype: in which it runs.
        device: on which.
        memory_bytes: `--memory`, to be left on each device.

    Raises:
        InputError: not even one block fits beside what is used outside the blocks.
    """
    needs = needs_of(weights_of(checkpoint.folder), dtype)
    free = _free(device)
    found = placed(needs, free, leave=memory_bytes, device=device)
    if found is None or found.way != "whole":
        gc.collect()  # a model that was let go holds itself until then
        free = _free(device)
        found = placed(needs, free, leave=memory_bytes, device=device)
    if found is None:
        here = free[device] or 0
        raise InputError(
            f"{checkpoint.spec.name}: embeddings and one block take {size(needs.least)} in "
            f"{_name(dtype)}, and --memory {memory_bytes >> 20}M stays free; {size(here)} "
            f"are free on {device}; {_what_would_stream(needs, dtype, free, device)}"
        )
    return found


def where_spread(
    checkpoint: Checkpoint, *, dtype: torch.dtype, device: str, spread: int | None
) -> Placement | None:
    """Where the blocks of a model will lie that may be spread; None of one that may not.

    Raises:
        InputError: not even one block fits beside what is used outside the blocks.
    """
    # merging writes into all weights, pickles are read whole
    if spread is None or checkpoint.adapter or checkpoint.pickled:
        return None
    return placement_of(checkpoint, dtype=dtype, device=device, memory_bytes=spread)


def _what_would_stream(
    needs: Needs, dtype: torch.dtype, free: Mapping[str, int | None], device: str
) -> str:
    left = (free[device] or 0) - needs.least
    if left >= planned_bytes(LEAST_BUDGET):
        return f"--memory {LEAST_BUDGET >> 20}M would do"
    if dtype != NARROW and left + needs.least // 2 >= planned_bytes(LEAST_BUDGET):
        return f"--dtype {_name(NARROW)} --memory {LEAST_BUDGET >> 20}M would do"
    return "a larger device would do"


def _free(device: str) -> dict[str, int | None]:
    """Bytes by device, the one that computes first."""
    return {one: free_bytes(one) for one in _places(device)}


def _what_would_do(checkpoint: Checkpoint, n: int, dtype: torch.dtype, device: str) -> str:
    for narrower in dict.fromkeys((dtype, NARROW)):
        for place in _places(device):
            free = free_bytes(place)
            if free is not None and n * narrower.itemsize <= free:
                options = [f"--device {place}"] * (place != device)
                options += [f"--dtype {_name(narrower)}"] * (narrower != dtype)
                return f"{' '.join(options)} would do"
    needs = needs_of(weights_of(checkpoint.folder), dtype)
    if checkpoint.adapter is None and needs.least <= (free_bytes(device) or 0):
        return (
            "--device auto would do for cache, patch, eval and audit, which then bring it block by "
            "block"
        )
    return f"a device with {size(n * NARROW.itemsize)} would do, with --dtype {_name(NARROW)}"


def _places(device: str) -> Iterator[str]:
    """The device that was asked for, then the others."""
    yield device
    if torch.cuda.is_available():
        here = "cuda:0" if device == "cuda" else device
        others = (f"cuda:{at}" for at in range(torch.cuda.device_count()))
        yield from (one for one in others if one != here)
    if device != "cpu":
        yield "cpu"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
