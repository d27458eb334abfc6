"""A training run as it goes: every new checkpoint is audited, and a curve kept."""

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lensaudit.data.suites import DEMO_DATA
from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import (
    alone,
    digest,
    make_folder,
    read_json,
    slug,
    write_csv,
    write_json,
)
from lensaudit.metrics.registry import ordered
from lensaudit.models.checkpoint import Checkpoint, open_checkpoint
from lensaudit.models.registry import DEMO, Registry, load_registry, resolve
from lensaudit.progress import Notice
from lensaudit.results.ledger import Ledger
from lensaudit.results.schema import Number, Whole
from lensaudit.settings import results_folder
from lensaudit.sweep.attempts import failure_of
from lensaudit.sweep.plan import ALGORITHM, Target, UnitConditions, target_of
from lensaudit.sweep.planning import conditions_of, data_digest, planned, with_data
from lensaudit.sweep.run import UnitRoom
from lensaudit.sweep.settings import WatchSettings
from lensaudit.sweep.unit import SweepSubject, measure, resolved

CURVE = ("uds", "em_erasure", "model_utility")
"""Always in the curve, first; every other metric follows."""
_STEP = re.compile(r"(?:checkpoint|step|epoch|iter|global_step)[-_]?(\d+)$", re.IGNORECASE)


@dataclass(frozen=True)
class Watch:
    """What is watched and how each checkpoint is measured."""

    folder: Path
    out: Path
    conditions: UnitConditions
    anchors: dict[str, Target]
    """`full` and `retain`."""
    data: str = ""
    """Content hash of what is asked."""
    settled_s: float = WatchSettings.settled_s
    """A checkpoint whose files changed later than this ago may still be written."""
    report: Callable[[str], None] = lambda line: None

    @property
    def key(self) -> str:
        """What decides the curve beside the checkpoints: one folder holds one."""
        anchors = {role: target.identity for role, target in self.anchors.items()}
        return digest([anchors, self.data, self.conditions.identity, ALGORITHM])

    @property
    def log(self) -> Path:
        """One line per audited checkpoint, appended."""
        return self.out / "audited.jsonl"


@dataclass(frozen=True)
class Curve:
    """What was measured, step by step."""

    rows: list[dict[str, Any]]
    folder: Path


def follow_run(settings: WatchSettings, report: Callable[[str], None]) -> Curve:
    """Audit what is there and, unless `once`, what comes until the time is over.

    Raises:
        InputError: a name, a metric or the folder is wrong.
        LensAuditError: the anchors cannot be measured.
    """
    known = load_registry(settings.registry)
    asked = conditions_of(settings)
    demo = DEMO if asked.data == DEMO_DATA else ""
    anchors = {
        "full": planned(resolve(settings.full or f"{demo}full", known)),
        "retain": planned(resolve(settings.retain or f"{demo}retain", known)),
    }
    steps_of(settings.folder)
    ordered(asked.suite, asked.metrics)
    asked = with_data(asked, [settings.folder.name])
    out = output_for(settings.folder, settings.out)
    data = data_digest(asked)
    watched = Watch(settings.folder, out, asked, anchors, data, settings.settled_s, report)
    hours = settings.max_hours
    end = None if hours is None else time.monotonic() + 3600 * hours

    def follow() -> bool:
        return not settings.once and (end is None or time.monotonic() < end)

    with alone(out):
        return Curve(watch(watched, follow=follow, every_s=settings.every_s), out)


