"""From settings to a summarised log: the whole of `rtt run` and `validate`.

A study measures, checks that unlearning worked, retrains and writes down. Models are held one at a
time. A job whose id is in the log is not done again. The learning rate is constant after its rise,
so the model after epoch e of a long run is the model of a run of e epochs: one run gives every
epoch of the grid.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lensaudit.attacks.retraining import StartWeights, pending, retrain
from lensaudit.attacks.rtt.data import (
    LETTERS,
    MEANINGS,
    Dataset,
    Inspection,
    handled,
    inspect,
    load_mcq,
    load_statements,
    save_mcq,
    split_by_author,
)
from lensaudit.attacks.rtt.log import (
    FILE,
    Finished,
    Log,
    Point,
    Reading,
    Role,
    read_log,
    study_record,
)
from lensaudit.attacks.rtt.readout import EncodedItem, letters_of, read
from lensaudit.attacks.rtt.study import (
    RttJob,
    Study,
    TrainingGrid,
    from_checkpoint,
    job_identity,
    measuring,
    retraining,
)
from lensaudit.attacks.rtt.summary import SUMMARIES, Summarized, gate_of, summarize, write_summaries
from lensaudit.attacks.settings import (
    Cut,
    Readout,
    StudySettings,
    ValidationSettings,
)
from lensaudit.data.tofu import DEMO, TOFU_PAIRS
from lensaudit.errors import InputError, LensAuditError, PartialError, VerificationError
from lensaudit.files import alone, digest, make_folder
from lensaudit.models.causal import undo_exchange
from lensaudit.models.checkpoint import load_tokenizer, open_family, open_model, other_tokenizer
from lensaudit.models.device import resolve_device
from lensaudit.models.registry import (
    default_data,
    is_demo,
)
from lensaudit.progress import Notice, Tick
from lensaudit.results.records import claim, manifest
from lensaudit.settings import plain, results_folder
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
    studies: tuple[Study, ...]
    """One per unlearned model, of the same data; original and control are run once."""
    log: Log

    @property
    def folder(self) -> Path:
        """Folder of log and summary."""
        return self.settings.out or results_folder() / OUT


def prepare(settings: StudySettings, notice: Notice | None = None) -> PreparedStudies:
    """Open and check models, data and grid; `notice` is told what of the log does not count.

    Raises:
        InputError: whatever is wrong with names, files or numbers.
        VerificationError: the data have defects that are refused.
    """
    name = settings.data or default_data(settings.names[0])
    data = handled(data_of(name, settings.cut), settings.defects)
    made = PreparedStudies(settings, _studies(settings, data), Log())
    return replace(made, log=read_log(made.folder / FILE, notice=notice))


def run_studies(prepared: PreparedStudies, report: Tick) -> Summarized:
    """Fill the log with the jobs that it lacks, and summarise it.

    Raises:
        TryAgainError: another process runs studies into the folder.
    """
    started, settings, folder = time.monotonic(), prepared.settings, prepared.folder
    studies, data, errors = prepared.studies, prepared.studies[0].data, []
    jobs = {one.job_id for study in studies for one in plan_of(study)}
    with alone(folder):
        # what another process did since the log was read is not done again
        log = read_log(folder / FILE)
        n_known = sum(job_id in log.finished for job_id in jobs)
        claim(folder, "rtt run", SUMMARIES)
        save_mcq(data, make_folder(folder / "mcq") / f"{data.name}-{data.digest[:8]}")
        for study in studies:
            try:
                run(study, log, defects="keep", report=report)
            except (VerificationError, PartialError) as error:
                errors.append(error)
        found = summarize(log, selection=settings.selection, rule=settings.rule)
        write_summaries(found, log, folder)
        ids = [study.study_id for study in studies]
        subjects = [one for study in studies for one in study.subjects.values()]
        manifest(
            "rtt run",
            options=plain(settings, without=("names", "out")),
            inputs={
                "data": data.name,
                "data_digest": data.digest,
                "studies": ids,
                "models": {one.name: one.weights for one in subjects},
            },
            device=resolve_device(settings.device),
            started=started,
        ).write(folder, (*SUMMARIES, FILE))
    own = tuple(one for one in found if one.study.study_id in ids)
    return Summarized(own, folder, log.n_added, n_known, _worst(errors))


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
    demo = is_demo(settings.names[0])
    if settings.no_control and settings.control:
        raise InputError("--retain and --no-control exclude each other")
    never = () if settings.no_control else settings.control and (settings.control,)
    original, opened, controls = open_family(
        settings.names, settings.original, never, settings.registry
    )
    device, control = resolve_device(settings.device), next(iter(controls.values()), None)
    for one in (original, *opened.values(), *controls.values()):
        if told := other_tokenizer(one, original):
            raise InputError(f"{one.spec.name}: {told}")
        # the start weights are kept in main memory
        check_memory(one, copies=2 if device == "cpu" else 1, device=device)
    readout: Readout = settings.readout or (DEMO_READS if demo else "letter")
    other: Readout = "answer" if readout == "letter" else "letter"
    made = tuple(
        Study(
            data=data,
            tokenizer=load_tokenizer(original),
            original=from_checkpoint(original, device=device),
            unlearned=from_checkpoint(one, device=device),
            control=from_checkpoint(control, device=device) if control else None,
            sweep=TrainingGrid(
                lrs=settings.lrs or (DEMO_LRS if demo else TrainingGrid().lrs),
                n_epochs=settings.epochs,
                batch_size=settings.batch_size,
                n_warmup=settings.warmup,
                loss_on=settings.loss_on or (DEMO_READS if demo else "all"),
                weight_decay=settings.weight_decay,
                trainable=settings.trainable,
                seed=settings.cut.seed,
            ),
            readouts=(readout, other),
            eval_splits=settings.hold_out,
            n_eval_splits=settings.v_runs,
            eval_seed=settings.eval_seed,
            gate=settings.gate,
            match_readout=settings.match_readout,
        )
        for one in opened.values()
    )
    for study in made:
        plan_of(study)
    return made


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


def _worst(errors: Sequence[LensAuditError]) -> LensAuditError | None:
    """One error for all studies: a failed gate before failed runs."""
    if not errors:
        return None
    first = sorted(errors, key=lambda one: not isinstance(one, VerificationError))[0]
    more = f" (and {len(errors) - 1} more studies)" if len(errors) > 1 else ""
    return type(first)(f"{first}{more}")


Defects = Literal["refuse", "keep"]
"""Of data that have some: nothing is run, or they are taken as they are."""


def _quiet(what: str, done: int, total: int) -> None:
    """Report no progress."""


def plan_of(study: Study) -> list[RttJob]:
    """Every job of a study in the order they are done, checked before any model is loaded.

    Raises:
        InputError: the data, the letters, the splits or the grid cannot be used.
    """
    _check(study)
    return [
        job
        for what in (measuring, retraining)
        for role in study.subjects
        for job in what(study, role)
    ]


def run(
    study: Study,
    log: Log | None = None,
    *,
    defects: Defects = "refuse",
    report: Tick = _quiet,
) -> Log:
    """Fill the log with the study's jobs.

    Args:
        study: models, data and grid.
        log: from `read_log`, to resume; in memory by default.
        defects: `keep` runs on ambiguous, repeated or leaking items as upstream does; to leave
            them out, give data from `handled(data, "drop")`.
        report: called as work proceeds.

    Raises:
        InputError: something cannot be used; nothing was done.
        VerificationError: the original does not know the facts, or unlearning did not lower its
            accuracy; the measurements are in the log.
        PartialError: some runs diverged; they are in the log and not tried again.
    """
    log = Log() if log is None else log
    handled(study.data, defects)
    plan = plan_of(study)
    log.open(study_record(study, plan, inspect(study.data).counts))
    for role in study.subjects:
        _fill(study, role, measuring(study, role), log, report)
    if failure := gate_of(log.studies[study.study_id], log):
        raise VerificationError(
            f"{study.unlearned.name}: {failure}; recovery would mean nothing\n"
            "the measurements are kept; to retrain nevertheless switch the gate off"
        )
    for role in study.subjects:
        _fill(study, role, retraining(study, role), log, report)
    _complain(plan, log)
    return log


def _check(study: Study) -> None:
    sweep = study.sweep
    usable = all(math.isfinite(lr) and lr > 0 for lr in sweep.lrs)
    if not sweep.lrs or not usable or len(set(sweep.lrs)) != len(sweep.lrs):
        raise InputError(f"learning rates {sweep.lrs}: wanted one or more, above 0, each once")
    _check_numbers(study)
    if sweep.n_epochs < 1 or sweep.batch_size < 1 or study.score_batch < 1:
        raise InputError("epochs and batch sizes: wanted 1 or more")
    if not study.readouts:
        raise InputError("no readout; wanted letter, answer or both")
    if study.tokenizer.eos_token_id is None:
        raise InputError(
            "the tokenizer has no end-of-text token; set eos_token in its configuration"
        )
    _ = study.letters  # says what is wrong with it
    if small := [name for name in study.held_out if len(study.encoded[name].items) < 2]:
        raise InputError(f"split {small[0]} holds 1 item, wanted 2 or more to select by halves")


def _check_numbers(study: Study) -> None:
    """What a hash cannot hold and a comparison would let pass."""
    for name, value in {
        "weight decay": study.sweep.weight_decay,
        "gate on the original": study.gate.min_baseline,
        "gate on the drop": study.gate.min_drop,
    }.items():
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} {value:g}: wanted a number from 0")


def _fill(study: Study, role: Role, jobs: Sequence[RttJob], log: Log, report: Tick) -> None:
    """Do the jobs of one model that the log lacks."""
    left = [one for one in jobs if one.job_id not in log.finished]
    if not left:
        return
    subject = study.subjects[role]
    trains = left[0].lr is not None
    # before the model that is attacked: never two of them
    rows = study.original_readout if trains and study.puts_back(role) else None
    model = subject.load()
    _check_fits(study, model, subject.name)
    start = StartWeights(model) if trains else None
    n_epochs = study.sweep.n_epochs if trains else 1
    what = f"{left[0].condition} {subject.name}: {'epochs' if trains else 'splits'}"
    try:
        for number, job in enumerate(left):

            def tell(epoch: int, number: int = number) -> None:
                report(what, number * n_epochs + epoch, len(left) * n_epochs)

            tell(0)
            began = time.monotonic()
            if start is None:
                done = Finished(job.job_id, "ok", (_as_it_is(study, job, model),))
            else:
                start.restore(model)
                moved = rows is not None and undo_exchange(model, rows) > 0
                done = _retrain(study, job, model, log, tell, moved=moved)
            seconds = round(time.monotonic() - began, 3)
            log.add(replace(done, seconds=seconds), job.identity)
        report(what, len(left) * n_epochs, len(left) * n_epochs)
    finally:
        if start is not None:
            start.restore(model)


def _as_it_is(study: Study, job: RttJob, model: Any) -> Point:
    return Point(0, _readings(study, model, study.encoded[job.split].items))


def _retrain(
    study: Study, job: RttJob, model: Any, log: Log, tell: Callable[[int], None], *, moved: bool
) -> Finished:
    """`moved`: the model is not as it was measured, its readout was put back."""
    assert job.lr is not None
    items = study.encoded[job.split].items
    before = job_identity(study, job.identity["weights"], job.split)
    measured = log.finished[digest(before)[:16]].curve
    first = (_as_it_is(study, job, model),) if moved else measured
    made = retrain(
        model,
        study.trained_on(job.split),
        sweep=study.sweep,
        lr=job.lr,
        read_v=lambda: _readings(study, model, items),
        report=tell,
    )
    done = replace(made, job_id=job.job_id, curve=(*first, *made.curve))
    if done.status == "diverged":
        return done
    fit = _readings(study, model, study.sample_of_t(job.split))[0]
    return replace(done, t_accuracy=fit.accuracy)


def _readings(study: Study, model: Any, items: Sequence[EncodedItem]) -> tuple[Reading, ...]:
    return read(
        model,
        items,
        readouts=study.readouts,
        letters=study.letters,
        batch_size=study.score_batch,
    )


def _check_fits(study: Study, model: Any, name: str) -> None:
    """Sequences within the model's window, tokens within its vocabulary."""
    limit = getattr(model.config, "max_position_embeddings", None)
    longest = max(split.longest for split in study.encoded.values())
    if limit is not None and longest > limit:
        raise InputError(
            f"{name}: reads {limit} tokens, the longest item has {longest}; leave long items out"
        )
    d_vocab = model.get_input_embeddings().num_embeddings
    highest = max(split.highest for split in study.encoded.values())
    if highest >= d_vocab:
        raise InputError(
            f"{name}: has {d_vocab} tokens, the data need token {highest}; its tokenizer is "
            "another model's"
        )


def _complain(plan: Sequence[RttJob], log: Log) -> None:
    """Tell which runs diverged, once all work is done."""
    trained = [one for one in plan if one.lr is not None]
    lost = [one for one in trained if log.finished[one.job_id].status == "diverged"]
    if lost:
        listed = ", ".join(f"{one.condition} {one.split} lr {one.lr:g}" for one in lost[:8])
        more = f" and {len(lost) - 8} more" if len(lost) > 8 else ""
        raise PartialError(
            f"{len(lost)} of {len(trained)} runs diverged: {listed}{more}\n"
            "their epochs up to there are in the log and count; leave these learning rates out"
        )
