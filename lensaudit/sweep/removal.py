"""Removing what lies in a folder, and nothing elsewhere; refusing links where a sweep writes."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lensaudit.errors import InputError
from lensaudit.files import os_errors

WRITTEN = ("work", "units", "attempts", "claims", "weights", "slurm")
"""Folders of a sweep that its runs write into."""


def check_unlinked(root: Path) -> None:
    """Refuse a sweep with a link where a run writes or removes: it may lead anywhere.

    Raises:
        InputError: names the first one.
    """
    if link := next(_links_in(root), None):
        raise InputError(f"{link}: is a link, and lensaudit makes none; move it away")


def _links_in(root: Path) -> Iterator[str]:
    tops = [os.path.join(root, name) for name in WRITTEN]
    yield from filter(os.path.islink, tops)
    for at, folders, files in (found for top in tops for found in os.walk(top)):
        yield from filter(os.path.islink, (os.path.join(at, one) for one in (*folders, *files)))


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
