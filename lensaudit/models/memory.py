"""The memory that can still be taken: of a device, under the limits of this process."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import torch

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")

UNLIMITED = 1 << 60
"""A limit from here on is none; control groups of version 1 say so with 2^63."""

_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By controller, as /proc/self/cgroup names it (version 2 names none): limit, use, and the entry of
memory.stat for the cache of files that is given up when memory is wanted."""


def free_bytes(device: str) -> int | None:
    """Memory that can still be taken on `device`; None where no driver tells.

    On a CPU what is available, or what limits of this process leave of it; on a card what its
    driver has, with what PyTorch keeps of models that were let go, and no more than this process's
    part.
    """
    if device.startswith("cuda"):
        return _left_on(device) if torch.cuda.is_available() else None
    available, left = psutil.virtual_memory().available, left_by_limits()
    return available if left is None else min(available, left)


def _left_on(card: str) -> int:
    (free, total), own = torch.cuda.mem_get_info(card), torch.cuda.memory_allocated(card)
    part = torch.cuda.get_per_process_memory_fraction(card)
    return min(free + torch.cuda.memory_reserved(card), int(part * total)) - own


def left_by_limits() -> int | None:
    """Bytes that can still be taken under `ulimit -v`, `ulimit -d` and control groups.

    None where nothing is limited, or the system does not tell.
    """
    left = [*left_to_process(), *_left_to_group()]
    return max(0, min(left)) if left else None


def left_to_process() -> Iterator[int]:
    """Under `ulimit -v` and `ulimit -d`, which count mapped files too."""
    with suppress(ImportError, OSError):
        import resource  # not on every system

        words = (PROC / "self" / "statm").read_text().split()
        used = {resource.RLIMIT_AS: int(words[0]), resource.RLIMIT_DATA: int(words[5])}
        for limit, pages in used.items():
            most, _ = resource.getrlimit(limit)
            if most != resource.RLIM_INFINITY:
                yield most - pages * resource.getpagesize()


def _left_to_group() -> Iterator[int]:
    """Under the limits of the process's control groups and of all above them."""
    path = PROC / "self" / "cgroup"
    for line in path.read_text().splitlines() if path.exists() else ():
        _, controllers, below = line.split(":", 2)
        for named in _FILES.keys() & set(controllers.split(",")):
            limit, use, cache = _FILES[named]
            root = GROUPS / named
            here = root / below.lstrip("/")
            # inside a container the path may be the host's, and only the root is there
            for group in {here, *here.parents, root} - {*root.parents}:
                with suppress(OSError, ValueError):
                    most, used = (group / limit).read_text(), int((group / use).read_text())
                    stat = (group / "memory.stat").read_text().splitlines()
                    if most.strip() != "max" and int(most) < UNLIMITED:
                        freed = dict(one.split() for one in stat).get(cache, 0)
                        yield int(most) - used + int(freed)
