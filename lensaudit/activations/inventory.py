"""The caches in a store, and whether any byte of them was changed."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lensaudit.activations.naming import folder_key
from lensaudit.activations.presence import check_trusted, users
from lensaudit.activations.shard import check_shard
from lensaudit.activations.spec import (
    SEAL,
    SPEC,
    Seal,
    SealedShard,
    Spec,
    checked_seal,
    read_spec,
)
from lensaudit.errors import LensAuditError, VerificationError
from lensaudit.results.reading import json_object

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


def describe(folder: Path, without: Iterable[Path] = ()) -> CacheInfo:
    """Name, size and state of a cache; size and time are those without some of its files."""
    spec, problem, sealed = None, None, False
    try:
        spec = read_spec(folder / SPEC)
        sealed = checked_seal(folder, spec) is not None
    except LensAuditError as error:
        problem = str(error)
    shards = spec.shards() if spec else ()
    n_published = sum((folder / shard.file_name).exists() for shard in shards)
    if sealed and n_published < len(shards):
        problem = f"{len(shards) - n_published} sealed shards are gone"
    n_bytes, last_used_s = 0, 0.0  # opening a cache touches its seal
    for path in {*folder.rglob("*")}.difference(without):
        with suppress(OSError):  # gone meanwhile
            stat = path.lstat()
            n_bytes += stat.st_size
            if path.parent == folder and path.is_file():
                last_used_s = max(last_used_s, stat.st_mtime)
    return CacheInfo(
        folder=str(folder),
        key=folder_key(folder),
        name=spec.name if spec else None,
        state="damaged" if problem else "complete" if sealed else "incomplete",
        problem=problem,
        n_examples=len(spec.idx) if spec else 0,
        n_shards=len(shards),
        n_published=n_published,
        n_bytes=n_bytes,
        last_used_s=last_used_s,
        users=tuple(users(folder)),
        fingerprint=spec.fingerprint.document() if spec else None,
        provenance=dict(spec.provenance) if spec else None,
        imported=_imported(folder / IMPORTED),
    )


def _imported(path: Path) -> dict[str, Any] | None:
    """Where a cache came from; a damaged record says so, and blocks nothing."""
    try:
        return json_object(path) if path.exists() else None
    except LensAuditError as error:
        return {"problem": str(error)}


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


@dataclass(frozen=True)
class Problem:
    """A file of a cache that is not as it was written."""

    file: str
    what: str


@dataclass(frozen=True)
class VerifiedCache:
    """What checking every byte of a cache found."""

    folder: str
    key: str
    name: str | None
    complete: bool
    n_shards: int
    n_bytes: int
    """Of the shards that are whole."""
    problems: tuple[Problem, ...]


def verify(folder: Path) -> VerifiedCache:
    """Read and check every byte of a cache."""
    check_trusted(folder)
    problems: list[Problem] = []

    def whole(file: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except LensAuditError as error:
            problems.append(Problem(file, str(error)))
            return None

    spec: Any = whole(SPEC, lambda: check_key(folder, read_spec(folder / SPEC)))
    seal: Seal | None = spec and whole(SEAL, lambda: checked_seal(folder, spec))
    found: list[SealedShard | None] = []
    for shard in spec.shards() if spec else ():
        path, said = folder / shard.file_name, (seal or {}).get(shard.number)
        if seal or path.exists():
            found.append(whole(path.name, partial(check_shard, path, spec, shard, said)))
    return VerifiedCache(
        folder=str(folder),
        key=folder_key(folder),
        name=spec.name if spec else None,
        complete=seal is not None and not problems,
        n_shards=len(found),
        n_bytes=sum(one.n_bytes for one in found if one),
        problems=tuple(problems),
    )
