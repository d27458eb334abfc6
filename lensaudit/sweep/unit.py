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

from lensaudit.association.calls import WHO_HAS_WHAT
from lensaudit.attacks.relearn import RelearnJob
from lensaudit.attacks.rounding import RoundingJob
from lensaudit.attacks.settings import Relearning
from lensaudit.auditing.measuring import Steps, measure, who_has_what
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.auditing.step import Opened
from lensaudit.errors import InputError, TryAgainError, VerificationError, WorkError
from lensaudit.files import make_folder, read_json, write_json
from lensaudit.metrics.registry import Metric, metric_of, ordered, retain_names
from lensaudit.models.checkpoint import Checkpoint, in_role, open_model
from lensaudit.models.device import resolve_device
from lensaudit.patching.options import parse_memory
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import unheard
from lensaudit.results.keyed import keyed_document
from lensaudit.results.kinds.eval import MetricResult
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.manifest import git_commit
from lensaudit.results.roles import check_roles, ends_as_sources
from lensaudit.results.run import RunResult
from lensaudit.scores.estimate import Estimate
from lensaudit.settings import Anchors, Caches, Machine, NeutralRows, Questions, Rows, shared
from lensaudit.sweep.attempts import RESULT, finished, publish
from lensaudit.sweep.plan import (
    ANCHORS,
    AttackVariant,
    Sweep,
    Target,
    Unit,
    UnitConditions,
    relearned_rows,
    relearning_of,
)
from lensaudit.sweep.planning import patched_data, validity_data, without_rows
from lensaudit.sweep.run import Report
from lensaudit.sweep.settings import RELEARNED
from lensaudit.sweep.weights import Weights
from lensaudit.training.rows import load_rows
from lensaudit.training.trainee import stored_dtype

Obtain = Callable[[Target], Path | None]
"""A target's files as a folder; None where the usual ways find them."""
LENS = "logit_lens"
TOLERANCES = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 2e-2}
"""Of a value, absolute and relative: other kernels and batches move metrics by less than this; a
generation may change a word, so that a mean over few texts moves more."""


def run_unit(sweep: Sweep, unit: Unit, obtain: Obtain, halvings: int, report: Report) -> None:
    """Do a unit and publish it. What is finished of it is kept if it fails.

    Args:
        sweep: in its folder.
        unit: that is done.
        obtain: where its checkpoint lies.
        halvings: of batch and memory, because it ran out before.
        report: called after each pass; may raise to stop between passes.

    Raises:
        LensAuditError: it has no result.
    """
    started = time.monotonic()
    if keyed_document(sweep.work(unit.id) / RESULT, unit.id) is not None:
        publish(sweep, unit, None)
        return
    work = make_folder(sweep.work(unit.id))
    caches = Path(sweep.conditions.activations or sweep.root / "activations")
    settings = stage(sweep, unit, work, obtain, caches, halvings)
    values = measured(unit.target, settings, sweep.conditions, work, report)
    target = vars(sweep.by_name[unit.target])
    manifest = read_json(work / "eval" / "manifest.json")
    weights = manifest["inputs"]["model"]["weights"]
    if unit.variant == "base" and target["weights"] not in (None, weights):
        raise InputError(f"{unit.target}: its weights changed while it was measured")
    publish(
        sweep,
        unit,
        {
            "plan": sweep.hash,
            **{key: target[key] for key in ("role", "method", "repo", "revision")},
            # what `auto` meant, and the weights that were measured
            **{key: manifest["options"][key] for key in ("dtype", "device", "attn", "batch_size")},
            "weights": weights,
            "versions": manifest["versions"],
            "halvings": halvings,
            "values": values,
            "seconds": round(time.monotonic() - started, 3),
            "git_commit": git_commit(),
        },
    )


