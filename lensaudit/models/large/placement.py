"""Do a model's weights fit, and where do they lie while it runs? Decided from headers alone.

All arithmetic happens on one device. What is used outside the blocks stays there for good, and as
many blocks as fit; every other block lies at rest where there is room (another GPU, the memory of
the CPU, its own file on disk) and is brought when it is its turn (`models.large.streaming`).
"""

import gc
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from rich.filesize import decimal as size

from lensaudit.errors import InputError
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.device import free_bytes
from lensaudit.models.large.stored import Stored, block_of, weights_of
from lensaudit.models.sizes import LEAST_BUDGET, planned_bytes

DISK = "disk"

BESIDE = 2
"""Models of one run that are in memory together, each with one block: `full` and another."""

AHEAD = 2
"""Blocks' worth of memory for one that is read ahead: its weights, and what they are made of."""

Way = Literal["whole", "spread", "streamed"]
"""All on the device; some blocks in other memory; some blocks on disk."""


@dataclass(frozen=True)
class Needs:
    """Bytes of a model's weights in the type it runs in."""

    rest: int
    """Embeddings, final norm, unembedding: what is used outside the blocks."""
    blocks: tuple[int, ...]

    @property
    def whole(self) -> int:
        """Of all weights."""
        return self.rest + sum(self.blocks)

    @property
    def least(self) -> int:
        """That have to be on the device at one time."""
        return self.rest + max(self.blocks, default=0)


def needs_of(tensors: Mapping[str, Stored], dtype: torch.dtype) -> Needs:
    """From the headers of a checkpoint."""
    rest, blocks = 0, {}
    for name, tensor in tensors.items():
        n_bytes = tensor.n_bytes // tensor.dtype.itemsize * dtype.itemsize
        block = block_of(name)
        if block is None:
            rest += n_bytes
        else:
            blocks[block] = blocks.get(block, 0) + n_bytes
    return Needs(rest, tuple(blocks[at] for at in sorted(blocks)))


@dataclass(frozen=True)
class Placement:
    """Where the weights of a model lie."""

    device: str
    """Where it runs."""
    needs: Needs
    blocks: tuple[str, ...]
    """By block: a device, or `disk`."""
    ahead: bool = False
    """There is room for a further block: it is read while another one computes."""

    @staticmethod
    def whole(device: str, needs: Needs) -> "Placement":
        """All of it where it runs."""
        return Placement(device, needs, (device,) * len(needs.blocks))

    @property
    def way(self) -> Way:
        """How weights lie, in one word: `whole` where all are on the device."""
        if DISK in self.blocks:
            return "streamed"
        return "whole" if set(self.blocks) <= {self.device} else "spread"

    @property
    def n_bytes(self) -> dict[str, int]:
        """Of weights, by place; those on disk count as what they are in memory."""
        places = {self.device: self.needs.rest}
        for place, n_bytes in zip(self.blocks, self.needs.blocks, strict=True):
            places[place] = places.get(place, 0) + n_bytes
        return places

    @property
    def brought_bytes(self) -> int:
        """That one pass over the blocks brings to the device."""
        return sum(n for place, n in self.n_bytes.items() if place != self.device)

    def text(self) -> str:
        """The way, and what lies where."""
        listed = ", ".join(f"{size(n)} {_at(place)}" for place, n in self.n_bytes.items())
        return f"{self.way} ({listed})"


def _at(place: str) -> str:
    return f"on {place}" if place == DISK or place.startswith("cuda") else f"in memory of {place}"


