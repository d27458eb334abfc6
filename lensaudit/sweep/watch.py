"""A training run as it goes: a plan that grows by a unit for each new checkpoint, and a curve."""

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from lensaudit.data.tofu import DEMO as DEMO_ROWS
from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import read_json, write_csv, write_json
from lensaudit.kinds.curve import CurveRow
from lensaudit.models.adapter import CONFIG
from lensaudit.models.at_hand import check_at_hand
from lensaudit.models.checkpoint import Checkpoint, open_checkpoint, place_of
from lensaudit.models.device import resolve_device
from lensaudit.models.likeness import check_same_shape
from lensaudit.models.registry import DEMO, ModelSpec, Registry, load_registry, resolve
from lensaudit.results.manifest import MANIFEST, manifest
from lensaudit.results.owner import check_free
from lensaudit.results.planned import PLAN
from lensaudit.results.reading import checked_as, document, json_object, part
from lensaudit.results.roles import ModelRole, check_roles
from lensaudit.settings import named, results_folder
from lensaudit.sweep.attempts import StopSignals, failure_of, state_of
from lensaudit.sweep.plan import (
    ANCHORS,
    COMMAND,
    Sweep,
    Unit,
    is_earlier,
    make_plan,
    planned,
    read_plan,
    replace_plan,
    target_of,
    write_plan,
)
from lensaudit.sweep.planning import (
    check_data,
    conditions_of,
    data_digest,
    missing_lines,
    with_data,
)
from lensaudit.sweep.removal import check_unlinked
from lensaudit.sweep.run import Order, attempt, check_anchor
from lensaudit.sweep.settings import WatchSettings
from lensaudit.sweep.values import Values, values_in
from lensaudit.text import digest, slug
from lensaudit.turns import alone

CURVE = ("uds", "assignment", "bits", "em_erasure", "model_utility")
"""Always in the curve, first; every other metric follows."""
WATCH = "watch"
CURVE_FILE = "curve.json"
TABLE = "curve.csv"
_STEP = re.compile(r"(?:checkpoint|step|epoch|iter|global_step)[-_]?(\d+)$", re.IGNORECASE)
STOP_POLL_S = 0.5
_TARGET = "step-"
"""Begins the names of checkpoints in the plan; the number follows."""


def follow_run(
    settings: WatchSettings, report: Callable[[str], None]
) -> tuple[list[CurveRow], Path]:
    """Audit what is there and, unless `once`, what comes until the time is over.

    Returns:
        The rows of the curve, and the folder that it is in.

    Raises:
        InputError: a name, a metric or the folder is wrong, or it holds a curve of other numbers.
        LensAuditError: the anchors cannot be measured.
        Preempted: told to stop; what is finished is in the curve.
    """
    sweep, hours = _begun(settings), settings.max_hours
    end = None if hours is None else time.monotonic() + 3600 * hours
    for line in missing_lines(sweep.conditions):
        report(line)
    told: dict[int, str] = {}
    unsettled = f"it has no files, or they changed less than {settings.settled_s:g} s ago"
    with alone(sweep.root), StopSignals() as signals:
        sweep = _planned(sweep)
        order = Order(str(sweep.root.resolve()))
        retain = sweep.anchor_units()[0]
        if state_of(sweep, retain).result is None:
            report("retain model")
            attempt(sweep, retain, order, signals)
        check_anchor(state_of(sweep, retain, run=order.run))
        while True:
            goes_on = not settings.once and (end is None or time.monotonic() < end)
            for step, folder in steps_of(settings.folder).items():
                order.check_time(signals)
                found = _opened(folder, settings)
                if isinstance(found, Checkpoint):
                    sweep = _audited(sweep, step, found, order, signals, report)
                elif (found or not goes_on) and told.get(step) != (why := found or unsettled):
                    told[step] = why
                    report(f"step {step}: not audited: {why}")
            if not goes_on:
                there = steps_of(settings.folder).items()
                return write_curve(sweep, {step: epoch_of(one) for step, one in there}), sweep.root
            _wait(settings.every_s, order, signals)


def _wait(seconds: float, order: Order, signals: StopSignals) -> None:
    """Sleep until the next look.

    Raises:
        Preempted: the process was told to stop.
    """
    end = time.monotonic() + seconds
    order.check_time(signals)
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, STOP_POLL_S))
        order.check_time(signals)


