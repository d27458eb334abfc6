"""Folders that are caches, by their names."""

import re
from pathlib import Path

from lensaudit.activations.spec import SEAL
from lensaudit.files import os_errors

FOLDER = re.compile(r"[a-z0-9._-]{1,40}--[0-9a-f]{32}")
"""Name of a cache folder; nothing else in a store's root is ever touched."""


def is_cache(path: Path) -> bool:
    """Whether a folder is a cache, by its name; links are not followed."""
    return bool(FOLDER.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()


def cache_folders(root: Path) -> list[Path]:
    """The cache folders of a store, by name; none where there is no store yet."""
    with os_errors(root):
        return sorted(filter(is_cache, root.iterdir())) if root.exists() else []


def folder_key(folder: Path) -> str:
    """The key in a cache folder's name."""
    return folder.name.rpartition("--")[2]


def folder_of(key: str, root: Path) -> Path | None:
    """The folder of a key, whatever its slug; a complete one if there are several."""
    found = (folder for folder in cache_folders(root) if folder_key(folder) == key)
    return max(found, key=lambda folder: (folder / SEAL).exists(), default=None)
