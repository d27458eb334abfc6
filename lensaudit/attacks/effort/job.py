"""One attack as a job: trained once, read on a grid of steps, in processes side by side."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from lensaudit.attacks.rtt.log import Finished, Log, Point, Reading
from lensaudit.attacks.rtt.readout import EncodedSplit, StartWeights, read, read_along
from lensaudit.attacks.settings import EffortSettings, FactReadout
from lensaudit.kinds.effort import TrainingRate
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.memory import free_bytes
from lensaudit.orphans import n_cores, when_orphaned
from lensaudit.progress import Progress, Tell, unheard
from lensaudit.text import digest
from lensaudit.training.train import Recipe
from lensaudit.training.trainee import (
    adapted,
    n_parameters,
    training_bytes,
)

FILE = "attacks.jsonl"


SCHEMA = 1
"""Of an attack's identity: raised when equal settings would give other numbers."""
SCORE_BATCH = 64
"""Sequences per forward pass of a reading; changes rounding only."""
BATCHES = 3
"""A training step is three forward passes' arithmetic; two where weights are frozen, because
their gradients are not taken (Kaplan et al. 2020, arXiv:2001.08361, section 2.1)."""


@dataclass(frozen=True)
class EffortJob:
    """One training run of an attack; equal jobs give equal curves."""

    model: Checkpoint
    fold: EncodedSplit
    readout: FactReadout
    rate: TrainingRate
    settings: EffortSettings
    dtype: str
    device: str

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this attack from others."""
        return {
            "schema": SCHEMA,
            "weights": self.model.weights,
            "trained": self.fold.trained_digest,
            "v": self.fold.scored_digest,
            "lr": self.rate.lr,
            "rank": self.rate.rank,
            "n_steps": self.settings.steps,
            "batch_size": self.settings.rows,
            "seed": self.settings.seed,
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


def do(attack: EffortJob, report: Callable[[int], None] = unheard) -> Finished:
    """Run one attack. The facts are read before it, and after the steps of the grid."""
    began = time.monotonic()
    model, start = _loaded(attack)
    start.restore(model)
    how, rank = attack.settings, attack.rate.rank
    adapter = adapted(model, rank=rank, seed=how.seed).eval() if rank else None

    def read_v() -> tuple[Reading, ...]:
        return read(model, attack.fold.items, readouts=(attack.readout,), batch_size=SCORE_BATCH)

    try:
        first = Point(0, read_v())
        made = read_along(
            model,
            attack.fold.samples,
            recipe=Recipe(
                n_steps=how.steps,
                lr=attack.rate.lr,
                schedule="constant",
                weight_decay=0.0,
                trainable=r"lora_" if rank else "",
            ),
            batch_size=how.rows,
            seed=how.seed,
            at=grid(how.steps)[1:],
            read_v=read_v,
            report=report,
        )
    finally:
        if adapter is not None:
            adapter.unload()
            model.requires_grad_(True)
    seconds = round(time.monotonic() - began, 3)
    return replace(made, job_id=attack.job_id, curve=(first, *made.curve), seconds=seconds)


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
    return min(n_cores(), fitting)


def fill(log: Log, attacks: Sequence[EffortJob], *, workers: int, report: Tell) -> None:
    """Do the attacks that the log lacks, each once; a kill loses those that are running."""
    left = {one.job_id: one for one in attacks if one.job_id not in log.finished}
    # one model after the other: each is loaded once
    jobs = sorted(left.values(), key=lambda one: one.model.weights)
    for attack, done in _done(jobs, min(workers, len(jobs)), report):
        log.add(done, attack.identity)


def _done(
    attacks: Sequence[EffortJob], workers: int, report: Tell
) -> Iterator[tuple[EffortJob, Finished]]:
    if workers < 2:
        for number, attack in enumerate(attacks):
            n_steps = attack.settings.steps
            before, total = number * n_steps, len(attacks) * n_steps

            def tell(step: int, before: int = before, total: int = total) -> None:
                report(Progress("attack steps", before + step, total))

            yield attack, do(attack, tell)
        _START.clear()
        return
    with pool_of(workers) as pool:
        futures = {pool.submit(do, attack): attack for attack in attacks}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                report(Progress("attacks", number, len(attacks)))
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
    # an attack whose result nobody takes is given up: the log has no line of it
    when_orphaned(lambda: os._exit(1))