def _begun(settings: WatchSettings) -> Sweep:
    """The plan before any checkpoint: what is asked, and the anchors."""
    out = settings.out or results_folder() / f"watch-{slug(settings.folder.resolve().name)}"
    _check_own(out)
    resolve_device(settings.device)
    known, asked = load_registry(settings.registry), conditions_of(settings)
    _check_named(settings)
    specs: Mapping[ModelRole, ModelSpec] = {
        role: resolve(_anchor(role, settings), known) for role in ANCHORS
    }
    check_roles([place_of(role, spec) for role, spec in specs.items()])
    for spec in specs.values():
        check_at_hand(spec)
    here = [open_checkpoint(one) for one in specs.values() if one.local is not None]
    if len(here) > 1:
        check_same_shape(*here)
    anchors = {role: planned(spec) for role, spec in specs.items()}
    steps_of(settings.folder)
    asked = with_data(asked)
    check_data(asked)
    return make_plan(
        out,
        [anchors["retain"]],
        anchors=anchors,
        variants=("base",),
        conditions=asked,
        data=data_digest(asked),
        attacks={},
    )


def _anchor(role: ModelRole, settings: WatchSettings) -> str:
    """Name of the model of a role; of the demo's rows the demo's."""
    demo = DEMO if conditions_of(settings).data == DEMO_ROWS else ""
    return getattr(settings, role) or f"{demo}{role}"


def _check_named(settings: WatchSettings) -> None:
    """Refuse rows that nobody named, and other rows than the demo's between nobody's models.

    Raises:
        InputError: `full` or the retain model is not named, or no rows are.
    """
    rows = settings.forget or settings.data
    if rows is None and settings.suite == "tofu":
        raise InputError(
            f"{settings.folder}: checkpoints of your own; name the rows to ask them about with "
            "--data: a file, demo, or forget10 for TOFU's"
        )
    unnamed = [f"--{role}" for role in ANCHORS if getattr(settings, role) is None]
    if rows != DEMO_ROWS and unnamed:
        raise InputError(
            f"{settings.folder}: checkpoints of your own; name the model before unlearning with "
            f"--full, and one that never saw {rows or 'the facts'} with --retain (not named: "
            f"{', '.join(unnamed)})"
        )


def _check_own(out: Path) -> None:
    """Refuse the folder of another command. Before its first curve a watched run has a plan alone.

    Raises:
        InputError: it is another's, or holds a curve of others; or its plan is of more than anchors
            and steps, or of an earlier version.
    """
    if (out / PLAN).exists() and (out / CURVE_FILE).exists():
        check_free(out, WATCH)
    else:
        check_free(out, COMMAND, (CURVE_FILE, TABLE))
    if (out / PLAN).exists():
        if is_earlier(out):
            raise InputError(f"{out / PLAN}: an earlier version made it; name another --out")
        plan = read_plan(out)
        names = {one.name for one in plan.targets} - {*plan.anchors.values()}
        if not all(name.startswith(_TARGET) for name in names):
            raise InputError(f"{out}: was written by `lensaudit {COMMAND}`; name another --out")


def _planned(sweep: Sweep) -> Sweep:
    """The plan that lies in the folder, as far as it has grown, with the places of now."""
    check_unlinked(sweep.root)
    if not sweep.file.exists():
        write_plan(sweep)
    found = read_plan(sweep.root)
    # ids of the anchors are hashes of all that decides a number
    if found.anchor_units() != sweep.anchor_units():
        raise InputError(
            f"{sweep.root}: holds a curve of other metrics, data, anchors or settings; give the "
            "same options as before, or name another folder with --out"
        )
    steps = [one for one in found.targets if one.name not in sweep.by_name]
    moved = replace(found, conditions=sweep.conditions, targets=(*sweep.targets, *steps))
    if moved.content != found.content:
        replace_plan(moved)
    return moved


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
    for name, parts in (("trainer_state.json", ()), (MANIFEST, ("options",))):
        with contextlib.suppress(InputError):
            found: Any = part(read_json(folder / name), *parts).get("epoch")
            if isinstance(found, int | float) and not isinstance(found, bool):
                return float(found)
    return None


def source_of(folder: Path, full: str, known: Registry) -> str:
    """A checkpoint's name; of an adapter, with `full`, which it was trained on.

    Args:
        folder: that a trainer wrote.
        full: the model before unlearning; of one with an adapter, new ones are for its base.
        known: names that can be asked for.

    Raises:
        InputError: the adapter's file names another base model, which is compared, never followed.
    """
    if not (folder / CONFIG).exists():
        return named(folder)
    said = json_object(folder / CONFIG).get("base_model_name_or_path")
    spec = resolve(full, known)
    base = str(spec.local or f"{spec.repo}@{spec.revision}") if spec.adapter else full
    if isinstance(said, str) and said and not _is_base(said, base, spec, known):
        raise InputError(
            f"{folder.name}: {CONFIG} names the base model {said[:80]!r}, and full is {full}; name "
            "the model that the adapter was trained on as full, or correct the file"
        )
    return f"{base}+{named(folder)}"


