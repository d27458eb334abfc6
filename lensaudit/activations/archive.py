"""Moving a cache between machines: one tar per cache, and a reader that trusts no tar.

A foreign archive can name paths outside its folder, hold links, claim sizes it does not have, or
hold HDF5 files made to crash or mislead their reader. So only plain members of the expected names,
order and sizes pass, one after the other; the files are opened first by another process with
bounded memory; and a cache appears in the store by one rename, or not at all.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO

from lensaudit.activations.gc import staging_name
from lensaudit.activations.inventory import IMPORTED, folder_key, folder_of
from lensaudit.activations.presence import RESERVE_BYTES, appear, check_space, check_trusted
from lensaudit.activations.spec import (
    MAX_JSON_BYTES,
    REPAIR,
    SEAL,
    SPEC,
    Spec,
    checked_seal,
    parse_spec,
    read_spec,
)
from lensaudit.activations.verification import verify
from lensaudit.errors import InputError, VerificationError
from lensaudit.files import (
    check_plain,
    make_folder,
    os_error,
    printable,
    sync_folder,
    write_bytes,
    write_json,
)

COPY_BYTES = 1 << 20
INSPECTION_S = 60.0
INSPECTION_BYTES_PER_S = 20e6
"""A slower inspection is taken for hung."""


@dataclass(frozen=True)
class Imported:
    """A cache that came from elsewhere."""

    folder: str
    key: str
    n_bytes: int
    new: bool
    """False if the store had it already; nothing was changed then."""


def export(folder: Path, archive: Path) -> Path:
    """One tar of a complete cache, after checking every byte of it.

    Raises:
        InputError: the cache is incomplete, or `archive` exists.
        VerificationError: the cache is damaged.
    """
    if archive.exists():
        raise InputError(f"{archive}: exists; name another file")
    found = verify(folder)
    if found.problems:
        raise VerificationError(f"not exported: {found.problems[0].what}")
    if not found.complete:
        raise InputError(f"{folder}: is not complete; run `lensaudit cache` for {found.name} first")
    check_space(archive.absolute().parent, found.n_bytes, reserve_bytes=0)
    if not appear(archive, partial(_write_tar, folder)):
        raise InputError(f"{archive}: exists; name another file")
    return archive


def _write_tar(folder: Path, path: Path) -> None:
    shards = [folder / shard.file_name for shard in read_spec(folder / SPEC).shards()]
    with path.open("xb") as stream:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for member in (folder / SPEC, folder / SEAL, *shards):
                info = tarfile.TarInfo(f"{folder.name}/{member.name}")
                info.size, info.mode = member.stat().st_size, 0o600
                with member.open("rb") as source:
                    tar.addfile(info, source)
        stream.flush()
        os.fsync(stream.fileno())


def import_archive(archive: Path, root: Path, *, reserve_bytes: int = RESERVE_BYTES) -> Imported:
    """Take a foreign cache into the store, if every byte of it is what a cache of ours holds.

    Its numbers are as trustworthy as who made them: a hash shows damage, not intent. `info` shows
    that a cache was imported, and the archive's SHA-256.

    Raises:
        InputError: not an archive of `export`, or the store holds an incomplete cache of its key.
        VerificationError: something in it is damaged or hostile; nothing was imported.
    """
    with _opened(archive) as tar:
        _spec_in(tar, archive)  # what is no archive makes no store
    make_folder(root)
    check_trusted(root)
    with _staging(root) as staging:
        folder, sha256 = _unpack(archive, staging, reserve_bytes)
        n_bytes = _inspect(folder, archive)
        record = {
            "archive": printable(archive.name),
            "sha256": sha256,
            "imported": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_json(folder / IMPORTED, record)
        new = _move_in(folder, root)
    return Imported(str(root / folder.name), folder_key(folder), n_bytes, new)


@contextmanager
def _staging(root: Path) -> Iterator[Path]:
    staging = root / staging_name("import")
    try:
        staging.mkdir(mode=0o700)
    except OSError as error:
        raise os_error(error, root) from error
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _unpack(archive: Path, staging: Path, reserve_bytes: int) -> tuple[Path, str]:
    """Write an archive's members below `staging`: the cache's folder, the archive's SHA-256."""
    with _opened(archive) as tar:
        spec, content = _spec_in(tar, archive)
        folder = staging / spec.folder_name()
        folder.mkdir(mode=0o700)
        write_bytes(folder / SPEC, content)
        write_bytes(folder / SEAL, _small(*_next(tar, archive, f"{folder.name}/{SEAL}"), archive))
        seal = checked_seal(folder, spec)
        assert seal is not None
        n_bytes = sum(shard.n_bytes for shard in seal.values())
        check_space(staging, n_bytes, reserve_bytes=reserve_bytes)
        for shard in spec.shards():
            info, source = _next(tar, archive, f"{folder.name}/{shard.file_name}")
            if info.size != (wanted := seal[shard.number].n_bytes):
                raise VerificationError(
                    f"{archive}: {shard.file_name} has {info.size} bytes, its seal says {wanted}"
                )
            with (folder / shard.file_name).open("xb") as stream:
                shutil.copyfileobj(source, stream, COPY_BYTES)
                stream.flush()
                os.fsync(stream.fileno())
        if tar.next() is not None:
            raise InputError(f"{archive}: holds more than one cache")
        with archive.open("rb") as stream:
            return folder, hashlib.file_digest(stream, "sha256").hexdigest()


