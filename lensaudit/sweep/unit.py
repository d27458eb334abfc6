"""A unit from its checkpoint to its published result: attacked, measured, published.

And again: are the numbers those that another machine would find? Random units are computed anew.
"""

import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lensaudit.association.calls import WHO_HAS_WHAT
from lensaudit.attacks.relearn import RelearnJob
from lensaudit.attacks.result import taught_nothing
from lensaudit.attacks.rounding import RoundingJob
from lensaudit.attacks.settings import Relearning
from lensaudit.auditing.measuring import Steps, measure, who_has_what
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.auditing.step import Opened
from lensaudit.errors import InputError, TryAgainError, VerificationError, WorkError
from lensaudit.files import make_folder, read_json, write_json
from lensaudit.metrics.registry import ordered, retain_names
from lensaudit.models.checkpoint import Checkpoint, in_role, open_model
from lensaudit.models.device import resolve_device
from lensaudit.patching.options import parse_memory
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import unheard
from lensaudit.results.keyed import keyed_document
from lensaudit.results.kinds.eval import log_name
from lensaudit.results.manifest import EVAL, MANIFEST, git_commit
from lensaudit.results.planned import RESULT
from lensaudit.results.reading import checked
from lensaudit.results.roles import UNATTACKED, check_roles, ends_as_sources
from lensaudit.settings import Anchors, Caches, Machine, NeutralRows, Questions, Rows, shared
from lensaudit.sweep.attempts import CHECKPOINT, REGISTRY, finished, publish
from lensaudit.sweep.plan import (
    ANCHORS,
    COMMAND,
    AttackVariant,
    Sweep,
    Target,
    Unit,
    UnitConditions,
    relearned_rows,
)
from lensaudit.sweep.planning import (
    attacks_of,
    data_digest,
    patched_data,
    validity_data,
    without_rows,
)
from lensaudit.sweep.removal import check_unlinked
from lensaudit.sweep.run import Report
from lensaudit.sweep.settings import RELEARNED
from lensaudit.sweep.values import Values, values_in
from lensaudit.sweep.weights import Weights
from lensaudit.text import digest
from lensaudit.training.rows import load_rows
from lensaudit.training.trainee import stored_dtype

Obtain = Callable[[Target], Path | None]
"""A target's files as a folder; None where the usual ways find them."""
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
    not_asked = measured(unit.target, settings, sweep.conditions, work, report)
    target = vars(sweep.by_name[unit.target])
    manifest = read_json(work / EVAL / MANIFEST)
    weights = manifest["inputs"]["model"]["weights"]
    if unit.variant == "base" and target["weights"] not in (None, weights):
        raise InputError(f"{unit.target}: its weights changed while it was measured")
    remark = taught_nothing(work / CHECKPOINT) if unit.variant == RELEARNED else None
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
            "not_asked": not_asked,
            "seconds": round(time.monotonic() - started, 3),
            "git_commit": git_commit(),
            **({} if remark is None else {"remark": remark}),
        },
    )


def stage(
    sweep: Sweep, unit: Unit, work: Path, obtain: Obtain, activations: Path, halvings: int
) -> EvaluateSettings:
    """How a unit is evaluated: everything it reads, by name, in a registry file of its own.

    Raises:
        InputError: a checkpoint is missing, or is not the planned one; or rows are not.
        TryAgainError: the retain model is not done yet.
    """
    target, conditions = sweep.by_name[unit.target], sweep.conditions
    _check_rows(sweep, unit)
    names = dict(sweep.anchors)
    read = [*(sweep.by_name[name] for name in names.values()), target]
    entries = {one.name: one.entry(obtain(one)) for one in read}
    registry = write_json(work / REGISTRY, entries)
    opened = {name: open_model(name, registry) for name in entries}
    for one in read:
        one.check(opened[one.name])
    check_roles([one for role in ANCHORS for one in in_role(role, opened[names[role]])])
    if unit.variant != "base":
        folder = attacked(
            opened[target.name],
            unit.variant,
            work / CHECKPOINT,
            device=conditions.device,
            how=checked(Relearning, sweep.attacks.get(unit.variant, {}), sweep.file),
            rows=relearned_rows(conditions, conditions.relearn_on),
        )
        for role, name in names.items():
            if name == target.name:  # the attacked anchor is not the anchor any more
                names[role] = f"{name}{UNATTACKED}"
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


