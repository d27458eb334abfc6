"""One retraining on T: fine-tune, and read V after every epoch.

The learning rate is constant after its rise, so the model after epoch e of a long run is the model
of a run of e epochs: one run gives every epoch of the grid.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lensaudit.attacks.rtt.encode import LossOn
from lensaudit.attacks.rtt.readings import Point, Reading
from lensaudit.attacks.rtt.settings import StudySettings
from lensaudit.errors import WorkError
from lensaudit.unlearn.rows import Sample, TrainBatch, finetune_batches
from lensaudit.unlearn.train import FineTuning, Recipe, TrainingRun, TrainingStep, train


@dataclass(frozen=True)
class Sweep:
    """What is tried in each run on T.

    The learning rates are for float32 master weights and AdamW; upstream's 1e-7 to 3.2e-6 belong
    to Lion on half-precision weights, most of which such steps do not move (`rtt.md` section 5).
    """

    lrs: tuple[float, ...] = (2e-6, 5e-6, 1e-5, 2e-5, 5e-5)
    n_epochs: int = StudySettings.epochs
    batch_size: int = StudySettings.batch_size
    n_warmup: int = StudySettings.warmup
    """Steps of linear rise."""
    loss_on: LossOn = "all"
    weight_decay: float = StudySettings.weight_decay
    max_grad_norm: float = 1.0
    trainable: str = ""
    """Regular expression on parameter names; empty: all."""
    seed: int = 0
    """Of the data order."""

    def n_steps(self, n_samples: int) -> int:
        """Optimiser steps of one epoch."""
        return math.ceil(n_samples / self.batch_size)

    def recipe(self, lr: float, n_samples: int) -> Recipe:
        """The training run of one learning rate."""
        return Recipe(
            n_steps=self.n_epochs * self.n_steps(n_samples),
            lr=lr,
            n_warmup=self.n_warmup,
            schedule="constant",
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm,
            trainable=self.trainable,
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
    sweep: Sweep,
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
