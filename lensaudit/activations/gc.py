"""What may go: leftovers of killed processes, fitted maps, unused caches, and at last books.

Each file that goes is named by a document of ours that fits its own checksum, or by the names that
caches have. A folder with anything else in it stays whole, and what it holds is told.
"""

import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lensaudit.activations.inventory import QUARANTINE, CacheInfo, cache_folders, describe, matching
from lensaudit.activations.presence import LOCKS, check_trusted, still_running, users
from lensaudit.activations.spec import SPEC, read_spec
from lensaudit.activations.verification import BOOKS
from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import files_below, os_error, read_bytes, remove_files
from lensaudit.partials import is_partial, process_name, sweep_partials
from lensaudit.results.ledger import is_ledger
from lensaudit.results.records import signed_object

STAGED = re.compile(r"\.(?:deleting|import)-([0-9a-f]{8}-\d+)-[0-9a-f]{8}")
"""A folder on its way out or in, with the process that moves it."""
MAPS = "maps"
"""Folder of the maps that `lensaudit.patching.alignment` fits; each can be fitted again."""
_TENSORS = re.compile(r"[0-9a-f]{32}\.safetensors")
_BOOK = re.compile(r"[a-z0-9._-]+--[0-9a-f]{32}\.jsonl")
_MARK = re.compile(r"[0-9a-f]{32}\.json")
"""What says of tensors how they were written."""
_OWN = {
    QUARANTINE: re.compile(r"(?:spec\.json|SEAL\.json|shard-\d{6}\.h5)\.\d{8}T\d{6}Z-[0-9a-f]{4}"),
    LOCKS: re.compile(r"use\.[0-9a-f]{8}-\d+-[0-9a-f]{8}|.*\.lock"),
    "": re.compile(
        r"spec\.json|SEAL\.json|imported\.json|shard-\d{6}\.h5|unfinished-blocks\.(?:bin|json)"
    ),
}
"""Folder in a cache -> names of its files."""
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
    books: tuple[str, ...]
    """Books of scores, texts and Fisher information that were removed."""
    strange: tuple[str, ...]
    """Lines about caches and leftovers that stay: what they hold that is not ours."""
    n_bytes_left: int
    n_bytes_over: int
    """Still above the wanted size: everything else is named or in use."""


def staging_name(kind: str) -> str:
    """A hidden folder name that tells whose it is: `.deleting-…` or `.import-…`."""
    return f".{kind}-{process_name()}-{secrets.token_hex(4)}"


def collect(
    root: Path, *, max_bytes: int | None = None, keep: Sequence[str] = (), dry_run: bool = False
) -> Collected:
    """Remove leftovers, then maps, then caches, then books, until `max_bytes` are left.

    What was written or used longest ago goes first. Caches that `keep` names, and those that a
    living process reads or fills, stay. Books are small and hold the most work.

    Raises:
        InputError: `keep` names a cache that is not there: a slip there would lose one.
    """
    folders = cache_folders(root)
    if root.is_dir():
        check_trusted(root)
    named = {path for name in keep for path in _named(name, root)}
    strange: list[str] = []
    leftovers = _leftovers(root, folders, strange, dry_run=dry_run)
    infos = sorted((describe(path) for path in folders), key=lambda info: info.last_used_s)
    maps, books = _made(root, MAPS), _made(root, *BOOKS)
    total = sum(info.n_bytes for info in infos) + sum(maps.values()) + sum(books.values())
    wanted = total if max_bytes is None else max_bytes
    gone = _first(maps, total - wanted, dry_run=dry_run)
    total -= sum(maps[path] for path in gone)
    removed: list[CacheInfo] = []
    for info in infos:
        if total <= wanted:
            break
        if Path(info.folder) in named or info.users:
            continue
        if _own_files(Path(info.folder), strange) and (dry_run or remove(Path(info.folder))):
            removed.append(info)
            total -= info.n_bytes
    shut = _first(books, total - wanted, dry_run=dry_run)
    total -= sum(books[path] for path in shut)
    return Collected(
        removed=tuple(removed),
        kept=tuple(info for info in infos if info not in removed),
        leftovers=tuple(leftovers),
        maps=tuple(map(str, gone)),
        books=tuple(map(str, shut)),
        strange=tuple(strange),
        n_bytes_left=total,
        n_bytes_over=max(0, total - wanted),
    )


def _first(made: Mapping[Path, int], n_bytes: int, *, dry_run: bool) -> list[Path]:
    """As many files, from the first on, as hold so much; they are deleted."""
    found: list[Path] = []
    for path, size in made.items():
        if n_bytes <= 0:
            break
        found.append(path)
        n_bytes -= size
        for one in () if dry_run else _with_its_mark(path):
            one.unlink(missing_ok=True)
    return found


