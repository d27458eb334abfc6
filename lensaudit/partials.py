"""Which process made a temporary file or a mark, and whether it may be removed."""

import hashlib
import os
import platform
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

PARTIAL_AGE_S = 6 * 3600.0
"""A temporary file of another machine is taken for dead after this: none takes hours to write."""
_LONGEST_STEM_BYTES = 200
"""Of the 255 that file systems allow."""
_PARTIAL = re.compile(r".*\.([0-9a-f]{8}-\d+)-[0-9a-f]{8}\.partial", re.DOTALL)
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def process_name(pid: int | None = None) -> str:
    """`<machine>-<pid>` of a process here: who made a temporary file, and is it still alive?

    The machine is a hash of the host's name, its boot and its process namespace, so a container
    that shares the name but not the processes counts as another machine.
    """
    try:
        space = f"{_BOOT.read_text()}{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux
        space = ""
    machine = hashlib.blake2b(f"{platform.node()}{space}".encode(), digest_size=4).hexdigest()
    return f"{machine}-{os.getpid() if pid is None else pid}"


def is_running(process: str) -> bool | None:
    """Whether the process of that name is alive; None where it is of another machine."""
    try:
        pid = int(process.rpartition("-")[2])
    except ValueError:  # nobody's name
        return False
    if process != process_name(pid):
        return None
    import psutil  # takes a tenth of a second

    try:
        state = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
    # one whose parent never asked how it ended writes nothing any more
    return state not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def partial_path(path: Path) -> Path:
    """Temporary path of a file that is being written: names its process, never ends in `.h5`."""
    stem = os.fsencode(path.name)[:_LONGEST_STEM_BYTES].decode("utf-8", "ignore")
    return path.with_name(f"{stem}.{process_name()}-{secrets.token_hex(4)}.partial")


def is_partial(path: Path) -> bool:
    """Whether a name is that of a file being written, or left by a killed process."""
    return _PARTIAL.fullmatch(path.name) is not None


def works_on(process: str, path: Path, age_s: float) -> bool:
    """Whether a process still works on `path`; of another machine, whether `path` is younger."""
    running = is_running(process)
    return time.time() - path.stat().st_mtime < age_s if running is None else running


def sweep_partials(folder: Path, *, dry_run: bool = False) -> list[Path]:
    """Remove, or only name, what killed writers left in `folder`; files of living writers stay."""
    swept = []
    for path in folder.glob("*.partial"):
        match = _PARTIAL.fullmatch(path.name)
        with suppress(OSError):  # another process swept it first, or may and we may not
            if match and not works_on(match[1], path, PARTIAL_AGE_S):
                if not dry_run:
                    path.unlink()
                swept.append(path)
    return swept
