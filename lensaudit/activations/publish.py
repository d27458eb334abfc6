"""How a file appears in a cache folder: whole, read back, once, whoever else is writing."""

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import xxhash

from lensaudit.activations.shard import hash_rest
from lensaudit.errors import TryAgainError, WorkError
from lensaudit.files import os_error, sync_folder
from lensaudit.partials import partial_path

RESERVE_BYTES = 2 << 30
"""Left free on the disk: other jobs write there too."""
MARGIN = 1.2
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)


def check_space(folder: Path, n_bytes: int, *, reserve_bytes: int = RESERVE_BYTES) -> None:
    """Is there room for `n_bytes` more, with a margin and a reserve?

    Raises:
        TryAgainError: there is not; says how many bytes are missing.
    """
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise os_error(error, folder) from error
    missing = int(MARGIN * n_bytes) + reserve_bytes - free
    if missing > 0:
        raise TryAgainError(
            f"{folder}: {free} bytes are free, {missing} more are needed "
            f"(of them {reserve_bytes} stay free); what is published is kept: "
            "free some or run `lensaudit activations gc`, then run the same command again"
        )


def publish(path: Path, parts: Sequence[bytes | memoryview]) -> bool:
    """Write, fsync, read back, then give the file its name; the first publisher wins.

    Returns:
        True if this call published it, False if `path` was there already and is left as it is.

    Raises:
        WorkError: the bytes read back are not the bytes written.
        InputError | TryAgainError | WorkError: by cause of the operating system's refusal.
    """
    partial = partial_path(path)
    try:
        try:
            with partial.open("xb") as stream:
                for part in parts:
                    stream.write(part)
                stream.flush()
                os.fsync(stream.fileno())
            _read_back(partial, parts)
            published = link_new(partial, path)
            sync_folder(path.parent)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise os_error(error, path) from error
    return published


def _read_back(partial: Path, parts: Sequence[bytes | memoryview]) -> None:
    """Catches short writes, which some network disks report as success."""
    wanted = xxhash.xxh3_128()
    for part in parts:
        wanted.update(part)
    with partial.open("rb", buffering=0) as stream:
        found = hash_rest(stream)
    if found != wanted.hexdigest():
        raise WorkError(
            f"{partial.name}: the disk returned other bytes than were written; "
            "what was published before is kept; check the disk and run the same command again"
        )


def link_new(partial: Path, path: Path) -> bool:
    """Give `partial` the name `path` unless it is taken: atomic, and without locks.

    A rename would let a slow second writer replace a file that was sealed meanwhile.
    """
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            return False
        os.replace(partial, path)  # no hard links here (FAT, some network disks)
    return True
