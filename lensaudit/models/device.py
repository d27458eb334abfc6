"""The device a model runs on, and its types of numbers."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lensaudit.errors import InputError

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
    n_cuda = torch.cuda.device_count()
    there = ["cpu", "mps"] if torch.backends.mps.is_available() else ["cpu"]
    there += ["cuda", *(f"cuda:{number}" for number in range(n_cuda))] if n_cuda else []
    if device not in there:
        here = f"; this machine has {n_cuda} CUDA devices" if device.startswith("cuda") else ""
        raise InputError(f"--device {device}: wanted auto, cpu, cuda or cuda:N{here}")
    return device


@contextmanager
def one_memory_error() -> Iterator[None]:
    """A lack of memory as torch says it of a GPU, also where it says it of a CPU otherwise."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not isinstance(error, MemoryError) and not _NO_MEMORY.search(str(error)):
            raise
        raise torch.OutOfMemoryError(str(error) or "out of memory") from error


def resolve_dtype(dtype: str, device: str) -> str:
    """`auto` becomes float32 on a CPU and bfloat16 elsewhere."""
    if dtype != "auto":
        return dtype
    return "float32" if device == "cpu" else "bfloat16"


def device_class(device: str) -> str:
    """`cpu` or `cuda-<major number of the compute capability>`: half-precision kernels differ.

    Raises:
        InputError: autocast is on, so that no kernel would be that of a model's own type.
    """
    if torch.is_autocast_enabled(torch.device(device).type):
        raise InputError(
            "torch.autocast is on: numbers would be kept as another type's; leave its block"
        )
    return f"cuda-{torch.cuda.get_device_capability(device)[0]}" if "cuda" in device else device
