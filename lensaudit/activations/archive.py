"""Moving a cache between machines: one tar per cache, and a reader that trusts no tar.

A foreign archive can name paths outside its folder, hold links, claim sizes it does not have, or
hold HDF5 files made to crash or mislead their reader. So only plain members of the expected names
and order are taken, by tarfile's filter for data; the files are opened first by another process
with bounded memory; and a cache appears in the store by one rename, or not at all.
"""

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from lensaudit.activations.inventory import IMPORTED, folder_key, folder_of, verify
from lensaudit.activations.presence import RESERVE_BYTES, check_space, check_trusted, link_new
from lensaudit.activations.spec import (
    MAX_JSON_BYTES,
    REPAIR,
    SEAL,
    SPEC,
    Spec,
    parse_spec,
    read_spec,
)
from lensaudit.activations.upkeep import staging_name
from lensaudit.errors import InputError, VerificationError
from lensaudit.files import (
    appear,
    make_folder,
    os_errors,
    printable,
    reading,
    sync_folder,
    write_json,
)
from lensaudit.models.hashing import file_sha256

INSPECTION_S = 60.0
INSPECTION_BYTES_PER_S = 20e6
"""A slower inspection is taken for hung."""


def _members(spec: Spec) -> list[str]:
    """Names of a cache's files, in the order in which an archive holds them."""
    return [SPEC, SEAL, *(shard.file_name for shard in spec.shards())]


def export(folder: Path, archive: Path) -> Path:
    """One tar of a complete cache, after checking every byte of it.

    Raises:
        InputError: the cache is incomplete, or `archive` exists.
        VerificationError: the cache is damaged.
    """
    found = verify(folder)
    if found.problems:
        raise VerificationError(f"not exported: {found.problems[0].what}")
    if not found.complete:
        raise InputError(f"{folder}: is not complete; run `lensaudit cache` for {found.name} first")
    check_space(archive.absolute().parent, found.n_bytes, reserve_bytes=0)
    if archive.exists() or not appear(archive, partial(_pack, folder), link_new):
        raise InputError(f"{archive}: exists; name another file")
    return archive


def _pack(folder: Path, stream: BinaryIO) -> None:
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in (folder / name for name in _members(read_spec(folder / SPEC))):
            info = tarfile.TarInfo(f"{folder.name}/{path.name}")
            info.size, info.mode = path.stat().st_size, 0o600
            with path.open("rb") as source:
                tar.addfile(info, source)


def import_archive(
    archive: Path, root: Path, *, reserve_bytes: int = RESERVE_BYTES
) -> dict[str, Any]:
    """Take a foreign cache into the store, if every byte of it is what a cache of ours holds.

    Its numbers are as trustworthy as who made them: a hash shows damage, not intent. `info` shows
    that a cache was imported, and the archive's SHA-256.

    Returns:
        `folder`, `key`, `n_bytes` of the shards, and `new`: False if the store had it already, and
        nothing was changed.

    Raises:
        InputError: not an archive of `export`, or the store holds an incomplete cache of its key.
        VerificationError: something in it is damaged or hostile; nothing was imported.
    """
    with _opened(archive) as tar:
        name = _folder_in(tar, archive)  # what is no archive makes no store
        make_folder(root)
        check_trusted(root)
        check_space(root, archive.stat().st_size, reserve_bytes=reserve_bytes)
        staging = root / staging_name("import")
        try:
            with os_errors(root):
                staging.mkdir(mode=0o700)
                tar.extractall(staging, filter="data")
            folder = staging / name
            folder.chmod(0o700)
            for path in folder.iterdir():
                sync_folder(path)
            n_bytes = _inspect(folder, archive)
            said = {
                "archive": printable(archive.name),
                "sha256": file_sha256(archive),
                "imported": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            write_json(folder / IMPORTED, said)
            new = _move_in(folder, root)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return {"folder": str(root / name), "key": folder_key(folder), "n_bytes": n_bytes, "new": new}


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with reading(archive), tarfile.open(archive, "r:") as tar:
            yield tar
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise InputError(f"{archive}: not a tar that `export` wrote ({error})") from error
    except VerificationError as error:
        # what is not here cannot be repaired
        said = str(error).removesuffix(f"; {REPAIR}")
        raise VerificationError(f"{said}; nothing was imported") from error


def _folder_in(tar: tarfile.TarFile, archive: Path) -> str:
    """The one folder of an archive, all of whose members are the plain files of a cache.

    Raises:
        InputError: names the first member that is another.
        VerificationError: its spec is damaged.
    """
    members = tar.getmembers()
    if odd := [one for one in members if one.type != tarfile.REGTYPE]:
        raise InputError(
            f"{archive}: holds {printable(odd[0].name)[:80]!r} (type {odd[0].type!r}), wanted files"
        )
    if any(one.size > MAX_JSON_BYTES for one in members[:2]):
        raise InputError(f"{archive}: of {SPEC} and {SEAL} at most {MAX_JSON_BYTES} bytes are read")
    if not members or Path(members[0].name).name != SPEC:
        begins = repr(printable(members[0].name)[:80]) if members else "nothing"
        raise InputError(f"{archive}: begins with {begins}, wanted a {SPEC}, as `export` writes it")
    first = tar.extractfile(members[0])
    spec = parse_spec(first.read() if first else b"", source=f"{archive}: {SPEC}")
    wanted = [f"{spec.folder_name()}/{name}" for name in _members(spec)]
    if (found := [one.name for one in members]) != wanted:
        at = next(n for n, name in enumerate([*wanted, None]) if found[n : n + 1] != [name])
        raise InputError(
            f"{archive}: holds {printable(str(found[at : at + 1]))[:80]} where "
            f"{wanted[at : at + 1]} is expected; copy it again"
        )
    return spec.folder_name()


def _inspect(folder: Path, archive: Path) -> int:
    """Verify in another process: a file made to crash its reader crashes that one; shard bytes."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    command = [sys.executable, "-m", "lensaudit.activations.inventory", str(folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=INSPECTION_S + size / INSPECTION_BYTES_PER_S
        )
    except subprocess.TimeoutExpired as error:
        raise VerificationError(f"{archive}: hangs its reader") from error
    if done.returncode != 0:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
        raise VerificationError(f"{archive}: breaks its reader ({how})")
    found = json.loads(done.stdout)
    if found["problems"]:
        what = found["problems"][0]["what"].replace(str(folder), folder.name)
        raise VerificationError(f"{archive}: {what}")
    return found["n_bytes"]


def _move_in(folder: Path, root: Path) -> bool:
    """One rename; False if a complete cache of this key is there already."""
    there = folder_of(folder_key(folder), root)
    if there is not None and not (there / SEAL).exists():
        raise InputError(
            f"{there}: an incomplete cache of this key is here; "
            "run `lensaudit cache` to fill it, or remove it, then import again"
        )
    if there is None:
        with os_errors(root / folder.name):
            folder.rename(root / folder.name)
            sync_folder(root)
    return there is None
