"""Is every byte of a cache as it was written? Imports no torch: `import` runs it as a process."""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lensaudit.activations.lookup import folder_key
from lensaudit.activations.presence import check_trusted
from lensaudit.activations.shard import check_shard
from lensaudit.activations.spec import SEAL, SPEC, Spec, checked_seal, read_spec
from lensaudit.errors import LensAuditError, VerificationError
from lensaudit.results.ledger import VerifiedLedger, verify_ledger

BOOKS = ("scores", "texts", "fisher", "said", "samples", "worst")
"""Folders of books in an activations folder."""
OWN_BYTES = 4 << 30
"""Address space of Python, numpy and HDF5; resident they take a hundredth of it."""


@dataclass(frozen=True)
class Problem:
    """A file of a cache that is not as it was written."""

    file: str
    what: str


@dataclass(frozen=True)
class Verified:
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


def verify(folder: Path) -> Verified:
    """Read and check every byte of a cache."""
    check_trusted(folder)
    problems: list[Problem] = []
    n_bytes, spec, seal = 0, None, None
    try:
        spec = read_spec(folder / SPEC)
        check_key(folder, spec)
    except LensAuditError as error:
        problems.append(Problem(SPEC, str(error)))
        return Verified(str(folder), folder_key(folder), None, False, 0, 0, tuple(problems))
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
    return Verified(
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


def check_key(folder: Path, spec: Spec) -> None:
    """A cache folder is named for its key.

    Raises:
        VerificationError: its spec has another.
    """
    if folder_key(folder) != spec.fingerprint.key():
        raise VerificationError(
            f"{folder}: is named for key {folder_key(folder)}, "
            f"its spec.json says {spec.fingerprint.key()}"
        )


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
