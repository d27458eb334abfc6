"""Is every byte of a cache as it was written, and how is one that is not made whole again?

Imports no torch: `import` runs it as a process.
"""

import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py

from lensaudit.activations.inventory import QUARANTINE, check_key, folder_key
from lensaudit.activations.presence import check_trusted
from lensaudit.activations.shard import BYTE, SHARD_ERRORS, check_array, check_bytes, check_shard
from lensaudit.activations.spec import (
    SEAL,
    SPEC,
    Seal,
    SealedShard,
    Shard,
    Spec,
    checked_seal,
    parse_spec,
    read_spec,
)
from lensaudit.errors import InputError, LensAuditError, VerificationError
from lensaudit.files import os_error, sync_folder, write_bytes
from lensaudit.partials import sweep_partials
from lensaudit.results.ledger import VerifiedLedger, verify_ledger

if TYPE_CHECKING:
    from lensaudit.activations.store import ExampleActivations

BOOKS = ("scores", "texts", "fisher", "said", "samples", "worst", "know")
"""Folders of books in an activations folder."""

OWN_BYTES = 4 << 30
"""Address space of Python, numpy and HDF5; resident they take a hundredth of it."""


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


@dataclass(frozen=True)
class Repaired:
    """What a repair did."""

    folder: str
    name: str | None
    quarantined: tuple[str, ...]
    """Files moved to `quarantine/`."""
    recomputed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Shards that are still to be filled."""
    sealed: bool = False
    command: str | None = None
    """Fills what is missing; None where the cache does not tell."""
    how_to_fill: str = "run the command that made it again to fill it"
    """For a person."""


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


def verify_books(root: Path) -> list[VerifiedLedger]:
    """Check every line of the books of scores, texts and Fisher information in `root`."""
    return [verify_ledger(path) for kind in BOOKS for path in sorted((root / kind).glob("*.jsonl"))]


Recompute = Callable[[Spec, Shard], Sequence["ExampleActivations"]]
"""Makes the examples of one shard again, by the recipe in the spec's provenance."""


def repair(folder: Path, *, recompute: Recompute | None = None) -> Repaired:
    """Move what is damaged to `quarantine/`, and make it again if `recompute` can.

    Whole shards stay. Without `recompute` the next `lensaudit cache` fills what is missing. The
    seal goes first, so a repair that is killed leaves an incomplete cache, not a wrong one.
    """
    from lensaudit.activations.store import CacheWriter  # imports torch

    check_trusted(folder)
    sweep_partials(folder)
    moved: list[str] = []
    spec = _repaired_spec(folder, moved)
    if spec is None:
        moved += [_quarantine(path) for path in sorted(folder.glob("*.h5"))]
        return Repaired(folder=str(folder), name=None, quarantined=tuple(moved))
    bad = [shard for shard in spec.shards() if _is_bad(folder / shard.file_name, spec, shard)]
    if not bad and _is_sealed(folder, spec):
        return Repaired(str(folder), spec.name, tuple(moved), sealed=True)
    if (folder / SEAL).exists():
        moved.append(_quarantine(folder / SEAL))
    moved += [_quarantine(folder / shard.file_name) for shard in bad]
    with closing(CacheWriter(folder, spec)) as writer:
        done = []
        for shard in writer.missing() if recompute else ():
            assert recompute is not None
            writer.publish(shard, recompute(spec, shard))
            done.append(shard.file_name)
        missing = tuple(shard.file_name for shard in writer.missing())
        if not missing:
            writer.seal()
    return Repaired(
        folder=str(folder),
        name=spec.name,
        quarantined=tuple(moved),
        recomputed=tuple(done),
        missing=missing,
        sealed=not missing,
        command=spec.command(folder.parent),
        how_to_fill=spec.how_to_fill(folder.parent),
    )


def _is_bad(path: Path, spec: Spec, shard: Shard) -> bool:
    """Is there a file, and is it damaged, none, or one that the disk cannot read?"""
    try:
        return path.exists() and not check_shard(path, spec, shard)
    except LensAuditError:
        return True


def _is_sealed(folder: Path, spec: Spec) -> bool:
    """Does the seal agree with the shards on disk, which are whole?"""
    try:
        seal = checked_seal(folder, spec)
        for shard in spec.shards() if seal else ():
            check_bytes(folder / shard.file_name, (seal or {})[shard.number])
    except (VerificationError, InputError):
        return False
    return seal is not None


def _repaired_spec(folder: Path, moved: list[str]) -> Spec | None:
    """The spec; from a shard, each of which holds a copy, if `spec.json` is damaged."""
    try:
        return check_key(folder, read_spec(folder / SPEC))
    except (VerificationError, InputError):
        if (folder / SPEC).exists():
            moved.append(_quarantine(folder / SPEC))
    for path in sorted(folder.glob("shard-*.h5")):
        try:
            check_bytes(path)
            with h5py.File(path, "r", locking=False) as file:
                content = check_array(file, "spec", BYTE)[...].tobytes()
            spec = check_key(folder, parse_spec(content, source=str(path)))
        except (LensAuditError, *SHARD_ERRORS):
            continue
        write_bytes(folder / SPEC, content)
        return spec
    return None


def _quarantine(path: Path) -> str:
    """Out of the way, not lost; `gc` removes it."""
    target = path.parent / QUARANTINE
    stamp = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"
    try:
        target.mkdir(mode=0o700, exist_ok=True)
        path.rename(target / f"{path.name}.{stamp}")
        sync_folder(path.parent)
    except OSError as error:
        raise os_error(error, path) from error
    return path.name


def main() -> None:
    """Verify the folder named on the command line with bounded memory; print JSON."""
    import resource  # not on every system; without it foreign archives are refused

    folder = Path(sys.argv[1])
    largest = max((path.stat().st_size for path in folder.iterdir()), default=0)
    limit = OWN_BYTES + 2 * largest
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(json.dumps(asdict(verify(folder))))


if __name__ == "__main__":
    main()
