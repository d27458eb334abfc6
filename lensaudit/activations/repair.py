"""How is a damaged cache made whole again, at the least cost?"""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import h5py

from lensaudit.activations.inventory import QUARANTINE
from lensaudit.activations.layout import BYTE, check_array
from lensaudit.activations.presence import check_trusted
from lensaudit.activations.shard import SHARD_ERRORS, check_bytes, check_shard
from lensaudit.activations.spec import SEAL, SPEC, Shard, Spec, checked_seal, parse_spec, read_spec
from lensaudit.activations.tensors import ExampleActivations
from lensaudit.activations.verification import Repaired, check_key
from lensaudit.activations.writer import CacheWriter
from lensaudit.errors import InputError, LensAuditError, VerificationError
from lensaudit.files import os_error, sync_folder, write_bytes
from lensaudit.partials import sweep_partials

Recompute = Callable[[Spec, Shard], Sequence[ExampleActivations]]
"""Makes the examples of one shard again, by the recipe in the spec's provenance."""


def repair(folder: Path, *, recompute: Recompute | None = None) -> Repaired:
    """Move what is damaged to `quarantine/`, and make it again if `recompute` can.

    Whole shards stay. Without `recompute` the next `lensaudit cache` fills what is missing. The
    seal goes first, so a repair that is killed leaves an incomplete cache, not a wrong one.
    """
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
