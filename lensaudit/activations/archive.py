"""Moving a cache between machines: one plain tar of its files, checked byte by byte on both."""

import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from lensaudit.activations.inventory import IMPORTED, verify
from lensaudit.activations.naming import FOLDER, folder_key, folder_of
from lensaudit.activations.presence import RESERVE_BYTES, check_space, check_trusted
from lensaudit.activations.removal import staging_name
from lensaudit.activations.spec import REPAIR, SEAL, SPEC, read_spec
from lensaudit.errors import InputError, VerificationError
from lensaudit.files import (
    appear,
    link_new,
    make_folder,
    os_errors,
    reading,
    sync_folder,
    write_json,
)
from lensaudit.models.hashing import file_sha256
from lensaudit.text import printable


def _members(folder: Path) -> list[str]:
    """Names of the files of a cache in an archive: its folder and theirs."""
    spec = read_spec(folder / SPEC)
    files = [SPEC, SEAL, *(shard.file_name for shard in spec.shards())]
    return [f"{spec.folder_name()}/{name}" for name in files]


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
        for name in _members(folder):
            path = folder / Path(name).name
            info = tarfile.TarInfo(name)
            info.size, info.mode = path.stat().st_size, 0o600
            with path.open("rb") as source:
                tar.addfile(info, source)


def import_archive(
    archive: Path, root: Path, *, reserve_bytes: int = RESERVE_BYTES
) -> dict[str, Any]:
    """Take a cache that `export` packed into the store, by one rename, once every byte is checked.

    Its numbers are as trustworthy as who made them: a hash shows damage, not intent. `info` shows
    that a cache was imported, and the archive's SHA-256.

    Returns:
        `folder`, `key`, `n_bytes` of the shards, and `new`: False if the store had it already, and
        nothing was changed.

    Raises:
        InputError: not an archive of `export`, or the store holds an incomplete cache of its key.
        VerificationError: something in it is damaged; nothing was imported.
    """
    with _opened(archive) as tar:
        members = tar.getmembers()
        name = members[0].name.partition("/")[0] if members else ""
        if (
            not FOLDER.fullmatch(name)
            or any((one.type, one.sparse) != (tarfile.REGTYPE, None) for one in members)
            # a header may claim any size for a few bytes
            or sum(one.size for one in members) > archive.stat().st_size
        ):
            raise InputError(
                f"{archive}: holds other files than those of a cache; wanted a file that "
                "`lensaudit activations export` wrote"
            )
        make_folder(root)  # what is no archive makes no store
        check_trusted(root)
        check_space(root, archive.stat().st_size, reserve_bytes=reserve_bytes)
        staging = root / staging_name("import")
        folder = staging / name
        try:
            with os_errors(root):
                staging.mkdir(mode=0o700)
            tar.extractall(staging, filter="data")
            folder.chmod(0o700)
            found = verify(folder)
            if not found.complete:
                what = found.problems[0].what if found.problems else f"{folder / SEAL}: is missing"
                what = what.replace(str(folder), name).removesuffix(f"; {REPAIR}")
                raise VerificationError(f"{archive}: {what}; nothing was imported")
            if sorted(one.name for one in members) != sorted(_members(folder)):
                raise InputError(
                    f"{archive}: does not hold exactly the files of one cache; copy it again"
                )
            said = {
                "archive": printable(archive.name),
                "sha256": file_sha256(archive),
                "imported": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            for path in folder.iterdir():
                sync_folder(path)
            write_json(folder / IMPORTED, said)
            there = _move_in(folder, root)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return {
        "folder": str(there or root / name),
        "key": found.key,
        "n_bytes": found.n_bytes,
        "new": there is None,
    }


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with reading(archive), tarfile.open(archive, "r:") as tar:
            yield tar
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise InputError(f"{archive}: not a tar that `export` wrote ({error})") from error


def _move_in(folder: Path, root: Path) -> Path | None:
    """Rename a finished import into place; where a complete cache of its key is there, that one."""
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
    return there