def _is_base(said: str, base: str, full: ModelSpec, known: Registry) -> bool:
    """Whether a name means the base of `full`, as far as can be told without fetching anything."""
    with contextlib.suppress(InputError):
        other = resolve(said, known)
        if other.is_here:
            own = replace(full, adapter=None)
            return open_checkpoint(other).weights == open_checkpoint(own).weights
        if full.local is None:
            return other.repo == full.repo
    return PurePath(said).name in {PurePath(one).name for one in (base, full.repo)}


def _opened(folder: Path, settings: WatchSettings) -> Checkpoint | str | None:
    """The checkpoint, or why it cannot be opened; None where its files changed just now."""
    try:
        times = [path.stat().st_mtime for path in folder.iterdir() if path.is_file()]
        # of a time that is far ahead the clock was set back since
        if not times or abs(time.time() - max(times)) < settings.settled_s:
            return None
        known = load_registry(settings.registry)
        name = source_of(folder, _anchor("full", settings), known)
        return open_checkpoint(resolve(name, known))
    except OSError:  # it was removed meanwhile
        return None
    except LensAuditError as error:
        return failure_of(error).reason


def _audited(
    sweep: Sweep,
    step: int,
    checkpoint: Checkpoint,
    order: Order,
    signals: StopSignals,
    report: Callable[[str], None],
) -> Sweep:
    """The plan with a checkpoint as the unit of its step, which is tried if it is to be tried.

    Where either is new, the curve is written.
    """
    folder = checkpoint.adapter or checkpoint.folder
    target = replace(target_of(checkpoint.spec, checkpoint), name=f"{_TARGET}{step}")
    anchors = [one.id for one in sweep.anchor_units()]
    unit = Unit(digest([step, target.identity, anchors]), target.name, "base")
    known = target in sweep.targets
    if not known:  # weights that are new, came in place of others, or lie elsewhere by now
        targets = [one for one in sweep.targets if one.name != target.name]
        units = [one for one in sweep.units if one.target != target.name]
        sweep = replace(sweep, targets=(*targets, target), units=(*units, unit))
        replace_plan(sweep)
    if is_left := state_of(sweep, unit, run=order.run).name == "to do":
        report(f"step {step}: {folder.name}")
        failure = attempt(sweep, unit, order, signals)
        if failure is not None:
            report(f"step {step}: {failure.kind}: {failure.reason}")
    if is_left or not known:
        write_curve(sweep, {step: epoch_of(folder)})
    return sweep


def write_curve(sweep: Sweep, epochs: Mapping[int, float | None]) -> list[CurveRow]:
    """`curve.json` and `curve.csv`: one row per step, one column per metric."""
    path, before = sweep.root / CURVE_FILE, []
    with contextlib.suppress(InputError):  # it is written anew
        before = checked_as(list[CurveRow], read_json(path), path)
    epochs = {row.step: row.epoch for row in before} | dict(epochs)
    states = {
        int(unit.target.removeprefix(_TARGET)): state_of(sweep, unit)
        for unit in sweep.units
        if unit.target.startswith(_TARGET)
    }
    states = {step: one for step, one in sorted(states.items()) if one.name in ("done", "failed")}
    values: dict[int, Values] = {
        step: values_in(sweep.unit(one.unit.id), one.result["not_asked"]) if one.result else {}
        for step, one in states.items()
    }
    found = dict.fromkeys(key for row in values.values() for key in row)
    metrics = [key for key in CURVE if key in found] + [k for k in found if k not in CURVE]
    rows = [
        CurveRow(
            step,
            epochs.get(step),
            {key: values[step][key].value if key in values[step] else None for key in metrics},
            one.failure.reason if one.failure else None,
        )
        for step, one in states.items()
    ]
    known = any(row.epoch is not None for row in rows)
    header = ("step", *(["epoch"] if known else []), *metrics, "failure")
    written = list(map(document, rows))
    lines = [[row.get(name) for name in header] for row in written]
    write_json(path, written)  # first: by it the folder is known, should this be killed
    write_csv(sweep.root / TABLE, header, lines)
    started, inputs = time.monotonic(), {"plan": sweep.hash}
    made = manifest(WATCH, kind="curve", options={}, inputs=inputs, device="none", started=started)
    made.write(sweep.root, (CURVE_FILE, TABLE))
    return rows
