"""Is every byte of a cache as it was written, and how is one that is not made whole again?

Imports no torch: `import` runs it as a process.
"""

import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import h5py

from lensaudit.activations.inventory import QUARANTINE, check_key, folder_key
from lensaudit.activations.presence import check_trusted
from lensaudit.activations.shard import BYTE, SHARD_ERRORS, check_array, check_bytes, check_shard
from lensaudit.activations.spec import SEAL, SPEC, Shard, Spec, checked_seal, parse_spec, read_spec
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
    recomputed: tuple[str, ...] = field(default=())
    missing: tuple[str, ...] = field(default=())
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
    n_bytes, spec, seal = 0, None, None
    try:
        spec = read_spec(folder / SPEC)
        check_key(folder, spec)
    except LensAuditError as error:
        problems.append(Problem(SPEC, str(error)))
        return VerifiedCache(str(folder), folder_key(folder), None, False, 0, 0, tuple(problems))
    try:
        seal = checked_seal(folder, spec)
    except LensAuditError as error:
        problems.append(Problem(SEAL, str(error)))
    sealed = {shard.number: shard for shard in seal.shards} if seal else {}
    there = [s for s in spec.shards() if seal or (folder / s.file_name).exists()]
    for shard in there:
        path = folder / shard.file_name
        try:
            n_bytes += check_shard(path, spec, shard, sealed.get(shard.number)).n_bytes
        except LensAuditError as error:
            problems.append(Problem(shard.file_name, str(error)))
    return VerifiedCache(
        folder=str(folder),
        key=folder_key(folder),
        name=spec.name,
        complete=seal is not None and not problems,
        n_shards=len(there),
        n_bytes=n_bytes,
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
    if not path.exists():
        return False
    try:
        check_shard(path, spec, shard)
    except LensAuditError:  # damaged, no file, or the disk cannot read it
        return True
    return False


def _is_sealed(folder: Path, spec: Spec) -> bool:
    """Does the seal agree with the shards on disk, which are whole?"""
    try:
        seal = checked_seal(folder, spec)
        if seal is None:
            return False
        for sealed in seal.shards:
            check_bytes(folder / spec.shards()[sealed.number].file_name, sealed)
    except (VerificationError, InputError):
        return False
    return True


def _repaired_spec(folder: Path, moved: list[str]) -> Spec | None:
    """The spec; from a shard, each of which holds a copy, if `spec.json` is damaged."""
    try:
        spec = read_spec(folder / SPEC)
        check_key(folder, spec)
        return spec
    except (VerificationError, InputError):
        if (folder / SPEC).exists():
            moved.append(_quarantine(folder / SPEC))
    for path in sorted(folder.glob("shard-*.h5")):
        try:
            check_bytes(path)
            with h5py.File(path, "r", locking=False) as file:
                content = check_array(file, "spec", BYTE)[...].tobytes()
            spec = parse_spec(content, source=str(path))
            check_key(folder, spec)
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
