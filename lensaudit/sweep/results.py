"""A finished unit on disk: published whole, read back with a check."""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, WorkError
from lensaudit.files import os_error, read_json, sync_folder, write_json
from lensaudit.sweep.layout import Layout
from lensaudit.sweep.plan import Unit

RESULT = "result.json"
SCHEMA = 1
_PARTS = ("eval", "patch")
_SCRATCH = ("checkpoint", "registry.json", "eval/passes", "eval/retain")
"""What only the work needed."""


def finished(layout: Layout, unit: Unit) -> Mapping[str, Any] | None:
    """The result of a unit; None where it is not done. A damaged one is not done."""
    return _valid(layout.unit(unit.id) / RESULT, unit)


def prepared(layout: Layout, unit: Unit) -> Mapping[str, Any] | None:
    """The result of a unit that was complete when its worker died before publishing it."""
    return _valid(layout.work(unit.id) / RESULT, unit)


def _valid(path: Path, unit: Unit) -> Mapping[str, Any] | None:
    if not path.exists():
        return None
    try:
        content = read_json(path)
    except InputError:
        return None
    wanted = {"schema": SCHEMA, "unit": unit.id, "target": unit.target, "variant": unit.variant}
    if not isinstance(content, dict) or any(content.get(k) != v for k, v in wanted.items()):
        return None
    whole = isinstance(content.get("values"), dict) and isinstance(content.get("files"), dict)
    return content if whole else None


def damaged(layout: Layout, unit: Unit, result: Mapping[str, Any]) -> list[str]:
    """Files of a finished unit that are missing or hold something else by now."""
    folder = layout.unit(unit.id)
    return sorted(
        name
        for name, content_hash in result["files"].items()
        if not (folder / name).is_file() or hash_of(folder / name) != content_hash
    )


def publish(layout: Layout, unit: Unit, record: Mapping[str, Any] | None) -> None:
    """Make a unit's work its result: one rename, after everything is on disk.

    Args:
        layout: the sweep.
        unit: the unit.
        record: what the result says beside the names of its files; None where it is written.

    Raises:
        WorkError: it cannot be published.
    """
    work, done = layout.work(unit.id), layout.unit(unit.id)
    if record is not None:
        files = {path.relative_to(work).as_posix(): hash_of(path) for path in _kept(work)}
        identity = {"schema": SCHEMA, "unit": unit.id, "target": unit.target}
        write_json(work / RESULT, {**identity, "variant": unit.variant, **record, "files": files})
    for name in _SCRATCH:
        path = work / name
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    try:
        layout.units.mkdir(parents=True, exist_ok=True)
        if finished(layout, unit) is not None:  # another worker was faster; both hold the same
            shutil.rmtree(work, ignore_errors=True)
            return
        shutil.rmtree(done, ignore_errors=True)
        os.rename(work, done)
        sync_folder(layout.units)
    except OSError as error:
        raise os_error(error, done) from error
    if finished(layout, unit) is None:
        raise WorkError(f"{unit.label}: its published result cannot be read back from {done}")


def _kept(work: Path) -> Iterator[Path]:
    for part in _PARTS:
        for path in sorted((work / part).rglob("*")):
            below = path.relative_to(work).as_posix()
            if path.is_file() and not below.startswith(("eval/passes/", "eval/retain/")):
                yield path


def hash_of(path: Path) -> str:
    """Content hash of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()[:32]
