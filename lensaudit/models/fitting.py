"""Do a model's weights fit where they are to go, and if not, what would do? Said before reading."""

from collections.abc import Iterator

import torch
from rich.filesize import decimal as size

from lensaudit.errors import InputError
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.device import free_bytes
from lensaudit.models.sizes import n_parameters

NARROW = torch.bfloat16


def check_fits(checkpoint: Checkpoint, *, dtype: torch.dtype, device: str) -> None:
    """Refuse a model whose weights alone take more than is free.

    Raises:
        InputError: says what is taken, what is free, and which option would do.
    """
    n, free = n_parameters(checkpoint.folder), free_bytes(device)
    needed = n * dtype.itemsize
    if free is not None and needed > free:
        raise InputError(
            f"{checkpoint.spec.name}: its weights take {size(needed)} in {_name(dtype)}, "
            f"{size(free)} are free on {device}; {_what_would_do(n, dtype, device)}"
        )


def _what_would_do(n: int, dtype: torch.dtype, device: str) -> str:
    for narrower in dict.fromkeys((dtype, NARROW)):
        for place in _places(device):
            free = free_bytes(place)
            if free is not None and n * narrower.itemsize <= free:
                options = [f"--device {place}"] * (place != device)
                options += [f"--dtype {_name(narrower)}"] * (narrower != dtype)
                return f"{' '.join(options)} would do"
    return f"a device with {size(n * NARROW.itemsize)} would do, with --dtype {_name(NARROW)}"


def _places(device: str) -> Iterator[str]:
    """The device that was asked for, then the others."""
    yield device
    if torch.cuda.is_available():
        yield from (f"cuda:{at}" for at in range(torch.cuda.device_count()))
    yield "cpu"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
