"""Who works in a cache folder: marks of use, claims on shards, and whose folder it is."""

import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lensaudit.errors import InputError
from lensaudit.files import os_error
from lensaudit.partials import is_running, process_name

LOCKS = ".locks"
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
    try:
        found = folder.stat()
    except OSError as error:
        raise os_error(error, folder) from error
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
    """Is it the user's private group, which many systems make writable by default?"""
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


class Mark:
    """A file in a cache folder that says: this process reads or fills it."""

    def __init__(self, folder: Path):
        """Leave a mark; on a disk that cannot be written there is none, and nothing to protect."""
        self._path = folder / LOCKS / f"use.{process_name()}-{secrets.token_hex(4)}"
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._path.touch(exist_ok=False)

    def renew(self) -> None:
        """Still here."""
        with suppress(OSError):
            os.utime(self._path)

    def remove(self) -> None:
        """Gone."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def users(folder: Path) -> list[str]:
    """Processes that use a cache now; marks of dead ones are removed."""
    alive = []
    for path in (folder / LOCKS).glob("use.*"):
        process = path.name.removeprefix("use.").rpartition("-")[0]
        with suppress(OSError, ValueError):
            running = is_running(process)
            if running is None:
                running = time.time() - path.stat().st_mtime < USE_AGE_S
            if running:
                alive.append(process)
            else:
                path.unlink()
    return sorted(set(alive))


@contextmanager
def claim(folder: Path, name: str, *, patience_s: float) -> Iterator[bool]:
    """Hold the lock of one shard while working on it; yields whether the work is ours.

    Only saves double work: where locks do nothing two processes do the same, and the first to
    publish wins. A lock held longer than `patience_s` is taken for abandoned and ignored.
    """
    path = folder / LOCKS / f"{name}.lock"
    lock = FileLock(path)
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        lock.acquire(timeout=0)
        os.utime(path)
    except Timeout:
        yield _age_s(path) > patience_s
        return
    except (OSError, NotImplementedError):  # a disk without locks
        yield True
        return
    try:
        yield True
    finally:
        with suppress(OSError):
            lock.release()


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:  # released and removed since
        return 0.0
