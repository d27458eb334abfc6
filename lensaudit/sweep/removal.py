"""Removing what lies in a folder, and nothing elsewhere."""

import shutil
from contextlib import suppress
from pathlib import Path

from lensaudit.errors import InputError
from lensaudit.files import os_errors


def remove_below(root: Path, path: Path) -> None:
    """Remove a file or a folder that lies in `root`, not through a link; gone already is fine.

    Raises:
        InputError: it lies elsewhere; nothing was removed.
        TryAgainError | WorkError: by cause.
    """
    check_below(root, path)
    with os_errors(path), suppress(FileNotFoundError):  # another process may be faster
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def check_below(root: Path, path: Path) -> None:
    """Refuse a file or a folder that does not lie in `root`, or does so through a link.

    Raises:
        InputError: it lies elsewhere; nothing was removed.
    """
    base, parent = root.resolve(), path.parent.resolve()
    if path.name in ("", ".", "..") or not parent.is_relative_to(base):
        raise InputError(f"{path}: does not lie in {root}; it stays as it is")
