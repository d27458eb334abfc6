"""Does a training run fit? An estimate before anything is loaded."""

from rich.filesize import decimal as size

from lensaudit.errors import InputError
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.device import free_bytes
from lensaudit.models.sizes import n_parameters

TRAINING_COPIES = 4
"""float32 weights, gradients and AdamW's two moments."""
BYTES = 4


def training_bytes(n_weights: int, *, copies: int) -> int:
    """Bytes of weights, gradients, moments and, with two copies, of the frozen reference.

    Activations come on top and depend on the batch.

    >>> training_bytes(1_000_000_000, copies=2) / 1e9
    20.0
    """
    return BYTES * n_weights * (TRAINING_COPIES + copies - 1)


def check_memory(start: Checkpoint, *, copies: int, device: str) -> None:
    """Refuse a run whose weights alone do not fit.

    Raises:
        InputError: more is needed than is free.
    """
    needed = training_bytes(n_parameters(start.folder), copies=copies)
    free = free_bytes(device)
    if free is not None and needed > free:
        raise InputError(
            f"{start.spec.name}: training in float32 takes {size(needed)} for weights, "
            f"gradients, moments{' and reference' if copies > 1 else ''}, activations apart; "
            f"{size(free)} are free on {device}; take a smaller model or another --device"
        )
