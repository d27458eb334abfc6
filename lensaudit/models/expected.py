"""Which way will a model's weights take, and about how long? For plans: nothing is loaded."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.filesize import decimal as size

from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.fitting import check_fits, where_spread
from lensaudit.models.packed import weights_of
from lensaudit.models.placement import DISK, Placement, needs_of
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.models.stored import Stored, block_of

SAMPLE_BYTES = 64 << 20
"""Of a file, read to see how fast reading is."""
SAMPLE_WIDTH = 1024
"""Of the matrix product that shows how fast products are."""


@dataclass(frozen=True)
class Expected:
    """Where a model's weights would lie, and what bringing them would cost."""

    placement: Placement
    read_bytes: int
    """Of files, in one pass over the blocks."""
    read_speed: float | None = None
    """Bytes per second, measured; None where nothing is read again."""
    flop_speed: float | None = None
    """FLOP per second, measured; None where no block is brought."""

    def text(self, *, n_passes: int, flop: float) -> str:
        """The way and its bytes; where blocks are brought, about how long that takes.

        Args:
            n_passes: over all blocks.
            flop: arithmetic of the run.
        """
        said = f"weights: {self.placement.text()}"
        if self.flop_speed is None:
            return said
        seconds = flop / self.flop_speed
        speeds = f"products at {self.flop_speed / 1e9:.0f} GFLOP/s"
        if self.read_speed is not None:
            seconds += n_passes * self.read_bytes / self.read_speed
            speeds = f"files read at {self.read_speed / 1e9:.1f} GB/s, {speeds}"
        brought = size(n_passes * self.placement.brought_bytes)
        return (
            f"{said}; {brought} to bring in {n_passes} pass{'es' * (n_passes != 1)}, about "
            f"{seconds:.0f} s ({speeds}, measured just now; what the system has in memory is read "
            "faster than a disk)"
        )


def expected_of(checkpoint: Checkpoint, *, dtype: str, device: str, spread: int | None) -> Expected:
    """As `load_causal` would place it.

    Raises:
        InputError: it would not fit.
    """
    run_in = getattr(torch, dtype)
    tensors = weights_of(checkpoint.folder)
    placement = where_spread(checkpoint, dtype=run_in, device=device, spread=spread)
    if placement is None:
        check_fits(checkpoint, dtype=run_in, device=device)
        return Expected(Placement.whole(device, needs_of(tensors, run_in)), 0)
    if placement.way == "whole":
        return Expected(placement, 0)
    on_disk = [one for name, one in tensors.items() if _is_on_disk(name, placement)]
    read_bytes = sum(one.disk_bytes for one in on_disk)
    return Expected(
        placement,
        read_bytes,
        read_speed=_read_speed(on_disk) if on_disk else None,
        flop_speed=_flop_speed(device, run_in),
    )


def per_token_flop(checkpoint: Checkpoint) -> int:
    """Arithmetic of all blocks on one token."""
    return sizes_on_disk(checkpoint, "float32").per_token_flop


def _is_on_disk(name: str, placement: Placement) -> bool:
    block = block_of(name)
    return block is not None and placement.blocks[block] == DISK


def _read_speed(tensors: list[Stored]) -> float:
    largest: Path = max(tensors, key=lambda one: one.n_bytes).file
    started = time.perf_counter()
    with largest.open("rb", buffering=0) as file:
        n_read = len(file.read(SAMPLE_BYTES))
    return n_read / (time.perf_counter() - started)


def _flop_speed(device: str, dtype: torch.dtype) -> float:
    matrix = torch.ones(SAMPLE_WIDTH, SAMPLE_WIDTH, device=device, dtype=dtype)
    float((matrix @ matrix)[0, 0])  # the first one loads libraries
    started = time.perf_counter()
    float((matrix @ matrix)[0, 0])  # as a number: a GPU is waited for
    return 2 * SAMPLE_WIDTH**3 / (time.perf_counter() - started)
