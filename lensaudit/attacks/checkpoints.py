"""What does an attacked model take? Its stored precision, and the memory to make it."""

import torch
from rich.filesize import decimal as size

from lensaudit.errors import InputError
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.device import free_bytes
from lensaudit.models.sizes import n_parameters


def stored_dtype(start: Checkpoint, named: str) -> torch.dtype:
    """The precision of saved weights: a name, or `same` as the start model's.

    Raises:
        InputError: the start model's is none that torch has.
    """
    name = start.dtype if named == "same" else named
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"{start.spec.name}: weights of dtype {name}; name one with --store")
    return dtype


def check_fits(start: Checkpoint, *, bytes_per_weight: int, device: str) -> None:
    """Refuse a model that does not fit, before it is loaded.

    Raises:
        InputError: more is needed than is free.
    """
    needed, free = bytes_per_weight * n_parameters(start.folder), free_bytes(device)
    if free is not None and needed > free:
        raise InputError(
            f"{start.spec.name}: its weights take {size(needed)}, {size(free)} are "
            f"free on {device}; take a smaller model or another --device"
        )
