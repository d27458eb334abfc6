"""One unit from its checkpoint to its published result: attacked, measured, published.

And again: are the numbers those that another machine would find? Random units are computed anew.
"""

import math
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lensaudit.association.opening import open_know
from lensaudit.association.run import answer_into
from lensaudit.association.settings import quick
from lensaudit.attacks import relearn, rounding
from lensaudit.attacks.relearn import Relearning
from lensaudit.auditing.evaluate import evaluate_into
from lensaudit.auditing.patch import patch_into
from lensaudit.auditing.result import EvaluationResult
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.errors import InputError, TryAgainError, VerificationError, WorkError
from lensaudit.files import make_folder, read_json, write_json
from lensaudit.metrics.registry import Metric, MetricResult, all_metrics, ordered, retain_names
from lensaudit.models.checkpoint import Checkpoint, open_checkpoint
from lensaudit.models.device import resolve_device
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.settings import PatchSettings
from lensaudit.results.records import git_commit
from lensaudit.settings import (
    Anchors,
    Caches,
    Machine,
    Names,
    Precision,
    Questions,
    Rows,
    shared,
)
from lensaudit.sweep.attempts import UnitState, UnitValue, prepared, publish, states_of
from lensaudit.sweep.plan import AttackVariant, Sweep, Target, Unit, UnitConditions
from lensaudit.sweep.planning import patched_data, relearned_rows, relearning_of
from lensaudit.sweep.run import Report, UnitRoom
from lensaudit.sweep.weights import Weights
from lensaudit.unlearn.rows import load_rows
from lensaudit.unlearn.trainee import stored_dtype

Obtain = Callable[[Target], Path | None]
"""A target's files as a folder; None where the usual ways find them."""
LENS = "logit_lens"
TOLERANCES = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 2e-2}
"""Of a value, absolute and relative: other kernels and batches move metrics by less than this; a
generation may change a word, so that a mean over few texts moves more."""


def run_unit(sweep: Sweep, unit: Unit, obtain: Obtain, room: UnitRoom) -> None:
    """Do a unit and publish it. What is finished of it is kept if it fails.

    Raises:
        LensAuditError: it has no result.
    """
    started = time.monotonic()
    if prepared(sweep, unit) is not None:
        publish(sweep, unit, None)
        return
    work = make_folder(sweep.work(unit.id))
    settings = stage(sweep, unit, work, obtain, room)
    values = measure(unit.target, settings, sweep.conditions, work, room)
    target = sweep.by_name[unit.target]
    publish(
        sweep,
        unit,
        {
            "plan": sweep.hash,
            "role": target.role,
            "method": target.method,
            "repo": target.repo,
            "revision": target.revision,
            **resolved(work),
            "halvings": room.halvings,
            "values": values,
            "seconds": round(time.monotonic() - started, 3),
            "git_commit": git_commit(),
        },
    )


def stage(sweep: Sweep, unit: Unit, work: Path, obtain: Obtain, room: UnitRoom) -> EvaluateSettings:
    """How a unit is evaluated: everything it reads, by name, in a registry file of its own.

    Raises:
        InputError: a checkpoint is missing, or is not the planned one.
        TryAgainError: the retain model is not done yet.
    """
    target = sweep.by_name[unit.target]
    names = {role: sweep.anchors[role] for role in ("full", "retain")}
    anchors = {role: sweep.by_name[name] for role, name in names.items()}
    folders = {one.name: obtain(one) for one in (*anchors.values(), target)}
    entries = {one.name: one.entry(folders[one.name]) for one in (*anchors.values(), target)}
    registry = write_json(work / "registry.json", entries)
    known = load_registry(registry)
    for one in (*anchors.values(), target):
        _check(one, open_checkpoint(resolve(one.name, known)))
    if unit.variant != "base":
        start = open_checkpoint(resolve(target.name, known))
        out = work / "checkpoint"
        folder = attacked(
            start,
            unit.variant,
            out,
            device=sweep.conditions.device,
            how=relearning_of(sweep.conditions),
            rows=relearned_rows(sweep.conditions, sweep.conditions.relearn_on),
        )
        for role, name in names.items():
            if name == target.name:  # the attacked anchor is not the anchor any more
                names[role] = f"{name}-unattacked"
                entries[names[role]] = entries[name]
        # an adapter is merged into what was attacked
        entries[target.name] = replace(target, adapter=None).entry(folder)
        registry = write_json(work / "registry.json", entries)
    batch, memory = room.batch_size(sweep.conditions), room.memory(sweep.conditions)
    return EvaluateSettings(
        **shared(sweep.conditions, Questions, Machine, batch_size=batch, memory=memory),
        metrics=sweep.conditions.metrics,
        retain_log=_retain_log(sweep, unit),
        full=names["full"],
        retain=names["retain"],
        registry=registry,
        activations=room.activations,
    )


