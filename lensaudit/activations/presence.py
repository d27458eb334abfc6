"""A cache folder that processes share: its owner, its users, and how a file appears there.

Files appear whole, read back, once, whoever else is writing.
"""

import os
import re
import secrets
import shutil
import stat
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lensaudit.activations.shard import hash_of, hash_rest
from lensaudit.errors import InputError, TryAgainError, WorkError
from lensaudit.files import appear, link_new, os_errors
from lensaudit.partials import process_name, works_on

LOCKS = ".locks"
MARK = re.compile(r"use\.([0-9a-f]{8}-\d+)-[0-9a-f]{8}")
"""Name of the file by which a process, which it names, says that it uses a cache."""

USE_AGE_S = 24 * 3600.0
"""A mark of another machine that was not renewed for this long counts as gone."""

TRUST = "LENSAUDIT_TRUST_STORE"
"""Set to 1 to use a store that others can write, such as a laboratory's."""


def check_trusted(folder: Path) -> None:
    """Could somebody else have planted what is in `folder`?

    Raises:
        InputError: another user owns it, or others can write in it.
    """
    if not hasattr(os, "getuid") or os.environ.get(TRUST) == "1":
        return
    with os_errors(folder):
        found = folder.stat()
    if found.st_uid not in (os.getuid(), 0):
        raise InputError(
            f"{folder}: belongs to user {found.st_uid}, you are {os.getuid()}; "
            f"name another --activations folder, or set {TRUST}=1 to trust it"
        )
    others = bool(found.st_mode & stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    group = bool(found.st_mode & stat.S_IWGRP) and not _own_group(found.st_gid)
    if others or group:
        raise InputError(
            f"{folder}: other users can write in it (mode {stat.S_IMODE(found.st_mode):04o}); "
            f"run `chmod go-w {folder}`, or set {TRUST}=1 to trust it"
        )


def _own_group(gid: int) -> bool:
    """Whether a group is the user's private one, as many systems make it writable by default."""
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


class InUse(AbstractContextManager):
    """A cache folder that this process reads or fills, and a file in it that says so.

    No `FileLock`: many read at once, and whoever wants to remove the folder asks who they are.
    """

    def __init__(self, folder: Path):
        """Leave a mark; on a disk that cannot be written there is none, and nothing to protect."""
        self.folder = folder
        self._mark = folder / LOCKS / f"use.{process_name()}-{secrets.token_hex(4)}"
        with suppress(OSError):
            self._mark.parent.mkdir(mode=0o700, exist_ok=True)
            self._mark.touch(exist_ok=False)
        weakref.finalize(self, _remove, self._mark)

    def __exit__(self, *error: object) -> None:
        self.close()

    def renew(self) -> None:
        """Mark the process as alive: touch its file."""
        with suppress(OSError):
            os.utime(self._mark)

    def close(self) -> None:
        """Leave the folder as it is."""
        _remove(self._mark)


def _remove(mark: Path) -> None:
    with suppress(OSError):
        mark.unlink(missing_ok=True)


def users(folder: Path) -> list[str]:
    """Processes that use a cache now; marks of dead ones are removed, and nothing else."""
    alive, locks = list[str](), folder / LOCKS
    for path in () if locks.is_symlink() else locks.glob("use.*"):
        with suppress(OSError, ValueError):
            if (mark := MARK.fullmatch(path.name)) and works_on(mark[1], path, USE_AGE_S):
                alive.append(mark[1])
            elif mark:
                path.unlink()
    return sorted(set(alive))


@contextmanager
def claim(folder: Path, name: str, *, patience_s: float, unlocked: bool = True) -> Iterator[bool]:
    """Hold the lock of one shard while working on it; yields whether the work is ours.

    Only saves double work: where locks do nothing it is `unlocked`, so that two processes do the
    same, and the first to publish wins. A lock held longer than `patience_s` is taken for abandoned
    and ignored.
    """
    path = folder / LOCKS / f"{name}.lock"
    lock = FileLock(path)
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        lock.acquire(timeout=0)
        os.utime(path)
        ours = True
    except Timeout:
        ours = False
        with suppress(OSError):  # released and removed since
            ours = time.time() - path.stat().st_mtime > patience_s
    except (OSError, NotImplementedError):  # a disk without locks
        ours = unlocked
    try:
        yield ours
    finally:
        with suppress(OSError):
            lock.release()


RESERVE_BYTES = 2 << 30
"""Left free on the disk: other jobs write there too."""

MARGIN = 1.2


def check_space(folder: Path, n_bytes: int, *, reserve_bytes: int = RESERVE_BYTES) -> None:
    """Refuse to write `n_bytes` where the disk has no room for them, a margin and a reserve.

    Raises:
        TryAgainError: there is not; says how many bytes are missing.
    """
    with os_errors(folder):
        free = shutil.disk_usage(folder).free
    missing = int(MARGIN * n_bytes) + reserve_bytes - free
    if missing > 0:
        raise TryAgainError(
            f"{folder}: {free} bytes are free, {missing} more are needed ({reserve_bytes} of "
            "them stay free); finished files are kept: free some space or run `lensaudit "
            "activations gc`, then run the same command again"
        )


def publish(path: Path, parts: Sequence[bytes | memoryview]) -> bool:
    """Write, fsync, read back, then give the file its name; the first publisher wins.

    Returns:
        True if this call published it, False if `path` was there already and is left as it is.

    Raises:
        WorkError: the bytes read back are not the bytes written.
        InputError | TryAgainError | WorkError: by cause of the operating system's refusal.
    """
    wanted = hash_of(parts)

    def place(partial: Path, path: Path) -> bool:
        with partial.open("rb", buffering=0) as stream:
            found = hash_rest(stream)
        if found != wanted:  # some network disks report a short write as success
            raise WorkError(
                f"{partial.name}: the disk returned other bytes than were written; files that "
                "were finished before are kept; check the disk and run the same command again"
            )
        return link_new(partial, path)

    return appear(path, lambda stream: stream.writelines(parts), place)
