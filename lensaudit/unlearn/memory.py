"""Does a training run fit? An estimate before anything is loaded."""

from rich.filesize import decimal as size

from lensaudit.errors import InputError
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.device import free_bytes
from lensaudit.models.sizes import n_parameters

TRAINING_COPIES = 4
"""float32 weights, gradients and AdamW's two moments."""
BYTES = 4


def training_bytes(n_weights: int, *, copies: int, frozen: bool = False) -> int:
    """Bytes of weights, gradients, moments and, with two copies, of the frozen reference.

    Activations come on top and depend on the batch. Frozen weights, below an adapter, have neither
    gradients nor moments, and the adapter's own, a hundredth or so, are not counted.

    >>> training_bytes(1_000_000_000, copies=2) / 1e9
    20.0
    >>> training_bytes(1_000_000_000, copies=2, frozen=True) / 1e9
    8.0
    """
    return BYTES * n_weights * ((1 if frozen else TRAINING_COPIES) + copies - 1)


def check_memory(start: Checkpoint, *, copies: int, device: str, frozen: bool = False) -> None:
    """Refuse a run whose weights alone do not fit.

    Raises:
        InputError: more is needed than is free.
    """
    needed = training_bytes(n_parameters(start.folder), copies=copies, frozen=frozen)
    free = free_bytes(device)
    if free is not None and needed > free:
        raise InputError(
            f"{start.spec.name}: training in float32 takes {size(needed)} for weights"
            f"{'' if frozen else ', gradients, moments'}{' and reference' if copies > 1 else ''}, "
            f"activations apart; {size(free)} are free on {device}; take a smaller model"
            f"{'' if frozen else ', --lora'} or another --device"
        )
