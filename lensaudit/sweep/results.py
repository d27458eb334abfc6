"""A finished unit on disk: published whole, read back with a check; and how each unit is."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lensaudit.errors import WorkError
from lensaudit.files import os_error, remove_below, sync_folder
from lensaudit.results.eval_runs import check_share
from lensaudit.results.keyed import keyed_document, write_keyed
from lensaudit.results.reading import Number, Whole, check_inside, fits
from lensaudit.results.records import FileMark, mark_of
from lensaudit.scores.estimate import Estimate
from lensaudit.sweep.attempts import AttemptFailure, History, history, holder
from lensaudit.sweep.plan import Plan, SweepFolder, Unit

RESULT = "result.json"
SCHEMA = 1
PARTS = ("eval", "patch", "know")
"""Folders of a unit: one for each question."""
_SCRATCH = ("checkpoint", "registry.json", "eval/passes", "eval/retain")
"""What only the work needed."""


def finished(layout: SweepFolder, unit: Unit) -> Mapping[str, Any] | None:
    """The result of a unit; None where it is not done. A damaged one is not done."""
    return _valid(layout.unit(unit.id) / RESULT, unit)


def prepared(layout: SweepFolder, unit: Unit) -> Mapping[str, Any] | None:
    """The result of a unit that was complete when its worker died before publishing it."""
    return _valid(layout.work(unit.id) / RESULT, unit)


def _valid(path: Path, unit: Unit) -> Mapping[str, Any] | None:
    content = keyed_document(path, unit.id)
    return content if content is not None and fits(_Result, content) else None


@dataclass(frozen=True)
class UnitValue:
    """A metric of a unit: its value with limits, or the reason why there is none."""

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
    """Fields that `result.json` must hold."""

    values: dict[str, UnitValue]
    files: dict[str, FileMark]
    seconds: Number
    dtype: str
    device: str
    halvings: Whole = 0


def check_values(unit: Unit, result: Mapping[str, Any]) -> None:
    """Refuse a value that no unit can have.

    Raises:
        InputError: it lies outside its own interval, or UDS outside 0 to 1.
    """
    for name, one in result["values"].items():
        where = f"{unit.label}: {name}"
        check_inside(Estimate.within(one["value"], (one["low"], one["high"])), where)
        check_share(name, one["value"], where)


def publish(layout: SweepFolder, unit: Unit, record: Mapping[str, Any] | None) -> None:
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
        files = {path.relative_to(work).as_posix(): vars(mark_of(path)) for path in _kept(work)}
        identity = {"schema": SCHEMA, "key": unit.id, "unit": unit.id, "target": unit.target}
        write_keyed(work / RESULT, {**identity, "variant": unit.variant, **record, "files": files})
    for name in _SCRATCH:
        remove_below(work, work / name)
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
    for part in PARTS:
        for path in sorted((work / part).rglob("*")):
            below = path.relative_to(work).as_posix()
            if path.is_file() and not below.startswith(("eval/passes/", "eval/retain/")):
                yield path


StateName = Literal["done", "running", "failed", "to do"]


@dataclass(frozen=True)
class UnitState:
    """State of one unit at the moment, and what is known of its attempts."""

    unit: Unit
    name: StateName
    history: History
    worker: str | None = None
    """Who works on it."""
    result: Mapping[str, Any] | None = None

    @property
    def failure(self) -> AttemptFailure | None:
        """Why it failed for good, or what stopped its last attempt."""
        if self.name in ("done", "running"):
            return None
        return self.history.failed or self.history.last


def state_of(layout: SweepFolder, unit: Unit, *, run: str = "") -> UnitState:
    """The state of a unit; transient failures count against it only within `run`."""
    result = finished(layout, unit)
    if result is not None:
        return UnitState(unit, "done", history(layout.attempts(unit.id), run=run), result=result)
    worker = holder(layout.claim(unit.id))
    past = history(layout.attempts(unit.id), run=run, is_claimed=worker is not None)
    if worker is not None:
        return UnitState(unit, "running", past, worker)
    return UnitState(unit, "failed" if past.failed else "to do", past)


def states_of(layout: SweepFolder, plan: Plan, *, run: str = "") -> list[UnitState]:
    """The state of every unit, in the order of the plan."""
    return [state_of(layout, unit, run=run) for unit in plan.units]


def strangers(layout: SweepFolder, plan: Plan) -> list[str]:
    """Results in the folder that are of no unit of the plan."""
    if not layout.units.is_dir():
        return []
    return sorted(one.name for one in layout.units.iterdir() if one.name not in plan.by_id)
