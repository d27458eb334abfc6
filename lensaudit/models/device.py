"""Where does a model run, in which numbers, and how much memory is left there?"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
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
    """`cpu` or `cuda-<major number of the compute capability>`: half-precision kernels differ."""
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


PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")

UNLIMITED = 1 << 60
"""A limit from here on is none; control groups of version 1 say so with 2^63."""

_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By controller, as /proc/self/cgroup names it (version 2 names none): limit, use, and the entry of
memory.stat for the cache of files that is given up when memory is wanted."""


def left_by_limits() -> int | None:
    """Bytes that can still be taken under `ulimit -v`, `ulimit -d` and control groups.

    None where nothing is limited, or the system does not tell.
    """
    left = [*_left_to_process(), *_left_to_group()]
    return max(0, min(left)) if left else None


def _left_to_process() -> Iterator[int]:
    try:
        import resource  # not on every system
    except ImportError:
        return
    try:
        words = (PROC / "self" / "statm").read_text().split()
    except OSError:
        return
    page = resource.getpagesize()
    used = {resource.RLIMIT_AS: int(words[0]), resource.RLIMIT_DATA: int(words[5])}
    for limit, pages in used.items():
        most, _ = resource.getrlimit(limit)
        if most != resource.RLIM_INFINITY:
            yield most - pages * page


def _left_to_group() -> Iterator[int]:
    try:
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        named = next((one for one in controllers.split(",") if one in _FILES), None)
        if named is not None:
            root = GROUPS / named
            here = root / path.lstrip("/")
            yield from _left_in(here, root, *_FILES[named])


def _left_in(folder: Path, root: Path, limit: str, use: str, cache: str) -> Iterator[int]:
    """Under the limits of a group and of all above it."""
    # inside a container the path may be the host's, and only the root is there
    for group in dict.fromkeys((folder, *folder.parents, root)):
        if group != root and root not in group.parents:
            continue
        try:
            most, used = (group / limit).read_text().strip(), int((group / use).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if most != "max" and int(most) < UNLIMITED:
            yield int(most) - used + int(stat.get(cache, 0))