def _retain_log(sweep: Sweep, unit: Unit) -> Path | None:
    """The log that comparisons with the retain model read; None for the unit that makes it."""
    anchor = sweep.anchor_units()[0]
    if unit == anchor:
        return None
    log = sweep.unit(anchor.id) / "eval" / f"{sweep.conditions.suite.upper()}_EVAL.json"
    if not log.exists():
        raise TryAgainError(
            f"{unit.label}: waits for the retain model {anchor.target}, which is not done; "
            "run the sweep again"
        )
    return log


def _check(target: Target, found: Checkpoint) -> None:
    if target.weights is not None and found.weights != target.weights:
        raise InputError(
            f"{target.name}: {found.folder} holds other weights than when the plan was made; "
            "plan again, in another folder"
        )


def measure(
    model: str, settings: EvaluateSettings, conditions: UnitConditions, out: Path, room: UnitRoom
) -> dict[str, Any]:
    """Measure into `out`; the values by metric, as a result file holds them.

    Who has what costs least and comes first; then patched scores: their errors are errors, while
    in an evaluation they would become a reason beside the other metrics.

    Raises:
        LensAuditError: the unit has no result; finished passes are kept in `out`.
    """
    values: dict[str, Any] = {}
    data = patched_data(conditions)
    if data is not None:
        if conditions.association != "none":
            values |= _association(model, settings, data, out / "know", room)
        given = shared(settings, Rows, Machine, Anchors, Caches, data=data, batch_size=None)
        asked = PatchSettings(**given, lens=conditions.lens, also=conditions.also)
        (found,) = patch_into(
            [model], asked, out / "patch", notice=room.report, progress=room.tell
        ).results
        values |= {LENS: _lens(found.summary)} if conditions.lens else {}
        values |= _collateral(found.summary)
    folder = out / "eval"
    if settings.retain_log is None:
        # the retain model itself: its log is its own reference; no pass is run twice
        wanted = retain_names(ordered(settings.suite, settings.metrics))
        if wanted:
            own = replace(settings, retain=None, metrics=tuple(wanted))
            _evaluated(model, own, folder, room)
            settings = replace(settings, retain_log=folder)
    result = _evaluated(model, settings, folder, room)
    if broken := next(iter(result.failures), None):
        raise WorkError(f"{broken.step}: patching failed: {broken.message}")
    known, entries = all_metrics(), sorted(result.entries.items())
    return {**{name: _value(known[name], one) for name, one in entries}, **values}


def _evaluated(
    model: str, settings: EvaluateSettings, folder: Path, room: UnitRoom
) -> EvaluationResult:
    found = evaluate_into(model, settings, folder, notice=room.report, progress=room.tell)
    return found.checked()


def _association(
    model: str, asked: EvaluateSettings, data: str, out: Path, room: UnitRoom
) -> dict[str, Any]:
    """P of the assignment test and bits a fact as plain JSON; the reason where nobody is asked."""
    retains = () if asked.retain in (None, model) else (asked.retain,)
    settings = quick(retains, **shared(asked, Rows, Precision, Names, Caches, data=data))
    values: dict[str, Any] = {"assignment": None, "bits": None}
    reason, n, unscored = "no model that never knew was asked: no prior", 0, 0
    try:
        known = answer_into(open_know(model, settings), out, progress=room.tell).summary
    except InputError as error:
        reason = str(error)
    else:
        n, unscored = known["n"], len(known["unscored"])
        values = {"assignment": {"value": known["p"]}, "bits": known["bits"]}
    poles = {"assignment": "forgot", "bits": "knows"}
    return {
        name: _row(one or {}, (n, unscored), None if one else reason, poles[name], "association")
        for name, one in values.items()
    }


def _row(
    one: Mapping[str, Any], n: tuple[int, int], reason: str | None, pole: str, family: str
) -> dict[str, Any]:
    """A value with its limits, or the reason why there is none, as plain JSON."""
    value, low, high = map(one.get, ("value", "low", "high"))
    return vars(UnitValue(value, low, high, *n, reason, pole, family))


def _ends(value: float | None, ends: Sequence[float] | None) -> dict[str, Any]:
    low, high = ends or (None, None)
    return {"value": value, "low": low, "high": high}