def _check_rows(sweep: Sweep, unit: Unit) -> None:
    """Refuse rows that were edited since they were planned: a unit's id is of the rows it asks.

    `meta` makes its plan anew whenever it measures, with a hash of its own.

    Raises:
        InputError: questions, answers or rows to relearn are others, or are asked in another way.
    """
    if sweep.command != COMMAND:
        return
    asked = sweep.conditions
    attack = {one: how for one, how in sweep.attacks.items() if one == unit.variant}
    full = sweep.by_name[sweep.anchors["full"]]
    now = [data_digest(asked), attacks_of(asked, (unit.variant,), full)]
    if digest([sweep.data, attack]) != digest(now):
        raise InputError(
            f"{sweep.root}: the rows are others than when the plan was made; plan again, in "
            "another folder; or put them back, and `lensaudit sweep retry`"
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

    By its name a verdict knows an attacked anchor, too. Where no metric compares, a unit that comes
    first has none and does not wait.
    """
    anchor, asked = sweep.anchor_units()[0], sweep.conditions
    log = sweep.unit(anchor.id) / EVAL / log_name(asked.suite)
    if unit == anchor:
        return None
    if log.exists():
        return log
    if retain_names(ordered(asked.suite, asked.metrics)):
        raise TryAgainError(
            f"{unit.label}: waits for the retain model {anchor.target}, which is not done; "
            "run the sweep again"
        )
    return None


@ends_as_sources()
def measured(
    model: str, settings: EvaluateSettings, conditions: UnitConditions, out: Path, report: Report
) -> str | None:
    """Measure into `out`, as an audit does; returns why who has what was not asked, if so.

    Scores are patched before anything is evaluated: their errors are errors, while in an
    evaluation they would become a reason beside the other metrics.

    Returns:
        The reason; None where it was asked, or is no part of the plan.

    Raises:
        LensAuditError: the unit has no result; finished passes are kept in `out`.
    """
    data, folder = patched_data(conditions) if conditions.patch else None, out / EVAL
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
        log = folder / log_name(settings.suite)
        evaluations = [(model, alone, folder), (model, replace(settings, retain_log=log), folder)]
    steps = Steps(know=know, patch=patch, evaluations=evaluations)
    found = measure(
        [model], steps, out, notice=report, progress=lambda progress: report(progress.piece)
    )
    if failures := found.said[model].failures:
        raise WorkError(f"{failures[0].step}: {failures[0].message}")
    return next((asked for asked in know.values() if isinstance(asked, str)), None)


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
        InputError: nothing is finished, or there is a link where a run writes.
    """
    check_unlinked(sweep.root)
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
        not_asked = measured(unit.target, settings, sweep.conditions, work, unheard)
        again = values_in(work, not_asked)
    before = values_in(sweep.unit(unit.id), result["not_asked"])
    allowed = TOLERANCES[result["dtype"]] if tolerance is None else tolerance
    return compare(unit, before, again, allowed)


def compare(unit: Unit, before: Values, again: Values, tolerance: float) -> Compared:
    """The largest difference of two measurements; a value on one side only is infinite."""
    gaps: dict[str, float] = {}
    for name in before.keys() | again.keys():
        a, b = (one[name].value if name in one else None for one in (before, again))
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
            f"{len(bad)} of {len(found)} units differ by more than {bad[0].tolerance:g}: "
            f"{named}\ncompute them again with `lensaudit sweep retry --redo`, and check the "
            "machine"
        )
