"""A finished unit on disk: published whole, read back with a check."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, WorkError
from lensaudit.files import check_plain, os_error, read_json, remove_below, sync_folder, write_json
from lensaudit.results.eval_runs import check_share
from lensaudit.results.records import signed
from lensaudit.results.schema import Number, Whole, check_inside, checked
from lensaudit.scores.estimate import Estimate
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
    try:
        checked(_Result, content, path)
    except InputError:
        return None
    return content


@dataclass(frozen=True)
class _Value:
    """A metric of a unit."""

    value: Number | None
    low: Number | None
    high: Number | None
    n_scored: Whole
    n_unscored: Whole
    reason: str | None
    high_means: str | None
    family: str


@dataclass(frozen=True)
class _Result:
    """What `result.json` must hold."""

    values: dict[str, _Value]
    files: dict[str, str]
    seconds: Number
    dtype: str
    device: str
    halvings: Whole = 0


def damaged(layout: Layout, unit: Unit, result: Mapping[str, Any]) -> list[str]:
    """Files of a finished unit that are missing or hold something else by now."""
    folder = layout.unit(unit.id)
    # 0.1.0 wrote no checksum
    edited = "check" in result and signed(result)["check"] != result["check"]
    return ([RESULT] if edited else []) + sorted(
        name
        for name, content_hash in result["files"].items()
        if not (folder / name).is_file() or hash_of(folder / name) != content_hash
    )


def check_values(unit: Unit, result: Mapping[str, Any]) -> None:
    """Refuse a value that no unit can have.

    Raises:
        InputError: it lies outside its own interval, or UDS outside 0 to 1.
    """
    for name, one in result["values"].items():
        where = f"{unit.label}: {name}"
        check_inside(Estimate.within(one["value"], (one["low"], one["high"])), where)
        check_share(name, one["value"], where)


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
        content = {**identity, "variant": unit.variant, **record, "files": files}
        write_json(work / RESULT, signed(content))
    for name in _SCRATCH:
        path = work / name
        remove_below(work, path)
    try:
        layout.units.mkdir(parents=True, exist_ok=True)
        if finished(layout, unit) is not None:  # another worker was faster; both hold the same
            remove_below(layout.root, work)
            return
        remove_below(layout.units, done)
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
    check_plain(path)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()[:32]
