"""Upkeep of a store: remove leftovers, maps, unused caches and books; repair damaged files.

Each file that goes is named by a document of ours that fits its own checksum, or by the names that
caches have. A folder with anything else in it stays whole, and what it holds is told.
"""

import re
import secrets
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import h5py

from lensaudit.activations.inventory import CacheInfo, check_key, describe, verify
from lensaudit.activations.lookup import matching
from lensaudit.activations.naming import cache_folders
from lensaudit.activations.presence import USE_AGE_S, check_trusted, users
from lensaudit.activations.recipe import command_of, how_to_fill
from lensaudit.activations.removal import OWN_FILES, QUARANTINE, STAGED, cache_files, remove
from lensaudit.activations.shard import BYTE, SHARD_ERRORS, check_array, check_bytes
from lensaudit.activations.spec import MAPS, SEAL, SPEC, Spec, parse_spec, read_spec
from lensaudit.errors import InputError, LensAuditError, VerificationError
from lensaudit.files import os_errors, read_bytes, remove_files, sync_folder, write_bytes
from lensaudit.partials import sweep_partials, works_on
from lensaudit.results.ledger_check import VerifiedLedger, is_ledger, verify_ledger
from lensaudit.results.manifest import signed_object

BOOKS = ("scores", "texts", "fisher", "said", "samples", "worst", "know")
"""Folders of books in an activations folder."""
_TENSORS = re.compile(r"[0-9a-f]{32}\.safetensors")
_BOOK = re.compile(r"[a-z0-9._-]+--[0-9a-f]{32}\.jsonl")
_MARK = re.compile(r"[0-9a-f]{32}\.json")
"""What says of tensors how they were written."""
EMPTY_AGE_S = 3600.0
"""A cache folder without a spec is a job that was killed at once, or one that starts now."""


def verify_books(root: Path) -> list[VerifiedLedger]:
    """Check every line of the books of scores, texts and Fisher information in `root`."""
    return [verify_ledger(path) for kind in BOOKS for path in sorted((root / kind).glob("*.jsonl"))]


@dataclass(frozen=True)
class Repaired:
    """What a repair did."""

    folder: str
    name: str | None
    quarantined: tuple[str, ...]
    """Files moved to `quarantine/`."""
    recomputed: tuple[str, ...] = ()
    """None: `lensaudit cache` computes what is missing."""
    missing: tuple[str, ...] = ()
    """Shards that are still to be filled."""
    sealed: bool = False
    command: str | None = None
    """Fills what is missing; None where the cache does not tell."""
    how_to_fill: str = "to fill it, run again the command that made it"
    """For a person."""


def repair(folder: Path) -> Repaired:
    """Move what is damaged to `quarantine/`; the next `lensaudit cache` fills what is missing.

    Whole shards stay. The seal goes first, so a repair that is killed leaves an incomplete cache,
    not a wrong one.
    """
    from lensaudit.activations.store import CacheWriter  # imports torch

    check_trusted(folder)
    sweep_partials(folder)
    moved: list[str] = []
    spec = _repaired_spec(folder, moved)
    if spec is None:
        moved += [_quarantine(path) for path in sorted(folder.glob("*.h5"))]
        return Repaired(folder=str(folder), name=None, quarantined=tuple(moved))
    if verify(folder).complete:
        return Repaired(str(folder), spec.name, tuple(moved), sealed=True)
    if (folder / SEAL).exists():
        moved.append(_quarantine(folder / SEAL))
    # without its seal the cache holds what is there: a shard counts by its own checksums
    moved += [_quarantine(folder / problem.file) for problem in verify(folder).problems]
    with closing(CacheWriter(folder, spec)) as writer:
        missing = tuple(shard.file_name for shard in writer.missing())
        if not missing:
            writer.seal()
    return Repaired(
        folder=str(folder),
        name=spec.name,
        quarantined=tuple(moved),
        missing=missing,
        sealed=not missing,
        command=command_of(spec, folder.parent),
        how_to_fill=how_to_fill(spec, folder.parent),
    )


def _repaired_spec(folder: Path, moved: list[str]) -> Spec | None:
    """The spec; from a shard, each of which holds a copy, if `spec.json` is damaged."""
    try:
        return check_key(folder, read_spec(folder / SPEC))
    except (VerificationError, InputError):
        if (folder / SPEC).exists():
            moved.append(_quarantine(folder / SPEC))
    for path in sorted(folder.glob("shard-*.h5")):
        with suppress(LensAuditError, *SHARD_ERRORS):
            check_bytes(path)
            with h5py.File(path, "r", locking=False) as file:
                content = check_array(file, "spec", BYTE, (None,))[...].tobytes()
            spec = check_key(folder, parse_spec(content, source=str(path)))
            write_bytes(folder / SPEC, content)
            return spec
    return None


