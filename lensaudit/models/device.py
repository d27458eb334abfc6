"""Where does a model run, and in which numbers?"""

import torch

from lensaudit.errors import InputError


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
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise InputError(
            f"--device {device}: this machine has {torch.cuda.device_count()} CUDA devices"
        )
    return device


def resolve_dtype(dtype: str, device: str) -> str:
    """`auto` becomes float32 on a CPU and bfloat16 elsewhere."""
    return dtype if dtype != "auto" else ("float32" if device == "cpu" else "bfloat16")
