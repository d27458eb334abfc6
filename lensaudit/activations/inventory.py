"""What is in a store: names, sizes and states, from specs and directories alone."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lensaudit.activations.lookup import folder_key
from lensaudit.activations.presence import users
from lensaudit.activations.spec import SPEC, checked_seal, read_spec
from lensaudit.errors import LensAuditError
from lensaudit.files import read_json

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
