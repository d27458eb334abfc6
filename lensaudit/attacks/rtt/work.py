"""Do the work of a study: measure, check that unlearning worked, retrain, write down.

Models are held one at a time. A job whose id is in the log is not done again. The learning rate is
constant after its rise, so the model after epoch e of a long run is the model of a run of e epochs:
one run gives every epoch of the grid.
"""

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from lensaudit.attacks.rtt.defects import handled, inspect
from lensaudit.attacks.rtt.log import Finished, Log, Point, Reading, Role, study_record
from lensaudit.attacks.rtt.readout import EncodedItem, read
from lensaudit.attacks.rtt.study import (
    RttJob,
    Study,
    TrainingGrid,
    job_identity,
    measuring,
    retraining,
)
from lensaudit.attacks.rtt.summary import gate_of
from lensaudit.errors import InputError, PartialError, VerificationError, WorkError
from lensaudit.files import digest
from lensaudit.models.causal import undo_exchange
from lensaudit.progress import Tick
from lensaudit.unlearn.rows import Sample, TrainBatch, finetune_batches
from lensaudit.unlearn.train import FineTuning, Recipe, TrainingRun, TrainingStep, train

Defects = Literal["refuse", "keep"]
"""What is done, how much of it, of how much."""


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


def pending(jobs: Sequence[RttJob], log: Log) -> list[RttJob]:
    """Those that the log lacks, each once."""
    left = {one.job_id: one for one in reversed(jobs)}
    return [one for one in reversed(left.values()) if one.job_id not in log.finished]


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
    curve = (*first, *made.points)
    if made.failure:
        return Finished(job.job_id, "diverged", curve, reason=made.failure)
    fit = _readings(study, model, study.sample_of_t(job.split))[0]
    return Finished(job.job_id, "ok", curve, t_accuracy=fit.accuracy)


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


@dataclass(frozen=True)
class Retrained:
    """A finished run, or what there is of one that diverged."""

    points: tuple[Point, ...]
    """From epoch 1."""
    failure: str = ""


class StartWeights:
    """The weights that every run of a sweep begins with, kept once, in main memory."""

    def __init__(self, model: Any) -> None:
        tensors = (*model.named_parameters(), *model.named_buffers())
        self._kept = {name: one.detach().to("cpu", copy=True) for name, one in tensors}

    def restore(self, model: Any) -> None:
        """Put them back, bit for bit, and let go of gradients that a diverged run left behind."""
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.copy_(self._kept[name])


def retrain(
    model: Any,
    samples: Sequence[Sample],
    *,
    sweep: TrainingGrid,
    lr: float,
    read_v: Callable[[], tuple[Reading, ...]],
    report: Callable[[int], None] = lambda epoch: None,
) -> Retrained:
    """Train `model` in place on `samples` and read V after each epoch.

    A run that diverges is a result: it ends with the epochs before, and says at which step.
    """
    per_epoch = sweep.n_steps(len(samples))
    made = read_along(
        model,
        finetune_batches(samples, batch_size=sweep.batch_size, seed=sweep.seed, pad=0),
        recipe=sweep.recipe(lr, len(samples)),
        seed=sweep.seed,
        at=range(per_epoch, sweep.n_epochs * per_epoch + 1, per_epoch),
        read_v=read_v,
        report=lambda step: report(step // per_epoch) if step % per_epoch == 0 else None,
    )
    points = tuple(replace(one, epoch=one.epoch // per_epoch) for one in made.points)
    return replace(made, points=points)


def read_along(
    model: Any,
    batches: Callable[[int], TrainBatch],
    *,
    recipe: Recipe,
    seed: int,
    at: Collection[int],
    read_v: Callable[[], tuple[Reading, ...]],
    report: Callable[[int], None] = lambda step: None,
) -> Retrained:
    """Train `model` in place and read V after the steps `at`; points count steps.

    With a constant rate the model after step s of a long run is that of a run of s steps.
    """
    points: list[Point] = []
    losses: list[float] = []
    last = 0

    def after(step: TrainingStep) -> None:
        nonlocal last
        losses.append(step.loss)
        if step.step in at:
            model.eval()
            mean = sum(losses[last:]) / (step.step - last)
            points.append(Point(step.step, read_v(), mean))
            last = step.step
            model.train()
        report(step.step)

    run = TrainingRun(
        FineTuning(), lambda number: batches(number).to(model.device), recipe, identity={}
    )
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)  # models with dropout draw from the global stream
        try:
            train(model, run, report=after)
        except WorkError:
            failure = f"not finite after {len(losses)} of {recipe.n_steps} steps"
            return Retrained(tuple(points), failure)
        finally:
            model.eval()
    return Retrained(tuple(points))
