"""Which cache folder is meant by a name, a key, or a path?"""

import re
from pathlib import Path

from lensaudit.activations.spec import SEAL, SPEC, read_spec
from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import os_error, printable, slug

FOLDER = re.compile(r"[a-z0-9._-]{1,40}--[0-9a-f]{32}")
"""Name of a cache folder; nothing else in a store's root is ever touched."""


def is_cache(path: Path) -> bool:
    """Is this one of our folders, by its name? Links are not followed."""
    return bool(FOLDER.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()


def cache_folders(root: Path) -> list[Path]:
    """The cache folders of a store, by name; none where there is no store yet."""
    try:
        return sorted(path for path in root.iterdir() if is_cache(path))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise os_error(error, root) from error


def folder_key(folder: Path) -> str:
    """The key in a cache folder's name."""
    return folder.name.rpartition("--")[2]


def folder_of(key: str, root: Path) -> Path | None:
    """The folder of a key, whatever its slug; a complete one if there are several."""
    found = [folder for folder in cache_folders(root) if folder_key(folder) == key]
    return next((folder for folder in found if (folder / SEAL).exists()), next(iter(found), None))


def matching(text: str, *, root: Path) -> list[Path]:
    """The caches that `text` means: a folder or key in full, a name, or the beginning of a key."""
    folders = cache_folders(root)
    tests = (
        lambda folder: text in (folder.name, folder_key(folder)),
        lambda folder: _recorded_name(folder) == text,
        lambda folder: folder.name.rpartition("--")[0] == slug(text),
        lambda folder: len(text) >= 4 and folder_key(folder).startswith(text),
    )
    for test in tests:
        if found := [folder for folder in folders if test(folder)]:
            return found
    return []


def find(name_or_key_or_path: str | Path, *, root: Path) -> Path:
    """The one cache folder that is meant.

    Raises:
        InputError: none or several match; lists them.
    """
    path = Path(name_or_key_or_path)
    if (path / SPEC).is_file() or is_cache(path):
        return path
    text = str(name_or_key_or_path)
    match matching(text, root=root):
        case [folder]:
            return folder
        case []:
            known = ", ".join(folder.name for folder in cache_folders(root)[:8])
            raise InputError(
                f"{root}: no cache {printable(text)[:60]!r}; "
                + (f"it holds {known}" if known else "it holds none; run `lensaudit cache`")
            )
        case several:
            keys = ", ".join(folder_key(folder) for folder in several)
            raise InputError(
                f"{root}: {printable(text)[:60]!r} means {len(several)} caches; give a key: {keys}"
            )


def _recorded_name(folder: Path) -> str | None:
    try:
        return read_spec(folder / SPEC).name
    except LensAuditError:  # damaged: still found by its key and slug, and repaired
        return None