def _spec_in(tar: tarfile.TarFile, archive: Path) -> tuple[Spec, bytes]:
    """The first member: what the cache holds, and in which folder all members lie."""
    info, source = _next(tar, archive, SPEC)
    content = _small(info, source, archive)
    spec = parse_spec(content, source=f"{archive}: {SPEC}")
    if info.name != (wanted := f"{spec.folder_name()}/{SPEC}"):
        raise InputError(
            f"{archive}: holds {printable(info.name)[:80]!r} where {wanted} is expected"
        )
    return spec, content


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        check_plain(archive)
        with tarfile.open(archive, "r:") as tar:
            yield tar
    except FileNotFoundError as error:
        raise InputError(f"{archive}: no such file") from error
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise InputError(f"{archive}: not a tar that `export` wrote ({error})") from error
    except OSError as error:
        raise os_error(error, archive) from error


def _next(tar: tarfile.TarFile, archive: Path, name: str) -> tuple[tarfile.TarInfo, IO[bytes]]:
    """The next member, which must be a plain file of this name; the spec in any folder."""
    info = tar.next()
    if info is None:
        raise InputError(f"{archive}: ends before {name}; copy it again")
    source = tar.extractfile(info) if info.type == tarfile.REGTYPE else None
    if source is None or name != (info.name.rpartition("/")[2] if name == SPEC else info.name):
        raise InputError(
            f"{archive}: holds {printable(info.name)[:80]!r} (type {info.type!r}) "
            f"where {name} is expected"
        )
    return info, source


def _small(info: tarfile.TarInfo, source: IO[bytes], archive: Path) -> bytes:
    if info.size > MAX_JSON_BYTES:
        raise InputError(
            f"{archive}: {info.name} of {info.size} bytes; at most {MAX_JSON_BYTES} are read"
        )
    return source.read()


def _inspect(folder: Path, archive: Path) -> int:
    """Verify in another process: a file made to crash its reader crashes that one; shard bytes."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    command = [sys.executable, "-m", "lensaudit.activations.verification", str(folder)]
    timeout = INSPECTION_S + size / INSPECTION_BYTES_PER_S
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise VerificationError(f"{archive}: hangs its reader; nothing was imported") from error
    if done.returncode != 0:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
        raise VerificationError(f"{archive}: breaks its reader ({how}); nothing was imported")
    found = json.loads(done.stdout)
    if found["problems"]:
        what = found["problems"][0]["what"].replace(str(folder), folder.name)
        what = what.removesuffix(f"; {REPAIR}")
        raise VerificationError(f"{archive}: {what}; nothing was imported")
    return found["n_bytes"]


def _move_in(folder: Path, root: Path) -> bool:
    """One rename; False if a complete cache of this key is there already."""
    there = folder_of(folder_key(folder), root)
    if there is not None and (there / SEAL).exists():
        return False
    if there is not None:
        raise InputError(
            f"{there}: an incomplete cache of this key is here; "
            "run `lensaudit cache` to fill it, or remove it, then import again"
        )
    try:
        folder.rename(root / folder.name)
        sync_folder(root)
    except OSError as error:
        raise os_error(error, root / folder.name) from error
    return True
