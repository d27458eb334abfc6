"""From settings to a summarised log: the whole of `rtt run`, `summarize` and `validate`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lensaudit.attacks.rtt.defects import MEANINGS, Inspection, handled, inspect
from lensaudit.attacks.rtt.items import LETTERS, Dataset, load_mcq, save_mcq
from lensaudit.attacks.rtt.log import FILE, Log, read_log
from lensaudit.attacks.rtt.readout import letters_of
from lensaudit.attacks.rtt.settings import (
    Cut,
    Readout,
    StudySettings,
    ValidationSettings,
)
from lensaudit.attacks.rtt.study import Gate, Study, TrainingGrid, from_checkpoint
from lensaudit.attacks.rtt.summary import summarize
from lensaudit.attacks.rtt.table import SUMMARIES, Summarized, write_summaries
from lensaudit.attacks.rtt.tofu import load_statements, split_by_author
from lensaudit.attacks.rtt.work import pending, plan_of, run
from lensaudit.data.tofu import DEMO
from lensaudit.errors import InputError, LensAuditError, PartialError, VerificationError
from lensaudit.files import alone, make_folder
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_checkpoint, open_model
from lensaudit.models.device import resolve_device
from lensaudit.models.registry import (
    Registry,
    default_anchor,
    default_data,
    is_demo,
    load_registry,
    resolve,
)
from lensaudit.progress import Notice, Tick
from lensaudit.results.records import claim, manifest
from lensaudit.settings import plain, results_folder
from lensaudit.unlearn.rows import TOFU_PAIRS
from lensaudit.unlearn.trainee import check_memory

DEMO_LRS = (3e-4, 1e-3, 3e-3)
"""A model of a million weights needs steps that a model of a billion would not survive."""
DEMO_READS: Readout = "answer"
"""The embedded family knows answers and never saw a letter."""
OUT = "rtt"


@dataclass(frozen=True)
class PreparedStudies:
    """Studies that may be run: everything is opened and checked, nothing is loaded."""

    settings: StudySettings
    data: Dataset
    studies: tuple[Study, ...]
    """One per unlearned model; original and control are run once."""
    log: Log
    folder: Path


def prepare(settings: StudySettings, notice: Notice | None = None) -> PreparedStudies:
    """Open and check models, data and grid; `notice` is told what of the log does not count.

    Raises:
        InputError: whatever is wrong with names, files or numbers.
        VerificationError: the data have defects that are refused.
    """
    name = settings.data or default_data(settings.names[0])
    data = handled(data_of(name, settings.cut), settings.defects)
    folder = settings.out or results_folder() / OUT
    studies = _studies(settings, data)
    return PreparedStudies(settings, data, studies, read_log(folder / FILE, notice=notice), folder)


def run_studies(prepared: PreparedStudies, report: Tick) -> Summarized:
    """Fill the log with the jobs that it lacks, and summarise it.

    Raises:
        TryAgainError: another process runs studies into the folder.
    """
    with alone(prepared.folder):
        # what another process did since the log was read is not done again
        log = read_log(prepared.folder / FILE)
        return _filled(replace(prepared, log=log), report)


def _filled(prepared: PreparedStudies, report: Tick) -> Summarized:
    started = time.monotonic()
    settings, data, log = prepared.settings, prepared.data, prepared.log
    jobs = {one.job_id for study in prepared.studies for one in plan_of(study)}
    n_known = sum(job_id in log.finished for job_id in jobs)
    claim(prepared.folder, "rtt run", SUMMARIES)
    save_mcq(data, make_folder(prepared.folder / "mcq") / f"{data.name}-{data.digest[:8]}")
    errors = []
    for study in prepared.studies:
        try:
            run(study, log, defects="keep", report=report)
        except (VerificationError, PartialError) as error:
            errors.append(error)
    found = summarize(log, selection=settings.selection, rule=settings.rule)
    write_summaries(found, log, prepared.folder)
    _record(prepared, started)
    ids = {study.study_id for study in prepared.studies}
    own = tuple(one for one in found if one.study.study_id in ids)
    return Summarized(own, prepared.folder, log.n_added, n_known, _worst(errors))


@dataclass(frozen=True)
class Validated:
    """Data, and what is wrong with them."""

    data: Dataset
    found: Inspection
    written: Path | None

    def document(self) -> dict[str, Any]:
        """As `rtt validate --json` tells it."""
        return {
            "data": self.data.name,
            "digest": self.data.digest,
            "n_items": self.found.n_items,
            "splits": {split.name: len(split.items) for split in self.data.splits},
            "n_choices": self.data.n_choices,
            "answers": dict(zip(LETTERS, self.found.n_answers, strict=False)),
            "left_out": dict(self.data.left_out),
            "defects": [
                {
                    "kind": one.kind,
                    "meaning": MEANINGS[one.kind],
                    "blocks": one.blocks,
                    "items": list(one.idx),
                    "detail": one.detail,
                }
                for one in self.found.defects
            ],
        }


def validate(settings: ValidationSettings) -> Validated:
    """Load data and inspect them."""
    data = data_of(settings.data, settings.cut)
    found = inspect(data)
    if settings.model is not None:
        checkpoint = open_model(settings.model, settings.registry)
        letters_of(load_tokenizer(checkpoint), data.n_choices)
    return Validated(data, found, save_mcq(data, settings.write) if settings.write else None)


def data_of(name: str, cut: Cut) -> Dataset:
    """Splits from a folder, or cut from a forget set."""
    folder = Path(name).expanduser()
    # a folder that has a set's name is `./demo`
    if folder.is_dir() and name not in (DEMO, *TOFU_PAIRS):
        return load_mcq(folder, only=cut.only)
    if cut.only:
        raise InputError("--only names splits of a folder; a forget set is cut by --splits")
    set_name, facts = load_statements(name, rows_per_author=cut.rows_per_author)
    return split_by_author(set_name, facts, n_splits=cut.n_splits, seed=cut.seed)


def _studies(settings: StudySettings, data: Dataset) -> tuple[Study, ...]:
    """One per unlearned model, checked."""
    registry, first = load_registry(settings.registry), settings.names[:1]
    demo = is_demo(first[0])
    if settings.no_control and settings.control:
        raise InputError("--retain and --no-control exclude each other")
    original = _opened(settings.original or default_anchor("full", first), registry)
    control = None
    if not settings.no_control:
        control = _opened(settings.control or default_anchor("retain", first), registry)
    unlearned = [_opened(name, registry) for name in dict.fromkeys(settings.names)]
    device = resolve_device(settings.device)
    _check_models(original, [*unlearned, *([control] if control else [])], device)
    readout: Readout = settings.readout or (DEMO_READS if demo else "letter")
    other: Readout = "answer" if readout == "letter" else "letter"
    made = tuple(
        Study(
            data=data,
            tokenizer=load_tokenizer(original),
            original=from_checkpoint(original, device=device),
            unlearned=from_checkpoint(one, device=device),
            control=from_checkpoint(control, device=device) if control else None,
            sweep=_sweep(settings, demo=demo),
            readouts=(readout, other),
            eval_splits=settings.hold_out,
            n_eval_splits=settings.v_runs,
            eval_seed=settings.eval_seed,
            gate=Gate(settings.min_baseline, settings.min_drop),
            match_readout=settings.match_readout,
        )
        for one in unlearned
    )
    for study in made:
        plan_of(study)
    return made


def _opened(name: str, registry: Registry) -> Checkpoint:
    return open_checkpoint(resolve(name, registry))


def _check_models(original: Checkpoint, others: Sequence[Checkpoint], device: str) -> None:
    for one in others:
        if one.tokenizer != original.tokenizer:
            raise InputError(
                f"{one.spec.name} and {original.spec.name} have different tokenizers; wanted "
                "models trained from one base"
            )
    for one in (original, *others):
        # the start weights are kept in main memory
        check_memory(one, copies=2 if device == "cpu" else 1, device=device)


def _sweep(settings: StudySettings, *, demo: bool) -> TrainingGrid:
    return TrainingGrid(
        lrs=settings.lrs or (DEMO_LRS if demo else TrainingGrid().lrs),
        n_epochs=settings.epochs,
        batch_size=settings.batch_size,
        n_warmup=settings.warmup,
        loss_on=settings.loss_on or (DEMO_READS if demo else "all"),
        weight_decay=settings.weight_decay,
        trainable=settings.trainable,
        seed=settings.cut.seed,
    )


def plan_lines(study: Study, log: Log) -> list[str]:
    """What would be done."""
    plan = plan_of(study)
    left = pending(plan, log)
    training = [one for one in left if one.lr is not None]
    n_steps = sum(
        study.sweep.n_epochs * study.sweep.n_steps(len(study.trained_on(one.split)))
        for one in training
    )
    models = ", ".join(f"{role} {one.name}" for role, one in study.subjects.items())
    held = ", ".join(f"{name} ({len(study.encoded[name].items)})" for name in study.held_out)
    return [
        models,
        f"{study.data.name}: {len(study.data.items)} items in {len(study.data.splits)} splits, "
        f"{len(study.data.left_out)} left out; held out in turn: {held}",
        f"lr {', '.join(f'{lr:g}' for lr in study.sweep.lrs)}; {study.sweep.n_epochs} epochs in "
        f"batches of {study.sweep.batch_size}; loss on {study.sweep.loss_on}",
        f"{len(plan)} jobs, {len(plan) - len(left)} in the log; {len(training)} "
        f"runs of {n_steps} steps together to do",
    ]


def _record(prepared: PreparedStudies, started: float) -> None:
    """The manifest of the folder's last run."""
    settings, studies = prepared.settings, prepared.studies
    inputs = {
        "data": prepared.data.name,
        "data_digest": prepared.data.digest,
        "studies": [study.study_id for study in studies],
        "models": {one.name: one.weights for study in studies for one in study.subjects.values()},
    }
    options = plain(settings, without=("names", "out"))
    device = resolve_device(settings.device)
    made = manifest("rtt run", options=options, inputs=inputs, device=device, started=started)
    made.write(prepared.folder, (*SUMMARIES, FILE))


def _worst(errors: Sequence[LensAuditError]) -> LensAuditError | None:
    """One error for all studies: a failed gate before failed runs."""
    if not errors:
        return None
    first = sorted(errors, key=lambda one: not isinstance(one, VerificationError))[0]
    more = f" (and {len(errors) - 1} more studies)" if len(errors) > 1 else ""
    return type(first)(f"{first}{more}")