def placed(
    needs: Needs, free: Mapping[str, int | None], *, leave: int, device: str
) -> Placement | None:
    """The placement that brings least; None where not even one block fits beside the rest.

    Blocks stay on the device, first ones first; then they lie on the other GPUs, in the memory of
    the CPU, and what is left on disk. Room is kept for the block whose turn it is, and for as much
    of another model; where blocks lie on disk also for the next one, if there is as much.

    Args:
        needs: bytes of the weights.
        free: bytes by device, in the order in which they are filled; None: not known.
        leave: bytes of each to be left for activations.
        device: the one that computes.
    """
    on_device = free[device]
    whole = Placement.whole(device, needs)
    if on_device is None or needs.whole + leave <= on_device:
        return whole
    # of what is to be left, libraries and models that ran before may have their part already
    if needs.least + max(0, planned_bytes(leave)) > on_device:
        # without blocks at rest elsewhere nothing has to be brought, and activations may be few
        return whole if needs.whole <= on_device else None
    room = {device: on_device - leave - BESIDE * needs.least}
    room |= {one: (n or 0) - leave for one, n in free.items() if one != device}
    blocks = _resting(needs, room)
    further = AHEAD * max(needs.blocks)
    if DISK not in blocks or room[device] < further:
        return Placement(device, needs, blocks)
    return Placement(device, needs, _resting(needs, room | {device: room[device] - further}), True)


def _resting(needs: Needs, room: Mapping[str, int]) -> tuple[str, ...]:
    """Where each block lies, the places filled in their order."""
    left, blocks = dict(room), []
    for n_bytes in needs.blocks:
        place = next((one for one, n in left.items() if n_bytes <= n), DISK)
        if place != DISK:
            left[place] -= n_bytes
        blocks.append(place)
    return tuple(blocks)


NARROW = torch.bfloat16


def check_fits(checkpoint: Checkpoint, *, dtype: torch.dtype, device: str) -> None:
    """Refuse a model whose weights alone take more than is free.

    Raises:
        InputError: says what is taken, what is free, and which option would do.
    """
    weights, free = weights_of(checkpoint.folder).values(), free_bytes(device)
    n = sum(math.prod(one.shape) for one in weights)
    needed = n * dtype.itemsize
    if free is not None and needed > free:
        raise InputError(
            f"{checkpoint.spec.name}: its weights take {size(needed)} in {_name(dtype)}, "
            f"{size(free)} are free on {device}; {_what_would_do(checkpoint, n, dtype, device)}"
        )


def where_spread(
    checkpoint: Checkpoint, *, dtype: torch.dtype, device: str, spread: int | None
) -> Placement | None:
    """Where the weights go of a model that may be spread (`--device auto`); None of one that not.

    Args:
        checkpoint: an opened checkpoint.
        dtype: in which it runs.
        device: on which.
        spread: bytes to be left on each device, `--memory`; None: it may not be spread.

    Raises:
        InputError: not even one block fits beside what is used outside the blocks.
    """
    # merging writes into all weights
    if spread is None or checkpoint.adapter:
        return None
    needs = needs_of(weights_of(checkpoint.folder), dtype)
    free = _free(device)
    found = placed(needs, free, leave=spread, device=device)
    if found is None or found.way != "whole":
        gc.collect()  # a model that was let go holds itself until then
        free = _free(device)
        found = placed(needs, free, leave=spread, device=device)
    if found is None:
        here = free[device] or 0
        raise InputError(
            f"{checkpoint.spec.name}: embeddings and one block take {size(needs.least)} in "
            f"{_name(dtype)}, and --memory {spread >> 20}M stays free; {size(here)} "
            f"are free on {device}; {_what_would_stream(needs, dtype, free, device)}"
        )
    return found


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


def planned_text(
    checkpoint: Checkpoint, *, dtype: str, device: str, spread: int | None, n_passes: int
) -> str:
    """The way of the weights, as `load_causal` would place them, and the bytes it brings.

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
    placement = where_spread(checkpoint, dtype=run_in, device=device, spread=spread)
    placement = placement or whole_placement(checkpoint, dtype=run_in, device=device)
    said = f"weights: {placement.text()}"
    if placement.way == "whole":
        return said
    brought = size(n_passes * placement.brought_bytes)
    return f"{said}; {brought} to bring in {n_passes} pass{'es' * (n_passes != 1)}"


def whole_placement(checkpoint: Checkpoint, *, dtype: torch.dtype, device: str) -> Placement:
    """All weights on the device.

    Raises:
        InputError: they take more than is free there.
    """
    check_fits(checkpoint, dtype=dtype, device=device)
    return Placement.whole(device, needs_of(weights_of(checkpoint.folder), dtype))