def stage(
    sweep: Sweep, unit: Unit, work: Path, obtain: Obtain, activations: Path, halvings: int
) -> EvaluateSettings:
    """How a unit is evaluated: everything it reads, by name, in a registry file of its own.

    Raises:
        InputError: a checkpoint is missing, or is not the planned one.
        TryAgainError: the retain model is not done yet.
    """
    target, conditions = sweep.by_name[unit.target], sweep.conditions
    names = dict(sweep.anchors)
    read = [*(sweep.by_name[name] for name in names.values()), target]
    entries = {one.name: one.entry(obtain(one)) for one in read}
    registry = write_json(work / "registry.json", entries)
    opened = {name: open_model(name, registry) for name in entries}
    for one in read:
        if one.weights not in (None, opened[one.name].weights):
            raise InputError(
                f"{one.name}: {opened[one.name].folder} holds other weights than when the plan was "
                "made; plan again, in another folder"
            )
    check_roles([one for role in ANCHORS for one in in_role(role, opened[names[role]])])
    if unit.variant != "base":
        folder = attacked(
            opened[target.name],
            unit.variant,
            work / "checkpoint",
            device=conditions.device,
            how=relearning_of(conditions),
            rows=relearned_rows(conditions, conditions.relearn_on),
        )
        for role, name in names.items():
            if name == target.name:  # the attacked anchor is not the anchor any more
                names[role] = f"{name}-unattacked"
                entries[names[role]] = entries[name]
        # an adapter is merged into what was attacked
        entries[target.name] = replace(target, adapter=None).entry(folder)
        write_json(registry, entries)
    return EvaluateSettings(
        **shared(halved(conditions, halvings), Questions, Machine, NeutralRows),
        metrics=conditions.metrics,
        retain_log=_retain_log(sweep, unit),
        full=names["full"],
        retain=names["retain"],
        registry=registry,
        activations=activations,
    )


def halved(conditions: UnitConditions, times: int) -> UnitConditions:
    """Conditions with the batch and the budget halved as often as memory ran out."""
    if not times:
        return conditions
    batch = max(1, (conditions.batch_size or 32) >> times)
    memory = f"{max(256, parse_memory(conditions.memory) >> 20 >> times)}M"
    return replace(conditions, batch_size=batch, memory=memory)


def _retain_log(sweep: Sweep, unit: Unit) -> Path | None:
    """The log that comparisons with the retain model read; None for the unit that makes it.

    None too where no metric compares.
    """
    anchor, asked = sweep.anchor_units()[0], sweep.conditions
    if unit == anchor or not retain_names(ordered(asked.suite, asked.metrics)):
        return None
    log = sweep.unit(anchor.id) / "eval" / f"{sweep.conditions.suite.upper()}_EVAL.json"
    if not log.exists():
        raise TryAgainError(
            f"{unit.label}: waits for the retain model {anchor.target}, which is not done; "
            "run the sweep again"
        )
    return log


@ends_as_sources()
def measured(
    model: str, settings: EvaluateSettings, conditions: UnitConditions, out: Path, report: Report
) -> dict[str, Any]:
    """Measure into `out`, as an audit does; the values by metric, as a result file holds them.

    Scores are patched before anything is evaluated: their errors are errors, while in an
    evaluation they would become a reason beside the other metrics.

    Raises:
        LensAuditError: the unit has no result; finished passes are kept in `out`.
    """
    data, folder = patched_data(conditions) if conditions.patch else None, out / "eval"
    know, patch = dict[str, Opened | str](), None
    if data is not None:
        groups = (Rows, Machine, NeutralRows, Anchors, Caches)
        beside = {"data": data, "batch_size": None, "validity_data": validity_data(conditions)}
        given = shared(settings, *groups, **beside)
        patch = PatchSettings(**given, lens=conditions.lens, also=conditions.also)
        if conditions.association != "none":
            retains = () if settings.retain is None else (settings.retain,)
            know = {model: who_has_what(WHO_HAS_WHAT, model, patch, retains)}
    evaluations = [(model, settings, folder)]
    # the retain model's own log is its own reference; no pass is run twice
    lacking = without_rows(conditions)
    names = retain_names(ordered(settings.suite, settings.metrics))
    own = tuple(one for one in names if one not in lacking)
    if settings.retain_log is None and own:
        alone = replace(settings, retain=None, metrics=own)
        log = folder / f"{settings.suite.upper()}_EVAL.json"
        evaluations = [(model, alone, folder), (model, replace(settings, retain_log=log), folder)]
    steps = Steps(know=know, patch=patch, evaluations=evaluations)
    found = measure(
        [model], steps, out, notice=report, progress=lambda progress: report(progress.piece)
    )
    said = found.said[model]
    if said.failures:
        raise WorkError(f"{said.failures[0].step}: {said.failures[0].message}")
    values = {name: _value(metric_of(name), one) for name, one in sorted(said.entries.items())}
    for asked in know.values():
        values |= _association(asked if isinstance(asked, str) else found.known[model])
    for depth in found.depths:
        values |= _depths(depth.record)
    return values


