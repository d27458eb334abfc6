"""What may go: leftovers of killed processes, fitted maps, and the caches unused for longest."""

import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lensaudit.activations.inventory import IMPORTED, QUARANTINE, CacheInfo, describe
from lensaudit.activations.lookup import cache_folders, matching
from lensaudit.activations.presence import LOCKS, check_trusted, users
from lensaudit.activations.spec import SEAL, SPEC
from lensaudit.errors import InputError
from lensaudit.files import os_error
from lensaudit.partials import is_running, process_name, sweep_partials

STAGED = re.compile(r"\.(?:deleting|import)-([0-9a-f]{8}-\d+)-[0-9a-f]{8}")
"""A folder on its way out or in, with the process that moves it."""
MAPS = "maps"
"""Folder of the maps that `lensaudit.patching.aligned` fits; each can be fitted again."""
_MAP = re.compile(r"[0-9a-f]{32}\.safetensors")
STAGED_AGE_S = 24 * 3600.0
EMPTY_AGE_S = 3600.0
"""A cache folder without a spec is a job that was killed at once, or one that starts now."""


@dataclass(frozen=True)
class Collected:
    """What a collection removed, or would remove."""

    removed: tuple[CacheInfo, ...]
    kept: tuple[CacheInfo, ...]
    leftovers: tuple[str, ...]
    """Temporary files, quarantined files, and folders of killed deletions and imports."""
    maps: tuple[str, ...]
    """Files of fitted maps that were removed."""
    n_bytes_left: int
    n_bytes_over: int
    """Still above the wanted size: everything else is named or in use."""


def staging_name(kind: str) -> str:
    """A hidden folder name that tells whose it is: `.deleting-…` or `.import-…`."""
    return f".{kind}-{process_name()}-{secrets.token_hex(4)}"


def collect(
    root: Path, *, max_bytes: int | None = None, keep: Sequence[str] = (), dry_run: bool = False
) -> Collected:
    """Remove leftovers, then maps, oldest first, then caches until `max_bytes` are left.

    Least recently used caches go first. Caches that `keep` names, and those that a living process
    reads or fills, stay.

    Raises:
        InputError: `keep` names a cache that is not there: a slip there would lose one.
    """
    folders = cache_folders(root)
    if folders:
        check_trusted(root)
    named = {path for name in keep for path in _named(name, root)}
    leftovers = _leftovers(root, folders, dry_run=dry_run)
    infos = sorted((describe(path) for path in folders), key=lambda info: info.last_used_s)
    maps = _maps(root)
    total = sum(info.n_bytes for info in infos) + sum(maps.values())
    gone = _first(maps, 0 if max_bytes is None else total - max_bytes)
    total -= sum(maps[path] for path in gone)
    for path in () if dry_run else gone:
        path.unlink(missing_ok=True)
    removed: list[CacheInfo] = []
    for info in infos:
        if max_bytes is None or total <= max_bytes:
            break
        if Path(info.folder) in named or info.users or not _is_ours(Path(info.folder)):
            continue
        if dry_run or remove(Path(info.folder)):
            removed.append(info)
            total -= info.n_bytes
    over = 0 if max_bytes is None else max(0, total - max_bytes)
    kept = tuple(info for info in infos if info not in removed)
    return Collected(tuple(removed), kept, tuple(leftovers), tuple(map(str, gone)), total, over)


def _first(maps: Mapping[Path, int], n_bytes: int) -> list[Path]:
    """As many files, from the first on, as hold so much."""
    found: list[Path] = []
    for path, size in maps.items():
        if n_bytes <= 0:
            break
        found.append(path)
        n_bytes -= size
    return found


def _maps(root: Path) -> dict[Path, int]:
    """Files of maps, the one written longest ago first, with their bytes."""
    found = [path for path in _children(root / MAPS) if _MAP.fullmatch(path.name)]
    states = {path: path.lstat() for path in found}
    return {path: states[path].st_size for path in sorted(found, key=lambda p: states[p].st_mtime)}


def _named(name: str, root: Path) -> list[Path]:
    if not (found := matching(name, root=root)):
        raise InputError(f"{root}: no cache {name!r:.60} to keep; nothing was removed")
    return found


def remove(folder: Path) -> bool:
    """Delete a cache: first out of sight in one step, then file by file; False if it is in use."""
    gone = folder.with_name(staging_name("deleting"))
    try:
        folder.rename(gone)
        if users(gone):  # somebody opened it since we looked
            gone.rename(folder)
            return False
        shutil.rmtree(gone)
    except OSError as error:
        raise os_error(error, folder) from error
    return True


def _leftovers(root: Path, folders: Sequence[Path], *, dry_run: bool) -> list[str]:
    staged = [path for path in _children(root) if _is_abandoned(path)]
    quarantined = [path for folder in folders for path in _children(folder / QUARANTINE)]
    empty = [folder for folder in folders if _is_empty(folder)]
    if not dry_run:
        for path in (*staged, *empty):
            shutil.rmtree(path, ignore_errors=True)
        for path in quarantined:
            path.unlink(missing_ok=True)
    swept = [] if dry_run else [path for folder in folders for path in sweep_partials(folder)]
    return [str(path) for path in (*staged, *quarantined, *empty, *swept)]


def _children(folder: Path) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(folder.iterdir())


def _is_abandoned(path: Path) -> bool:
    match = STAGED.fullmatch(path.name)
    if match is None or path.is_symlink():
        return False
    running = is_running(match[1])
    if running is None:
        with suppress(OSError):
            running = time.time() - path.stat().st_mtime < STAGED_AGE_S
    return not running


def _is_ours(folder: Path) -> bool:
    """Whether a folder holds what a cache holds and nothing else: others only look like one."""
    own = (SPEC, SEAL, IMPORTED, QUARANTINE, LOCKS)
    return all(path.name in own or path.suffix in (".h5", ".partial") for path in folder.iterdir())


def _is_empty(folder: Path) -> bool:
    """Killed before its spec was there."""
    if (folder / SPEC).exists() or list(folder.glob("*.h5")) or users(folder):
        return False
    if not _is_ours(folder):
        return False
    return time.time() - folder.stat().st_mtime > EMPTY_AGE_S
