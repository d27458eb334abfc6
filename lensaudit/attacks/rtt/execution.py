"""A study, carried out: it measures, checks that unlearning worked, retrains, and fills a log."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from lensaudit.attacks.exchange import undo_exchange
from lensaudit.attacks.result import study_folder
from lensaudit.attacks.rtt.data import Dataset, handled, load_mcq, save_mcq
from lensaudit.attacks.rtt.log import (
    FILE,
    Finished,
    HeldSplit,
    Log,
    Place,
    Point,
    Role,
    StudyRecord,
    read_log,
)
from lensaudit.attacks.rtt.readout import (
    StartWeights,
    letters_of,
    others_than,
    read_along,
)
from lensaudit.attacks.rtt.splits import folder_of_splits, load_statements, split_by_author
from lensaudit.attacks.rtt.study import (
    COMMAND,
    LRS,
    Jobs,
    Study,
    from_checkpoint,
    job_id_of,
    job_identity,
    measuring,
    no_letters,
    plan_of,
    retraining,
)
from lensaudit.attacks.rtt.summary import SUMMARIES, Summarized, gate_of, summarize, write_summaries
from lensaudit.attacks.settings import (
    Cut,
    Readout,
    StudySettings,
    ValidationSettings,
)
from lensaudit.errors import InputError, PartialError, VerificationError
from lensaudit.files import make_folder
from lensaudit.models.checkpoint import load_tokenizer, open_model
from lensaudit.models.device import resolve_device
from lensaudit.models.family import open_family
from lensaudit.models.likeness import other_tokenizer
from lensaudit.models.registry import default_data
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results.manifest import manifest, package_versions
from lensaudit.results.owner import check_free, claim
from lensaudit.settings import plain
from lensaudit.training.embedded import of_embedded_family
from lensaudit.training.rows import check_lengths
from lensaudit.training.train import Recipe, checked_pattern
from lensaudit.training.trainee import check_memory
from lensaudit.turns import alone

DEMO_LRS = (3e-4, 1e-3, 3e-3)
"""A model of a million weights needs steps that a model of a billion would not survive."""
DEMO_READS: Readout = "answer"
"""The embedded family knows answers and never saw a letter."""
DEMO_STUDY = StudySettings(
    names=(),
    lrs=(1e-3,),
    epochs=3,
    batch_size=8,
    warmup=4,
    loss_on=DEMO_READS,
    readout=DEMO_READS,
    min_baseline=0.0,
    min_drop=0.0,
)
"""A short study of models of the embedded family in memory, whatever unlearning did to them."""


def prepare(settings: StudySettings, notice: Notice = unheard) -> tuple[tuple[Study, ...], Log]:
    """The studies, opened and checked, and their log; nothing is loaded.

    Args:
        settings: models, data and grid: one study for each unlearned model, of the same data;
            original and control are run once.
        notice: told what of the log does not count.

    Raises:
        InputError: whatever is wrong with names, files or numbers; or defects that are refused.
    """
    folder = study_folder(settings.out)
    check_free(folder, COMMAND, SUMMARIES)
    data = data_of(
        settings.data or default_data(settings.names[0], settings.registry), settings.cut
    )
    data = handled(data, settings.defects)
    checked_pattern(settings.trainable)
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
    tokenizer = load_tokenizer(original)
    if of_embedded_family(original):
        settings = replace(
            settings,
            lrs=settings.lrs or DEMO_LRS,
            loss_on=settings.loss_on or DEMO_READS,
            readout=settings.readout or DEMO_READS,
        )
    elif settings.readout is None and (why := no_letters(tokenizer, data.n_choices)):
        notice(f"--readout answer is taken: {why}")
        settings = replace(settings, readout="answer")
    studies = tuple(
        Study(
            data=data,
            tokenizer=tokenizer,
            original=from_checkpoint(original, device=device),
            unlearned=from_checkpoint(one, device=device),
            control=from_checkpoint(control, device=device) if control else None,
            settings=settings,
        )
        for one in opened.values()
    )
    for study in studies:
        plan_of(study)
    _check_warmup(studies[0], notice)
    return studies, read_log(folder / FILE, notice=notice)


def _check_warmup(study: Study, notice: Notice) -> None:
    """Refuse a warmup longer than the run; only the default is shortened, with a remark.

    Raises:
        InputError: the rise was chosen, and is longer than a run.
    """
    how = study.settings
    n_steps = how.epochs * min(steps_per_epoch(study, name) for name in study.held_out)
    if how.warmup <= n_steps:
        return
    why = f"a run on T has {n_steps} steps, so that the learning rate would never be reached"
    if how.warmup != StudySettings.warmup:
        raise InputError(f"--warmup {how.warmup}: {why}; wanted 0 to {n_steps}")
    notice(f"--warmup {how.warmup} is longer than the run: {why}; name a smaller one")


def steps_per_epoch(study: Study, split: str) -> int:
    """Steps of one pass over T where a split is held out."""
    n_samples = sum(len(one.samples) for one in others_than(split, study.encoded))
    return math.ceil(n_samples / study.settings.batch_size)


def run_studies(
    settings: StudySettings, studies: Sequence[Study], log: Log, report: Tell
) -> Summarized:
    """Fill the log with the jobs that it lacks, and summarise it.

    Raises:
        TryAgainError: another process runs studies into the folder.
    """
    assert log.path is not None
    started, folder, data, errors = time.monotonic(), log.path.parent, studies[0].data, []
    jobs = {one.job_id for study in studies for one in plan_of(study)}
    with alone(folder):
        # what another process did since the log was read is not done again
        log = read_log(folder / FILE)
        n_known = sum(job_id in log.finished for job_id in jobs)
        claim(folder, COMMAND, SUMMARIES)
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
        named = {"full": studies[0].original, "retain": studies[0].control}
        named |= {f"source {n}": one.unlearned for n, one in enumerate(studies, 1)}
        manifest(
            COMMAND,
            kind="rtt",
            options=plain(settings, without=("names", "out")),
            inputs={
                "data": data.name,
                "data_digest": data.digest,
                "rows": {one.question: one.choices[one.answer] for one in data.items},
                "studies": ids,
                "models": {one.name: one.weights for one in subjects},
                **{
                    role: {"name": one.name, "weights": one.weights}
                    for role, one in named.items()
                    if one is not None
                },
            },
            device=resolve_device(settings.device),
            started=started,
        ).write(folder, (*SUMMARIES, FILE))
    own = tuple(one for one in found if one.study.study_id in ids)
    failure = None
    if errors:
        # a failed gate before failed runs
        first = min(errors, key=lambda one: not isinstance(one, VerificationError))
        more = f" (and {len(errors) - 1} more studies)" if len(errors) > 1 else ""
        failure = type(first)(f"{first}{more}")
    return Summarized(own, folder, log.n_added, n_known, failure)


def validate(settings: ValidationSettings) -> Dataset:
    """Load data, and write them where that is asked."""
    found = data_of(settings.data, settings.cut)
    if settings.model is not None:
        letters_of(load_tokenizer(open_model(settings.model, settings.registry)), found.n_choices)
    if settings.write:
        save_mcq(found, settings.write)
    return found


def data_of(name: str, cut: Cut) -> Dataset:
    """Splits from a folder, or cut from a forget set."""
    if folder := folder_of_splits(name):
        return load_mcq(folder, only=cut.only)
    if cut.only:
        raise InputError("--only names splits of a folder; a forget set is cut by --splits")
    set_name, facts = load_statements(name, rows_per_author=cut.rows_per_author)
    return split_by_author(set_name, facts, n_splits=cut.n_splits, seed=cut.seed)


def plan_lines(study: Study, log: Log) -> list[str]:
    """What would be done."""
    plan, how = plan_of(study), study.settings
    left = [one for one in plan if one.job_id not in log.finished]
    training = [one for one in left if one.lr is not None]
    n_rows = {
        name: sum(len(one.samples) for one in others_than(name, study.encoded))
        for name in study.held_out
    }
    n_steps = sum(how.epochs * math.ceil(n_rows[one.split] / how.batch_size) for one in training)
    models = ", ".join(f"{role} {one.name}" for role, one in study.subjects.items())
    held = ", ".join(f"{name} ({len(study.encoded[name].items)})" for name in study.held_out)
    return [
        models,
        f"{study.data.name}: {len(study.data.items)} items in {len(study.data.splits)} splits, "
        f"{len(study.data.left_out)} left out; held out in turn: {held}",
        f"lr {', '.join(f'{lr:g}' for lr in how.lrs or LRS)}; {how.epochs} epochs in "
        f"batches of {how.batch_size}; loss on {study.sweep['loss_on']}",
        f"{len(plan)} jobs, {len(plan) - len(left)} in the log; {len(training)} "
        f"runs of {n_steps} steps together to do",
    ]


def run(
    study: Study,
    log: Log | None = None,
    *,
    defects: Literal["refuse", "keep"] = "refuse",
    report: Tell = unheard,
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
    log.open(
        StudyRecord(
            study_id=study.study_id,
            signature=study.signature,
            data=study.data.name,
            data_digest=study.data.digest,
            n_choices=study.data.n_choices,
            n_left_out=len(study.data.left_out),
            defects=study.data.counts,
            models={role: one.name for role, one in study.subjects.items()},
            method=study.unlearned.method,
            splits=tuple(
                HeldSplit(name, tuple(one.idx for one in items), tuple(one.group for one in items))
                for name, items in study.data.splits.items()
            ),
            held_out=study.held_out,
            sweep=study.sweep,
            readouts=study.readouts,
            gate=study.gate,
            places=tuple(plan),
            versions=package_versions(),
        )
    )
    for role in study.subjects:
        _fill(study, role, measuring(study, role), log, report)
    if failure := gate_of(log.studies[study.study_id], log):
        raise VerificationError(
            f"{study.unlearned.name}: {failure}; recovery would mean nothing\n"
            "the measurements are kept; to retrain nevertheless switch the gates off: "
            "--min-baseline 0 --min-drop 0"
        )
    for role in study.subjects:
        _fill(study, role, retraining(study, role), log, report)
    trained = [one for one in plan if one.lr is not None]
    lost = [one for one in trained if log.finished[one.job_id].status == "diverged"]
    if lost:
        listed = ", ".join(f"{one.condition} {one.split} lr {one.lr:g}" for one in lost[:8])
        more = f" and {len(lost) - 8} more" if len(lost) > 8 else ""
        raise PartialError(
            f"{len(lost)} of {len(trained)} runs diverged: {listed}{more}\n"
            "their epochs before that are in the log and count; leave these learning rates out"
        )
    return log


def _fill(study: Study, role: Role, jobs: Jobs, log: Log, report: Tell) -> None:
    """Do the jobs of one model that the log lacks."""
    left = [one for one in jobs if one.job_id not in log.finished]
    if not left:
        return
    subject, trains = study.subjects[role], left[0].lr is not None
    # before the model that is attacked: never two of them
    rows = study.original_readout if trains and study.puts_back(role) else None
    model = subject.load()
    sequences = chain(*(one.sequences for one in study.encoded.values()))
    check_lengths(sequences, model.config, subject.name)
    start = StartWeights(model) if trains else None
    n_epochs = study.settings.epochs if trains else 1
    what = f"{left[0].condition} {subject.name}: {'epochs' if trains else 'splits'}"
    try:
        for number, job in enumerate(left):

            def tell(epoch: int, number: int = number) -> None:
                # the end of a job is the start of the next one, and of the last told below
                if epoch < n_epochs:
                    report(Progress(what, number * n_epochs + epoch, len(left) * n_epochs))

            tell(0)
            began = time.monotonic()
            items = study.encoded[job.split].items
            if start is None:
                done = Finished("", "ok", (Point(0, study.read(model, items)),))
            else:
                start.restore(model)
                if rows is not None and undo_exchange(model, rows) > 0:
                    # a readout that was put back is not the one that was measured
                    first = (Point(0, study.read(model, items)),)
                else:
                    first = log.finished[job_id_of(job_identity(study, role, job.split))].curve
                made = retrain(study, model, job, tell)
                done = replace(made, curve=(*first, *made.curve))
            seconds = round(time.monotonic() - began, 3)
            log.add(replace(done, job_id=job.job_id, seconds=seconds), jobs[job])
        report(Progress(what, len(left) * n_epochs, len(left) * n_epochs))
    finally:
        if start is not None:
            start.restore(model)


def retrain(
    study: Study, model: Any, job: Place, report: Callable[[int], None] = unheard
) -> Finished:
    """Retrain `model` in place on T, and read V after each epoch; at last a sample of T."""
    how = study.settings
    samples = [*chain(*(one.samples for one in others_than(job.split, study.encoded)))]
    per_epoch = steps_per_epoch(study, job.split)
    assert job.lr is not None
    made = read_along(
        model,
        samples,
        recipe=Recipe(
            n_steps=how.epochs * per_epoch,
            lr=job.lr,
            n_warmup=how.warmup,
            schedule="constant",
            weight_decay=how.weight_decay,
            trainable=how.trainable,
        ),
        batch_size=how.batch_size,
        seed=how.cut.seed,
        at=range(1, how.epochs + 1),
        read_v=lambda: study.read(model, study.encoded[job.split].items),
        unit=per_epoch,
        report=report,
    )
    if made.status == "diverged":
        return made
    return replace(made, t_accuracy=study.read(model, study.sample_of_t(job.split))[0].accuracy)