def _association(known: RunResult | str) -> dict[str, Any]:
    """P of the assignment test and bits a fact as plain JSON; the reason where nobody is asked."""
    unknown = Estimate(None, n=0, why="no model that never knew was asked: no prior")
    p, bits, unscored = unknown, unknown, 0
    if isinstance(known, str):
        p = bits = replace(unknown, why=known)
    else:
        found = known.record
        n, unscored = found.n, len(found.unscored)
        p, mean = Estimate(found.p, n=n), found.bits or unknown
        bits = replace(mean, n=n, why=unknown.why)
    return {
        "assignment": _row(p, unscored, "forgot", "association"),
        "bits": _row(bits, unscored, "knows", "association"),
    }


def _row(found: Estimate, n_unscored: int, pole: str | None, family: str) -> dict[str, Any]:
    """A value with its limits, or the reason why there is none, as plain JSON."""
    return {
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "n_scored": found.n or 0,
        "n_unscored": n_unscored,
        "reason": found.why if found.value is None else None,
        "high_means": pole,
        "family": family,
    }


def _depths(summary: PatchSummary) -> dict[str, Any]:
    """Logit Lens depth, depth on facts to keep and selectivity as plain JSON, where asked."""
    found: dict[str, Any] = {}
    if summary.lens_per_layer:
        n = summary.lens_n_scored
        depth = Estimate.within(summary.lens, summary.lens_ci95, n=n)
        found[LENS] = _row(depth, summary.n - n, "forgot", "depth")
    for name, one in summary.collateral.items():
        deeper, n = one.selectivity, one.n_scored
        for key, value, ends in (
            ("collateral", one.depth, one.ci95),
            ("selectivity", deeper["value"], deeper["ci95"]),
        ):
            depth = Estimate.within(value, ends, n=n, why="no fact could be scored")
            found[f"{key}_{name}"] = _row(depth, one.n - n, "forgot", "depth")
    return found


def _value(metric: Metric, entry: MetricResult) -> dict[str, Any]:
    """One metric as plain JSON."""
    found = replace(entry, n=entry.n_scored, why=entry.reason or "no value")
    return _row(found, entry.n_unscored, metric.high_means, metric.fn.__module__.rpartition(".")[2])


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
    given = {
        "start": start,
        "stored": stored_dtype(start, "same"),
        "device": resolve_device(device),
    }
    job = (
        RelearnJob(**given, rows=load_rows(rows, part="forget"), data=rows, settings=how)
        if variant == RELEARNED
        else RoundingJob(**given, method=variant)
    )
    job.check()
    job.make(out)
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
    done = {unit.id: unit for unit in sweep.units if finished(sweep, unit) is not None}
    if not done:
        raise InputError(f"{sweep.root}: no unit is finished; run the sweep first")
    # the seed chooses among units by id, so that the order of a plan does not matter
    chosen = random.Random(seed).sample(sorted(done), min(sample, len(done)))
    found = []
    for unit in (done[one] for one in chosen):
        report(f"{unit.label}: computed again")
        found.append(_compared(sweep, unit, tolerance))
    return found


def _compared(sweep: Sweep, unit: Unit, tolerance: float | None) -> Compared:
    result = finished(sweep, unit) or {}
    # beside the sweep: an attacked checkpoint may be too large for a folder in memory
    with tempfile.TemporaryDirectory(prefix="verify-", dir=sweep.root.resolve()) as folder:
        work, obtain = Path(folder), Weights(sweep).obtain
        own, halvings = work / "activations", int(result["halvings"])
        settings = stage(sweep, unit, work, obtain, own, halvings)
        again = measured(unit.target, settings, sweep.conditions, work, unheard)
    allowed = TOLERANCES[result["dtype"]] if tolerance is None else tolerance
    return compare(unit, result["values"], again, allowed)


def compare(
    unit: Unit, before: Mapping[str, Any], again: Mapping[str, Any], tolerance: float
) -> Compared:
    """The largest difference of two measurements; a value on one side only is infinite."""
    gaps: dict[str, float] = {}
    for name in before.keys() | again.keys():
        a, b = (one.get(name, {}).get("value") for one in (before, again))
        one_sided = 0.0 if a is b else math.inf
        gaps[name] = one_sided if a is None or b is None else abs(a - b) / max(1.0, abs(a))
    worst = max(gaps, key=lambda name: gaps[name], default="")
    value = gaps.get(worst, 0.0)
    return Compared(unit.label, len(gaps), value, worst if value else "", tolerance)


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