def _made(root: Path, *kinds: str) -> dict[Path, int]:
    """Files that are made again where they are wanted, the oldest first, with their bytes."""
    found = [path for kind in kinds for path in _children(root / kind) if _is_made(path)]
    written = {path: path.lstat().st_mtime for path in found}
    return {
        path: sum(one.lstat().st_size for one in _with_its_mark(path))
        for path in sorted(found, key=written.__getitem__)
    }


def _is_made(path: Path) -> bool:
    """Tensors by what speaks of them, a ledger by its first line; nothing else is ours."""
    if path.is_symlink() or not path.is_file():
        return False
    if _TENSORS.fullmatch(path.name):
        return _is_mark(path.with_suffix(".json"))
    return _BOOK.fullmatch(path.name) is not None and is_ledger(read_bytes(path))


def _with_its_mark(path: Path) -> list[Path]:
    """A file, and before it what says how it was written: that never stays behind alone."""
    return [*filter(_is_mark, [path.with_suffix(".json")]), path]


def _is_mark(path: Path) -> bool:
    """Does it say of tensors, under a checksum of ours, of which key and content they are?"""
    if not _MARK.fullmatch(path.name) or path.is_symlink():
        return False
    with suppress(InputError):
        return signed_object(path).keys() == {"key", "n_bytes", "blake2b"}
    return False


def _named(name: str, root: Path) -> list[Path]:
    if not (found := matching(name, root=root)):
        raise InputError(f"{root}: no cache {name!r:.60} to keep; nothing was removed")
    return found


def remove(folder: Path) -> bool:
    """Delete a cache: first out of sight in one step, then file by file; False if it is in use.

    Raises:
        InputError: names what it holds that is not ours; it stays where it is.
    """
    _cache_files(folder)
    gone = folder.with_name(staging_name("deleting"))
    try:
        folder.rename(gone)
        if users(gone):  # somebody opened it since we looked
            gone.rename(folder)
            return False
    except OSError as error:
        raise os_error(error, folder) from error
    # the spec last: it says whose the rest is
    remove_files(gone, sorted(_cache_files(gone), key=lambda path: path == gone / SPEC))
    return True


def _cache_files(folder: Path) -> list[Path]:
    """The files of a cache with a spec of ours, or of a killed start, import or deletion of one.

    Raises:
        LensAuditError: the spec is damaged or foreign, or something else lies there: it is named.
    """
    if (folder / SPEC).exists():
        read_spec(folder / SPEC)
    inner = [folder, *folder.glob("*--*")] if STAGED.fullmatch(folder.name) else [folder]

    def ours(path: Path) -> bool:
        kind = "" if path.parent in inner else path.parent.name
        of = path.parent if kind == "" else path.parent.parent
        names = _OWN.get(kind) if of in inner else None
        return names is not None and bool(names.fullmatch(path.name) or is_partial(path))

    return files_below(folder, ours)


def _own_files(folder: Path, strange: list[str]) -> bool:
    """Whether a folder holds what a cache holds and nothing else; if not, a line of what."""
    try:
        _cache_files(folder)
    except LensAuditError as error:
        strange.append(str(error))
        return False
    return True


def _leftovers(
    root: Path, folders: Sequence[Path], strange: list[str], *, dry_run: bool
) -> list[str]:
    staged = [path for path in _children(root) if _is_abandoned(path)]
    kept = [root / kind for kind in (MAPS, *BOOKS)]
    aside = [path for folder in folders for path in _children(folder / QUARANTINE)]
    single = [path for path in aside if _OWN[QUARANTINE].fullmatch(path.name)]
    marks = (path for folder in kept for path in _children(folder) if _is_mark(path))
    single += [path for path in marks if not path.with_suffix(".safetensors").exists()]
    whole = [path for path in (*staged, *_empty(folders)) if _own_files(path, strange)]
    if not dry_run:
        for path in whole:
            remove_files(path, _cache_files(path))
        for path in single:
            path.unlink(missing_ok=True)
    at = () if dry_run else (*folders, *kept)
    swept = [path for folder in at for path in sweep_partials(folder)]
    return [str(path) for path in (*whole, *single, *swept)]


def _children(folder: Path) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(folder.iterdir())


def _is_abandoned(path: Path) -> bool:
    match = STAGED.fullmatch(path.name)
    if match is None or path.is_symlink():
        return False
    try:
        return not still_running(match[1], path)
    except OSError:  # gone meanwhile
        return False


def _empty(folders: Iterable[Path]) -> list[Path]:
    """Caches of jobs that were killed before the spec was there."""
    return [
        folder
        for folder in folders
        if not ((folder / SPEC).exists() or list(folder.glob("*.h5")) or users(folder))
        and time.time() - folder.stat().st_mtime > EMPTY_AGE_S
    ]
