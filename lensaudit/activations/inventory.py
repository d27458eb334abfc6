"""What is in a store, and which cache is meant by a name, a key or a path; no shard is read."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lensaudit.activations.presence import users
from lensaudit.activations.spec import SEAL, SPEC, Spec, checked_seal, read_spec
from lensaudit.errors import InputError, LensAuditError, VerificationError
from lensaudit.files import os_error, printable, read_json, slug
from lensaudit.settings import Kept, Place, Positions

QUARANTINE = "quarantine"
"""Where `repair` moves damaged files."""

IMPORTED = "imported.json"
"""In a cache that was made elsewhere: from which archive it came."""


@dataclass(frozen=True)
class CacheInfo:
    """One cache, from its spec and directory; no shard is read."""

    folder: str
    key: str
    name: str | None
    """None where `spec.json` is damaged."""
    state: Literal["complete", "incomplete", "damaged"]
    problem: str | None
    n_examples: int
    n_shards: int
    n_published: int
    n_bytes: int
    """Of everything in the folder."""
    last_used_s: float
    """Seconds since 1970."""
    users: tuple[str, ...]
    """Processes, as machine-pid, that read or fill it now."""
    fingerprint: dict[str, Any] | None
    provenance: dict[str, Any] | None
    imported: dict[str, Any] | None
    """Where it came from, if it was made elsewhere."""


def describe(folder: Path) -> CacheInfo:
    """Name, size and state of a cache."""
    spec, problem = None, None
    sealed = False
    try:
        spec = read_spec(folder / SPEC)
        sealed = checked_seal(folder, spec) is not None
    except LensAuditError as error:
        problem = str(error)
    shards = spec.shards() if spec else ()
    there = [shard for shard in shards if (folder / shard.file_name).exists()]
    if sealed and len(there) < len(shards):
        problem = f"{len(shards) - len(there)} sealed shards are gone"
    n_bytes, last_used_s = _disk_use(folder)
    return CacheInfo(
        folder=str(folder),
        key=folder_key(folder),
        name=spec.name if spec else None,
        state="damaged" if problem else "complete" if sealed else "incomplete",
        problem=problem,
        n_examples=len(spec.idx) if spec else 0,
        n_shards=len(shards),
        n_published=len(there),
        n_bytes=n_bytes,
        last_used_s=last_used_s,
        users=tuple(users(folder)),
        fingerprint=spec.fingerprint.document() if spec else None,
        provenance=dict(spec.provenance) if spec else None,
        imported=_imported(folder / IMPORTED),
    )


def _imported(path: Path) -> dict[str, Any] | None:
    """Where a cache came from; a damaged record says so, and blocks nothing."""
    if not path.exists():
        return None
    try:
        found = read_json(path)
    except LensAuditError as error:
        return {"problem": str(error)}
    return found if isinstance(found, dict) else {"problem": f"{path}: is no record of an import"}


def _disk_use(folder: Path) -> tuple[int, float]:
    """Bytes of everything, and when a file was last changed: opening a cache touches its seal."""
    n_bytes, last = 0, 0.0
    for path in folder.rglob("*"):
        with suppress(OSError):  # gone meanwhile
            stat = path.lstat()
            n_bytes += stat.st_size
            if path.parent == folder and path.is_file():
                last = max(last, stat.st_mtime)
    return n_bytes, last


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


def check_key(folder: Path, spec: Spec) -> Spec:
    """The spec of a cache folder, which is named for its key.

    Raises:
        VerificationError: its spec has another.
    """
    if folder_key(folder) != spec.fingerprint.key():
        raise VerificationError(
            f"{folder}: is named for key {folder_key(folder)}, "
            f"its spec.json says {spec.fingerprint.key()}"
        )
    return spec


def folder_of(key: str, root: Path) -> Path | None:
    """The folder of a key, whatever its slug; a complete one if there are several."""
    found = [folder for folder in cache_folders(root) if folder_key(folder) == key]
    return next((folder for folder in found if (folder / SEAL).exists()), next(iter(found), None))


def matching(text: str, *, root: Path) -> list[Path]:
    """The caches that `text` means: a folder or key in full, a name, or the beginning of a key."""
    folders = cache_folders(root)
    tests = (
        lambda folder: text in (folder.name, folder_key(folder)),
        lambda folder: getattr(_spec(folder), "name", None) == text,
        lambda folder: folder.name.rpartition("--")[0] == slug(text),
        lambda folder: len(text) >= 4 and folder_key(folder).startswith(text),
    )
    for test in tests:
        if found := [folder for folder in folders if test(folder)]:
            return found
    return []


def find(
    name_or_key_or_path: Place,
    *,
    root: Path,
    data: Place | None = None,
    limit: int | Literal["all"] | None = None,
    positions: Positions | None = None,
    component: Kept | None = None,
) -> Path:
    """The one cache folder that is meant; of several that match, the one that holds what is wanted.

    None says nothing of it; a component that is not named is the residual stream, where a name
    stands for the cache; a key or a folder is what it is.

    Raises:
        InputError: none or several match; says in what they differ.
    """
    given = {"data": data, "limit": limit, "positions": positions, "component": component}
    wanted = {name: one for name, one in given.items() if one is not None}
    path = Path(name_or_key_or_path)
    if (path / SPEC).is_file() or is_cache(path):
        return path
    text = str(name_or_key_or_path)
    named = matching(text, root=root)
    found = _fitting(text, named, wanted)
    if named and not found:
        said = ", ".join(f"{name}={one}" for name, one in wanted.items())
        raise InputError(
            f"{root}: no cache of {printable(text)[:60]!r}{printable(said and f' with {said}')}; "
            f"there are {differences(named)}"
        )
    match found:
        case [folder]:
            return folder
        case []:
            known = ", ".join(folder.name for folder in cache_folders(root)[:8])
            raise InputError(
                f"{root}: no cache {printable(text)[:60]!r}; "
                + (f"it holds {known}" if known else "it holds none; run `lensaudit cache`")
            )
        case several:
            raise InputError(
                f"{root}: {printable(text)[:60]!r} means {len(several)} caches; give a key, or "
                f"data, limit, positions and component in Python: {differences(several)}"
            )


def differences(folders: Sequence[Path]) -> str:
    """Keys of caches, each with what tells it from the others."""
    said = [_said(_spec(folder)) for folder in folders]
    differing = [name for name in said[0] if len({str(one.get(name)) for one in said}) > 1]
    differing = differing if said[1:] else list(said[0])
    parts = []
    for folder, one in zip(folders, said, strict=True):
        words = ", ".join(f"{name} {one[name]}" for name in differing if one.get(name) is not None)
        parts.append(f"{folder_key(folder)} ({printable(words) or 'damaged'})")
    return "; ".join(parts)


_FIELDS = ("data", "exclude", "rows", "limit")


def _said(spec: Spec | None) -> dict[str, Any]:
    """What a person may be told of a cache, the plainest first."""
    if spec is None:
        return dict.fromkeys(_FIELDS)
    recipe = {name: spec.provenance.get(name) or None for name in _FIELDS}
    hashes = ("weights", "tokenizer", "examples", "template")
    document = spec.fingerprint.document() | {"component": spec.fingerprint.part}
    document |= {name: str(document[name])[:8] for name in hashes}
    del document["hook"]
    return {**recipe, "rows": len(spec.idx), **document}


def _fitting(text: str, named: Sequence[Path], wanted: Mapping[str, Any]) -> Sequence[Path]:
    """Those that hold what is wanted; of several that a name means, all rows' residual stream."""
    found = [(folder, _spec(folder)) for folder in named]
    if wanted:
        found = [(folder, spec) for folder, spec in found if spec and _holds(spec, **wanted)]
    by_key = any(text == one.name or folder_key(one).startswith(text) for one, _ in found)
    if "component" not in wanted and not by_key:
        found = [(one, spec) for one, spec in found if not spec or spec.fingerprint.part == "resid"]
    if "limit" not in wanted and not by_key:
        whole = [one for one in found if (spec := one[1]) and not spec.provenance.get("limit", 1)]
        found = whole or found
    return [folder for folder, _ in found]


def _holds(
    spec: Spec,
    data: Place | None = None,
    limit: int | str | None = None,
    positions: str | None = None,
    component: str | None = None,
) -> bool:
    """Was the cache made for exactly this?"""
    recipe = spec.provenance
    rows = str(data), str(Path(data or "").expanduser().resolve())
    n_rows = None if limit == "all" else limit
    return (
        (data is None or recipe.get("data") in rows)
        and (limit is None or ("limit" in recipe and recipe["limit"] == n_rows))
        and positions in (None, spec.fingerprint.positions)
        and component in (None, spec.fingerprint.part)
    )


def _spec(folder: Path) -> Spec | None:
    try:
        return read_spec(folder / SPEC)
    except LensAuditError:  # damaged: still found by its key and slug, and repaired
        return None