def _quarantine(path: Path) -> str:
    """Out of the way, not lost; `gc` removes it."""
    target = path.parent / QUARANTINE
    stamp = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"
    with os_errors(path):
        target.mkdir(mode=0o700, exist_ok=True)
        path.rename(target / f"{path.name}.{stamp}")
        sync_folder(path.parent)
    return path.name


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


def collect(
    root: Path, *, max_bytes: int | None = None, keep: Sequence[str] = (), dry_run: bool = False
) -> Collected:
    """Remove leftovers, then maps, then caches, then books, until `max_bytes` are left.

    What was written or used longest ago goes first. Caches that `keep` names, and those that a
    living process reads or fills, stay. Books are small and hold the most work.

    Raises:
        InputError: `keep` names a cache that is not there: a slip there would lose one.
    """
    if root.is_dir():
        check_trusted(root)
    named = {name: matching(name, root=root) for name in keep}
    if unknown := [name for name, found in named.items() if not found]:
        raise InputError(f"{root}: no cache {unknown[0]!r:.60} to keep; nothing was removed")
    strange: list[str] = []
    leftovers = _leftovers(root, strange, dry_run=dry_run)
    infos = (describe(one, leftovers) for one in cache_folders(root) if one not in leftovers)
    caches = {Path(info.folder): info for info in sorted(infos, key=lambda one: one.last_used_s)}
    maps, books = _made(root, MAPS), _made(root, *BOOKS)
    sizes = {**maps, **{path: one.n_bytes for path, one in caches.items()}, **books}
    total = sum(sizes.values())
    wanted = total if max_bytes is None else max_bytes
    spared, gone = {*chain(*named.values())}, list[Path]()
    for path, n_bytes in sizes.items():
        if total <= wanted:
            break
        info = caches.get(path)
        stays = info and (path in spared or info.users or not _own_files(path, strange))
        if stays or not (dry_run or _delete(path)):
            continue
        gone.append(path)
        total -= n_bytes
    return Collected(
        removed=tuple(info for path, info in caches.items() if path in gone),
        kept=tuple(info for path, info in caches.items() if path not in gone),
        leftovers=tuple(map(str, leftovers)),
        maps=tuple(str(path) for path in maps if path in gone),
        books=tuple(str(path) for path in books if path in gone),
        strange=tuple(strange),
        n_bytes_left=total,
        n_bytes_over=max(0, total - wanted),
    )


def _made(root: Path, *kinds: str) -> dict[Path, int]:
    """Files that are computed again when needed, the oldest first, with their bytes."""
    found = [path for kind in kinds for path in _children(root / kind) if _is_made(path)]
    return {
        path: sum(one.lstat().st_size for one in _with_its_mark(path))
        for path in sorted(found, key=lambda path: path.lstat().st_mtime)
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


def _delete(path: Path) -> bool:
    """Delete a cache, or a file with its mark; False if a process uses it."""
    if path.is_dir():
        return remove(path)
    for one in _with_its_mark(path):
        one.unlink(missing_ok=True)
    return True


def _own_files(folder: Path, strange: list[str]) -> bool:
    """Whether a folder holds what a cache holds and nothing else; if not, a line of what."""
    try:
        cache_files(folder)
    except LensAuditError as error:
        strange.append(str(error))
        return False
    return True


def _leftovers(root: Path, strange: list[str], *, dry_run: bool) -> list[Path]:
    folders, kept = cache_folders(root), [root / kind for kind in (MAPS, *BOOKS)]
    abandoned = chain(filter(_is_abandoned, _children(root)), filter(_is_empty, folders))
    whole = [path for path in abandoned if _own_files(path, strange)]
    aside = (path for folder in folders for path in _children(folder / QUARANTINE))
    single = [path for path in aside if OWN_FILES[QUARANTINE].fullmatch(path.name)]
    marks = (path for folder in kept for path in _children(folder) if _is_mark(path))
    single += [path for path in marks if not path.with_suffix(".safetensors").exists()]
    for path in () if dry_run else whole:
        remove_files(path, cache_files(path))
    for path in () if dry_run else single:
        path.unlink(missing_ok=True)
    rest = (folder for folder in (*folders, *kept) if folder not in whole)
    swept = [path for folder in rest for path in sweep_partials(folder, dry_run=dry_run)]
    return [*whole, *single, *swept]


def _children(folder: Path) -> list[Path]:
    return [] if folder.is_symlink() or not folder.is_dir() else sorted(folder.iterdir())


def _is_abandoned(path: Path) -> bool:
    """Whether a hidden folder is of a deletion or an import whose process ended."""
    match = STAGED.fullmatch(path.name)
    with suppress(OSError):  # gone meanwhile
        return bool(match and not path.is_symlink() and not works_on(match[1], path, USE_AGE_S))
    return False


def _is_empty(folder: Path) -> bool:
    """Whether a cache is of a job that was killed before it wrote the spec."""
    begun = (folder / SPEC).exists() or list(folder.glob("*.h5")) or users(folder)
    return not begun and time.time() - folder.stat().st_mtime > EMPTY_AGE_S