def steps_of(folder: Path) -> dict[int, Path]:
    """Checkpoint folders by training step, in order.

    Raises:
        InputError: the folder does not exist, or two folders name one step.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; name the output folder of a training run")
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        match = _STEP.search(path.name)
        if match is None or not path.is_dir():
            continue
        step = int(match[1])
        if step in found:
            raise InputError(f"{folder}: {found[step].name} and {path.name} are both step {step}")
        found[step] = path
    return dict(sorted(found.items()))


def epoch_of(folder: Path) -> float | None:
    """Passes over the training rows, as the trainer wrote beside the weights; None: it did not.

    `trainer_state.json` is transformers' own; `options.epoch` of `manifest.json` is for others.
    """
    for name, keys in (("trainer_state.json", ("epoch",)), ("manifest.json", ("options", "epoch"))):
        with contextlib.suppress(InputError):
            found: Any = read_json(folder / name)
            for key in keys:
                found = found.get(key) if isinstance(found, dict) else None
            if isinstance(found, int | float) and not isinstance(found, bool):
                return float(found)
    return None


def is_complete(folder: Path, settled_s: float) -> bool:
    """Is nobody writing a checkpoint any more? Its files are whole, and quiet for a while."""
    with contextlib.suppress(OSError, LensAuditError):
        latest = max(path.stat().st_mtime for path in folder.iterdir() if path.is_file())
        if time.time() - latest < settled_s:
            return False
        open_checkpoint(resolve(str(folder), Registry({})))
        return True
    return False


def watch(
    watched: Watch, *, follow: Callable[[], bool], every_s: float = WatchSettings.every_s
) -> list[dict]:
    """Audit what is there, and what comes while `follow()`; the curve's rows.

    Raises:
        InputError: the output folder holds a curve of other conditions.
        LensAuditError: the anchors cannot be measured.
    """
    _check_same(watched)
    _ledger(watched, watched.report)
    retain_log = _retain_log(watched)
    while True:
        goes_on = follow()
        for step, folder in steps_of(watched.folder).items():
            if is_complete(folder, watched.settled_s):
                _audit(watched, step, folder, retain_log)
            elif not goes_on:
                watched.report(
                    f"step {step}: not audited: {folder.name} is not whole, or was changed less "
                    f"than {watched.settled_s:g} s ago"
                )
        if not goes_on:
            return write_curve(watched)
        time.sleep(every_s)


def _check_same(watched: Watch) -> None:
    """Refuse to mix two kinds of numbers in one curve, or to read another retain log."""
    path = make_folder(watched.out) / "watch.json"
    if not path.exists():
        write_json(path, {"key": watched.key, "conditions": asdict(watched.conditions)})
        return
    found = read_json(path)
    if not isinstance(found, dict) or found.get("key") != watched.key:
        raise InputError(
            f"{watched.out}: holds a curve of other metrics, data, anchors or settings; give the "
            "same options as before, or name another folder with --out"
        )


def _audit(watched: Watch, step: int, folder: Path, retain_log: Path) -> None:
    checkpoint = open_checkpoint(resolve(str(folder), Registry({})))
    # the last row of a step counts: weights that came back after others are audited again
    weights = {row["step"]: row["weights"] for row in _ledger(watched).rows}
    if weights.get(step) == checkpoint.weights:
        return
    watched.report(f"step {step}: {folder.name}")
    name = f"step-{step}"
    row: dict[str, Any] = {"step": step, "weights": checkpoint.weights, "folder": folder.name}
    if (epoch := epoch_of(folder)) is not None:
        row["epoch"] = epoch
    try:
        row["values"] = _measured(watched, checkpoint, name, retain_log)
    except LensAuditError as error:
        failure = failure_of(error)
        watched.report(f"step {step}: {failure.kind}: {failure.reason}")
        if failure.kind != "permanent":
            return
        row["failure"] = failure.reason
    _ledger(watched).append([{**row, "time": time.time()}])
    write_curve(watched)


def _measured(
    watched: Watch, checkpoint: Checkpoint, name: str, retain_log: Path | None
) -> dict[str, Any]:
    out = make_folder(watched.out / name)
    subject = _subject(watched, target_of(checkpoint.spec, checkpoint.weights), name, retain_log)
    room = UnitRoom(watched.out / "activations", report=lambda line: None)
    values = measure(subject, watched.conditions, out, room)
    if resolved(out)["weights"] != checkpoint.weights:
        shutil.rmtree(out)
        raise InputError(f"{checkpoint.folder}: changed while it was audited")
    shutil.rmtree(out / "eval" / "passes", ignore_errors=True)
    return values


def _subject(watched: Watch, target: Target, name: str, retain_log: Path | None) -> SweepSubject:
    names = {role: f"{role}-anchor" for role in watched.anchors}
    entries = {names[role]: one.entry() for role, one in watched.anchors.items()}
    entries[name] = target.entry()
    registry = write_json(watched.out / name / "registry.json", entries)
    return SweepSubject(name, names["full"], names["retain"], registry, retain_log)


def _retain_log(watched: Watch) -> Path:
    """The retain model's log, made once."""
    conditions, retain = watched.conditions, watched.anchors["retain"]
    out = make_folder(watched.out / "anchor")
    log = out / "eval" / f"{conditions.suite.upper()}_EVAL.json"
    mark = out / "complete.json"
    if not mark.exists():
        watched.report("retain model")
        subject = _subject(watched, retain, "anchor", None)
        measure(subject, conditions, out, UnitRoom(watched.out / "activations"))
        shutil.rmtree(out / "eval" / "passes", ignore_errors=True)
        write_json(mark, {"retain": retain.name})
    return log


def write_curve(watched: Watch) -> list[dict]:
    """`curve.csv` and `curve.json`: one row per step, one column per metric."""
    rows = sorted(_latest(watched), key=lambda row: row["step"])
    found = dict.fromkeys(key for row in rows for key in row.get("values", {}))
    metrics = [key for key in CURVE if key in found] + [k for k in found if k not in CURVE]
    with_epochs = any("epoch" in row for row in rows)
    table = [
        {
            "step": row["step"],
            **({"epoch": row.get("epoch")} if with_epochs else {}),
            **{key: row.get("values", {}).get(key, {}).get("value") for key in metrics},
            "failure": row.get("failure"),
        }
        for row in rows
    ]
    header = ("step", *(["epoch"] if with_epochs else []), *metrics, "failure")
    cells = [["" if row[key] is None else row[key] for key in header] for row in table]
    write_csv(watched.out / "curve.csv", header, cells)
    write_json(watched.out / "curve.json", table)
    return table


@dataclass(frozen=True)
class _StepValue:
    value: Number | None


@dataclass(frozen=True)
class _StepLine:
    """What the line of an audited step must hold."""

    step: Whole
    weights: str
    epoch: Number | None = None
    values: dict[str, _StepValue] = field(default_factory=dict)
    failure: str | None = None


def _latest(watched: Watch) -> Iterator[dict[str, Any]]:
    """The last audit of each step: a run that began again overwrites its checkpoints."""
    rows = {row["step"]: row for row in _ledger(watched).rows}
    yield from rows.values()


def _ledger(watched: Watch, notice: Notice | None = None) -> Ledger:
    """The audited checkpoints; one whose line does not count is audited again."""
    key = {"key": watched.key}
    return Ledger(watched.log, "audited", key, unsigned="keep", record=_StepLine, notice=notice)


def output_for(folder: Path, out: Path | None) -> Path:
    """Place of the curve."""
    return out or results_folder() / f"watch-{slug(folder.resolve().name)}"
