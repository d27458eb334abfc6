"""Temporary files and marks: who made them, and may they go?"""

import hashlib
import os
import platform
import re
import secrets
import time
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
    """Is the process of that name alive? None where it is of another machine."""
    try:
        pid = int(process.rpartition("-")[2])
    except ValueError:  # nobody's name
        return False
    if process != process_name(pid):
        return None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to another user
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Has it ended, only that its parent never asked how? It writes nothing any more."""
    try:
        # the name before the state is in brackets, and may hold some itself
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # not Linux, or gone by now
        return False
    return state in ("Z", "X")


def partial_path(path: Path) -> Path:
    """Where `path` is written before it gets its name: tells who writes it, never ends in `.h5`."""
    stem = os.fsencode(path.name)[:_LONGEST_STEM_BYTES].decode("utf-8", "ignore")
    return path.with_name(f"{stem}.{process_name()}-{secrets.token_hex(4)}.partial")


def is_partial(path: Path) -> bool:
    """Is it named as files are that somebody writes, or was killed over?"""
    return _PARTIAL.fullmatch(path.name) is not None


def sweep_partials(folder: Path) -> list[Path]:
    """Remove what killed writers left in `folder`; files of living writers stay."""
    swept = []
    for path in folder.glob("*.partial"):
        match = _PARTIAL.fullmatch(path.name)
        if match is None:
            continue
        try:
            running = is_running(match[1])
            if running is None:
                running = time.time() - path.stat().st_mtime < PARTIAL_AGE_S
            if not running:
                path.unlink()
                swept.append(path)
        except OSError:  # another process swept it first, or may and we may not
            continue
    return swept
