"""How much memory do the limits of this process and of its control group still leave?"""

from collections.abc import Iterator
from pathlib import Path

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
