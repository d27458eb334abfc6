"""Where do a model's weights lie while it runs? Decided from headers alone, before a byte is read.

All arithmetic happens on one device. What is used outside the blocks stays there for good, and as
many blocks as fit; every other block lies at rest where there is room (another GPU, the memory of
the CPU, its own file on disk) and is brought when it is its turn (`models.streaming`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from rich.filesize import decimal as size

from lensaudit.models.sizes import planned_bytes
from lensaudit.models.stored import Stored, block_of

DISK = "disk"

BESIDE = 2
"""Models of one run that are in memory together, each with one block: `full` and another."""

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

    @staticmethod
    def whole(device: str, needs: Needs) -> "Placement":
        """All of it where it runs."""
        return Placement(device, needs, (device,) * len(needs.blocks))

    @property
    def way(self) -> Way:
        """In one word."""
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
    of another model.

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
    blocks = []
    for n_bytes in needs.blocks:
        place = next((one for one, left in room.items() if n_bytes <= left), DISK)
        if place != DISK:
            room[place] -= n_bytes
        blocks.append(place)
    return Placement(device, needs, tuple(blocks))
