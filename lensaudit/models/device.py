"""Where does a model run, and in which numbers?"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from lensaudit.errors import InputError
from lensaudit.models.limits import left_by_limits

_NO_MEMORY = re.compile(
    r"can(?:'|no)t allocate memory|not enough memory|out of memory", re.IGNORECASE
)


def resolve_device(device: str) -> str:
    """`auto` becomes `cuda` where there is one, else `cpu`.

    Raises:
        InputError: not a device, or one that this machine lacks.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = device.partition(":")
    known = kind in ("cpu", "cuda", "mps") and (not number or number.isdigit())
    if not known:
        raise InputError(f"--device {device}: wanted auto, cpu, cuda or cuda:N")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise InputError(f"--device {device}: this machine has no Metal device")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise InputError(
            f"--device {device}: this machine has {torch.cuda.device_count()} CUDA devices"
        )
    return device


@contextmanager
def one_memory_error() -> Iterator[None]:
    """A lack of memory as torch says it of a GPU, also where it says it of a CPU otherwise."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (MemoryError, RuntimeError, OSError) as error:
        if not isinstance(error, MemoryError) and not _NO_MEMORY.search(str(error)):
            raise
        raise torch.OutOfMemoryError(str(error) or "out of memory") from error


def resolve_dtype(dtype: str, device: str) -> str:
    """`auto` becomes float32 on a CPU and bfloat16 elsewhere."""
    return dtype if dtype != "auto" else ("float32" if device == "cpu" else "bfloat16")


def device_class(device: str) -> str:
    """`cpu` or `cuda-<major>`: half-precision kernels differ between them."""
    if not device.startswith("cuda"):
        return device
    return f"cuda-{torch.cuda.get_device_capability(device)[0]}"


def free_bytes(device: str) -> int | None:
    """Memory that can still be taken on `device`; None where no driver tells.

    On a CPU what is available, or what limits of this process leave of it.
    """
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0] if torch.cuda.is_available() else None
    available, left = psutil.virtual_memory().available, left_by_limits()
    return available if left is None else min(available, left)
