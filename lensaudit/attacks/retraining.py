"""One retraining of a model, read along the way: the loop of `rtt` and `effort`.

Models are held one at a time. A job whose id is in the log is not done again. The learning rate is
constant after its rise, so the model after step s of a long run is that of a run of s steps.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar

import torch

from lensaudit.attacks.effort.arms import TrainingFold
from lensaudit.attacks.rtt.log import Finished, Log, Point, Reading
from lensaudit.attacks.rtt.readout import EncodedItem, read
from lensaudit.attacks.rtt.study import RttJob, TrainingGrid
from lensaudit.data.spans import Encoded, buckets, make_batch
from lensaudit.errors import WorkError
from lensaudit.files import digest
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.device import free_bytes
from lensaudit.models.sizes import n_parameters, sizes_on_disk
from lensaudit.progress import Tick
from lensaudit.unlearn.rows import Sample, TrainBatch, finetune_batches, in_epochs
from lensaudit.unlearn.train import FineTuning, Recipe, TrainingRun, TrainingStep, train
from lensaudit.unlearn.trainee import adapted, training_bytes

AnyJob = TypeVar("AnyJob", RttJob, "EffortJob")


def pending(jobs: Sequence[AnyJob], log: Log) -> list[AnyJob]:
    """Those that the log lacks, each once."""
    left = {one.job_id: one for one in reversed(jobs)}
    return [one for one in reversed(left.values()) if one.job_id not in log.finished]


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
) -> Finished:
    """Train `model` in place on `samples` and read V after each epoch, from the first on.

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
    curve = tuple(replace(one, epoch=one.epoch // per_epoch) for one in made.curve)
    return replace(made, curve=curve)


def read_along(
    model: Any,
    batches: Callable[[int], TrainBatch],
    *,
    recipe: Recipe,
    seed: int,
    at: Collection[int],
    read_v: Callable[[], tuple[Reading, ...]],
    report: Callable[[int], None] = lambda step: None,
) -> Finished:
    """Train `model` in place and read V after the steps `at`, which points count.

    A run that diverges ends with the points before.
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
            return Finished("", "diverged", tuple(points), reason=failure)
        finally:
            model.eval()
    return Finished("", "ok", tuple(points))


SCHEMA = 1
"""Of an attack's identity: raised when equal settings would give other numbers."""
SCORE_BATCH = 64
"""Sequences per forward pass of a reading; changes rounding only."""
BATCHES = 3
"""A training step is three forward passes' arithmetic; two where weights are frozen, because
their gradients are not taken (Kaplan et al. 2020, arXiv:2001.08361, section 2.1)."""


@dataclass(frozen=True, order=True)
class TrainingRate:
    """What the attacker may turn: the learning rate, and the rank of what is trained."""

    lr: float
    rank: int = 0
    """Of the adapter; 0: all weights."""


@dataclass(frozen=True)
class EffortJob:
    """One run; equal attacks give equal curves."""

    model: Checkpoint
    fold: TrainingFold
    rate: TrainingRate
    n_steps: int
    batch_size: int
    seed: int
    dtype: str
    device: str

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this attack from others."""
        return {
            "schema": SCHEMA,
            "weights": self.model.weights,
            **self.fold.identity,
            "lr": self.rate.lr,
            "rank": self.rate.rank,
            "n_steps": self.n_steps,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "dtype": self.dtype,
            "optimizer": "adamw",
        }

    @cached_property
    def job_id(self) -> str:
        """Content hash of the job."""
        return digest(self.identity)[:16]


def grid(n_steps: int) -> tuple[int, ...]:
    """Steps after which the facts are read.

    >>> grid(6), grid(8)
    ((0, 1, 2, 4, 6), (0, 1, 2, 4, 8))
    """
    powers = (2**power for power in range(n_steps.bit_length()))
    return tuple(dict.fromkeys((0, *(one for one in powers if one <= n_steps), n_steps)))


def tokens_at(attack: EffortJob) -> tuple[int, ...]:
    """Tokens trained on by each step of the grid; padding is none."""
    samples = attack.fold.samples
    rows = in_epochs(len(samples), batch_size=attack.batch_size, seed=attack.seed)
    steps = (sum(len(samples[one].ids) for one in rows(step)) for step in range(attack.n_steps))
    total = (0, *accumulate(steps))
    return tuple(total[one] for one in grid(attack.n_steps))


def flop_per_token(model: Checkpoint, *, frozen: bool) -> int:
    """Arithmetic of training on one token; attention's scores and the adapter are not counted."""
    sizes = sizes_on_disk(model, "float32")
    forward = sizes.per_token_flop + 2 * sizes.d_model * sizes.d_vocab
    return forward * (BATCHES - 1 if frozen else BATCHES)


def do(attack: EffortJob, report: Callable[[int], None] = lambda step: None) -> Finished:
    """Run one attack. The facts are read before it, and after the steps of the grid."""
    began = time.monotonic()
    model, start = _loaded(attack)
    start.restore(model)
    rank = attack.rate.rank
    adapter = adapted(model, rank=rank, seed=attack.seed).eval() if rank else None

    def read_v() -> tuple[Reading, ...]:
        return (read_facts(model, attack.fold.facts),)

    try:
        first = Point(0, read_v())
        made = read_along(
            model,
            finetune_batches(
                attack.fold.samples, batch_size=attack.batch_size, seed=attack.seed, pad=0
            ),
            recipe=Recipe(
                n_steps=attack.n_steps,
                lr=attack.rate.lr,
                schedule="constant",
                weight_decay=0.0,
                trainable=r"lora_" if rank else "",
            ),
            seed=attack.seed,
            at=grid(attack.n_steps)[1:],
            read_v=read_v,
            report=report,
        )
    finally:
        if adapter is not None:
            adapter.unload()
            model.requires_grad_(True)
    seconds = round(time.monotonic() - began, 3)
    return replace(made, job_id=attack.job_id, curve=(first, *made.curve), seconds=seconds)


def read_facts(model: Any, facts: Sequence[Encoded] | Sequence[EncodedItem]) -> Reading:
    """Which facts a model in eval mode answers rightly; see `Readout`.

    Raises:
        WorkError: a score is not finite.
    """
    items = [one for one in facts if isinstance(one, EncodedItem)]
    if items:
        return read(model, items, readouts=("answer",), letters=None, batch_size=SCORE_BATCH)[0]
    place = {one.idx: number for number, one in enumerate(facts) if isinstance(one, Encoded)}
    spans = [one for one in facts if isinstance(one, Encoded)]
    right: list[int] = []
    with torch.no_grad():
        for part in buckets(spans, SCORE_BATCH):
            batch = make_batch(part).to(model.device)
            logits = model(input_ids=batch.tokens).logits
            if not logits[batch.predict_at].isfinite().all():
                raise WorkError("the scores of the model are not finite")
            # the logits at a position are about the token one right of it
            hit = logits[:, :-1].argmax(-1) == batch.tokens[:, 1:]
            said = (hit | ~batch.predict_at[:, :-1]).all(1)
            right += [place[idx] for idx, one in zip(batch.idx, said.tolist(), strict=True) if one]
    return Reading("said", len(spans), tuple(sorted(right)))


_START: dict[tuple[str, str, str], tuple[Any, StartWeights]] = {}
"""The model that attacks start from, by content, dtype and device; one at a time."""


def _loaded(job: EffortJob) -> tuple[Any, StartWeights]:
    key = (job.model.weights, job.dtype, job.device)
    if key not in _START:
        _START.clear()
        model = load_causal(job.model, dtype=getattr(torch, job.dtype), device=job.device)
        _START[key] = model, StartWeights(model)
    return _START[key]


def fitting_workers(model: Checkpoint, device: str) -> int:
    """Processes that this machine has cores and memory for; one on an accelerator."""
    if device != "cpu":
        return 1
    # weights, gradients and moments, and the start weights beside them
    needed = training_bytes(n_parameters(model.folder), copies=2)
    free = free_bytes(device)
    fitting = 1 if free is None else max(1, free // (2 * needed))
    # what this process may use, where the system tells; else what there is
    cores = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    return min(len(cores), fitting)


def fill(
    log: Log,
    attacks: Sequence[EffortJob],
    *,
    workers: int,
    report: Tick,
) -> None:
    """Do the attacks that the log lacks, each once; a kill loses those that are running."""
    # one model after the other: each is loaded once
    left = sorted(pending(attacks, log), key=lambda one: one.model.weights)
    for attack, done in _done(left, workers, report):
        log.add(done, attack.identity)


def _done(
    attacks: Sequence[EffortJob], workers: int, report: Tick
) -> Iterator[tuple[EffortJob, Finished]]:
    workers = min(workers, len(attacks))
    if workers < 2:
        for number, attack in enumerate(attacks):
            before = number * attack.n_steps
            total = len(attacks) * attack.n_steps

            def tell(step: int, before: int = before, total: int = total) -> None:
                report("attack steps", before + step, total)

            yield attack, do(attack, tell)
        _START.clear()
        return
    with pool_of(workers) as pool:
        futures = {pool.submit(do, attack): attack for attack in attacks}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                report("attacks", number, len(attacks))
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def pool_of(workers: int) -> ProcessPoolExecutor:
    """Processes that end with this one, however it ends."""
    # forked by a server without threads, as the sweep's workers are
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return ProcessPoolExecutor(workers, context, _begin)


def _begin() -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """An attack whose result nobody takes is given up: the log has no line of it."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)
