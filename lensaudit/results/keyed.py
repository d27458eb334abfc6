"""Is this folder the finished work of this very run? One key, one manifest written last.

A run is told from others by its key, a hash of everything that determines what it writes. `begin`
marks a folder as a run's, `seal` writes the manifest: the key and the hash of every file it speaks
of. A folder with a manifest is finished; one with a mark can go on; readers compare the hashes.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import make_folder, os_error, read_json, write_json
from lensaudit.results.records import MANIFEST, Manifest

MARK = "begun.json"
"""In a folder whose run has begun and is not finished."""
_EARLIER_MARK = Path("training/job.json")
"""Where 0.1.0 marked a training run."""
LOOKED_AT_BYTES = 64 << 20
"""Larger files are weights: their hash is taken when they are opened, and not once more here."""


@dataclass(frozen=True)
class FileMark:
    """What a manifest says of a file."""

    n_bytes: int
    blake2b: str
    """128 bits, 32 hex digits."""


def mark_of(path: Path) -> FileMark:
    """Size and content hash of a file.

    Raises:
        InputError | TryAgainError | WorkError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16))
        return FileMark(path.stat().st_size, found.hexdigest())
    except OSError as error:
        raise os_error(error, path) from error


def begin(folder: Path, key: str) -> Path:
    """Mark `folder` as the run's of this key, and take away the verdict of an earlier one."""
    make_folder(folder)
    (folder / MANIFEST).unlink(missing_ok=True)
    write_json(folder / MARK, {"inputs": {"key": key}})
    return folder


def seal(folder: Path, manifest: Manifest, *, key: str, files: Iterable[str]) -> Path:
    """Write the manifest, last of all: with it the folder is finished.

    Args:
        folder: of the run.
        manifest: how it was made.
        key: of the run.
        files: names below `folder` that the manifest answers for.
    """
    marks = {name: vars(mark_of(folder / name)) for name in sorted(files)}
    record = replace(manifest, inputs={**manifest.inputs, "key": key}, files=marks)
    path = record.write(folder)
    (folder / MARK).unlink(missing_ok=True)
    return path


def finished(folder: Path, key: str) -> bool:
    """Whether `folder` holds the finished work of this very run, each file as it was written."""
    try:
        return _key_in(folder / MANIFEST) == key and not misfits(folder, largest=LOOKED_AT_BYTES)
    except InputError:
        return False


def check_own(folder: Path, key: str) -> None:
    """Refuse a folder with anything in it but this very run, begun or finished.

    Raises:
        InputError: another run's, nobody's, or this one's with files that were changed since.
    """
    for mark in (folder / MANIFEST, folder / MARK, folder / _EARLIER_MARK):
        if mark.exists():
            if _key_in(mark) != key:
                raise InputError(f"{folder}: holds a run with other settings; name another --out")
            for line in misfits(folder, largest=LOOKED_AT_BYTES) if mark.name == MANIFEST else ():
                raise InputError(f"{folder}: {line}; name another --out")
            return
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            f"{folder}: is not empty and holds no run of this command; name another --out"
        )


def misfits(folder: Path, *, largest: int | None = None) -> list[str]:
    """Files that are not what the manifest says, one line each; empty where all is as written.

    A manifest that 0.1.0 wrote names no files: nothing can be compared.

    Args:
        folder: with a manifest.
        largest: of files with more bytes only the size is compared.

    Raises:
        InputError: the manifest is missing or damaged.
    """
    said = _object(folder / MANIFEST).get("files") or {}
    if not isinstance(said, Mapping):
        raise InputError(f"{folder / MANIFEST}: files is damaged")
    found = (_misfit(folder / name, name, mark, largest) for name, mark in said.items())
    return [line for line in found if line]


def _misfit(path: Path, name: str, mark: Any, largest: int | None) -> str | None:
    if not isinstance(mark, Mapping) or Path(name).is_absolute() or ".." in Path(name).parts:
        return f"{name}: the manifest does not say what it was"
    if not path.is_file():
        return f"{name}: is gone"
    n_bytes = path.stat().st_size
    if n_bytes != mark.get("n_bytes"):
        return f"{name}: has {n_bytes} bytes, the manifest says {mark.get('n_bytes')}"
    if largest is not None and n_bytes > largest:
        return None
    same = mark_of(path).blake2b == mark.get("blake2b")
    return None if same else f"{name}: was changed after the run wrote it"


def keyed_document(path: Path, key: str) -> dict[str, Any] | None:
    """The JSON object in a file, if it says that it was made under `key`; else None."""
    try:
        found = _object(path)
    except InputError:
        return None
    return found if found.get("key") == key else None


def _key_in(path: Path) -> Any:
    inputs = _object(path).get("inputs")
    return inputs.get("key") if isinstance(inputs, dict) else None


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds {type(content).__name__}, wanted a JSON object")
    return content