def _lens(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The Logit Lens depth as plain JSON."""
    n_scored = summary["lens_n_scored"]
    found = _ends(summary["lens"], summary["lens_ci95"])
    return _row(found, (n_scored, summary["n"] - n_scored), None, "forgot", "depth")


def _collateral(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Depth on facts to keep, and how much deeper the forgotten ones are erased, as plain JSON."""
    found: dict[str, Any] = {}
    for name, one in summary.get("collateral", {}).items():
        n = (one["n_scored"], one["n"] - one["n_scored"])
        sides = {"collateral": (one["depth"], one["ci95"])}
        sides["selectivity"] = (one["selectivity"]["value"], one["selectivity"]["ci95"])
        for key, (value, ends) in sides.items():
            why = None if value is not None else "no fact could be scored"
            found[f"{key}_{name}"] = _row(_ends(value, ends), n, why, "forgot", "depth")
    return found


def _value(metric: Metric, entry: MetricResult) -> dict[str, Any]:
    """One metric as plain JSON."""
    sides = list(entry.parts.values()) or [entry]
    return _row(
        {} if entry.value is None else _ends(entry.value, entry.ends),
        (sum(len(one.records) for one in sides), sum(len(one.unscored) for one in sides)),
        None if entry.value is not None else entry.reason or "no value",
        metric.high_means,
        metric.fn.__module__.rpartition(".")[2],
    )


def resolved(out: Path) -> Mapping[str, Any]:
    """What `auto` meant, and the weights that were measured."""
    manifest = read_json(out / "eval" / "manifest.json")
    options = {key: manifest["options"][key] for key in ("dtype", "device", "attn", "batch_size")}
    return {
        **options,
        "weights": manifest["inputs"]["model"]["weights"],
        "versions": manifest["versions"],
    }


def attacked(
    start: Checkpoint, variant: AttackVariant, out: Path, *, device: str, how: Relearning, rows: str
) -> Path:
    """The attacked model in the folder `out`.

    An attack that was finished before is not repeated; a relearning that was interrupted resumes.

    Args:
        start: what is attacked; its weights are kept as precisely as its own.
        variant: the attack.
        out: where to.
        device: where it is computed.
        how: settings of a relearning.
        rows: what is relearned, as `lensaudit relearn --data` takes it.

    Raises:
        InputError: the model cannot be attacked, or the folder holds something else.
        WorkError: a weight is not finite, or the loss diverged.
    """
    stored, place = stored_dtype(start, "same"), resolve_device(device)
    if variant == "relearn-1ep":
        job = relearn.RelearnJob(start, load_rows(rows, part="forget"), rows, how, stored, place)
        relearn.check(job)
        relearn.make(job, out, report=lambda _: None)
    else:
        rounded = rounding.RoundingJob(start, variant, "auto", stored, place)
        rounding.check(rounded)
        rounding.make(rounded, out)
    return out


@dataclass(frozen=True)
class Compared:
    """Largest difference of a unit that was computed twice."""

    unit: str
    n_values: int
    worst: float
    """Largest difference over tolerance's scale, max(1, |value|)."""
    metric: str
    """Where that is; empty where nothing differs."""
    tolerance: float

    @property
    def is_within(self) -> bool:
        """Whether nothing differs by more than the tolerance."""
        return self.worst <= self.tolerance


def verify_sweep(
    sweep: Sweep,
    *,
    sample: int,
    seed: int,
    tolerance: float | None,
    report: Report,
) -> list[Compared]:
    """Compute `sample` random finished units again, with caches of their own.

    Raises:
        InputError: nothing is finished.
    """
    done = [one for one in states_of(sweep) if one.result is not None]
    if not done:
        raise InputError(f"{sweep.root}: no unit is finished; run the sweep first")
    # the seed chooses among units by id, so that the order of a plan does not matter
    done.sort(key=lambda one: one.unit.id)
    chosen = random.Random(seed).sample(done, min(sample, len(done)))
    found = []
    for state in chosen:
        report(f"{state.unit.label}: computed again")
        found.append(_compared(sweep, state, tolerance))
    return found


def _compared(sweep: Sweep, state: UnitState, tolerance: float | None) -> Compared:
    result: Mapping[str, Any] = state.result or {}
    weights = Weights(sweep)
    # beside the sweep: an attacked checkpoint may be too large for a folder in memory
    with tempfile.TemporaryDirectory(prefix="verify-", dir=sweep.root.resolve()) as folder:
        work = Path(folder)
        room = UnitRoom(work / "activations", halvings=int(result["halvings"]))
        settings = stage(sweep, state.unit, work, weights.obtain, room)
        again = measure(state.unit.target, settings, sweep.conditions, work, room)
    allowed = TOLERANCES[result["dtype"]] if tolerance is None else tolerance
    return compare(state.unit, result["values"], again, allowed)


def compare(
    unit: Unit, before: Mapping[str, Any], again: Mapping[str, Any], tolerance: float
) -> Compared:
    """The largest difference of two measurements; a value on one side only is infinite."""
    gaps = {name: _gap(before.get(name), again.get(name)) for name in {*before, *again}}
    worst = max(gaps, key=lambda name: gaps[name]) if gaps else ""
    value = gaps.get(worst, 0.0)
    return Compared(unit.label, len(gaps), value, worst if value else "", tolerance)


def _gap(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> float:
    a, b = ((one or {}).get("value") for one in (first, second))
    if a is None or b is None:
        return 0.0 if a is b else math.inf
    return abs(a - b) / max(1.0, abs(a))


def refuse(found: Sequence[Compared]) -> None:
    """Nothing, if all units are within their tolerance.

    Raises:
        VerificationError: names those that are not.
    """
    bad = [one for one in found if not one.is_within]
    if bad:
        named = "; ".join(f"{one.unit}: {one.metric} by {one.worst:.3g}" for one in bad[:5])
        raise VerificationError(
            f"{len(bad)} of {len(found)} units differ by more than {bad[0].tolerance:g}: {named}\n"
            "compute them again with `lensaudit sweep retry --redo`, and mind the machine"
        )
