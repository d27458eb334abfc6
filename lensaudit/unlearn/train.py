"""How is a model trained here? One loop for the family, for unlearning and for attacks.

A plain loop and not transformers' `Trainer`: a batch is a pure function of its number, so that a
resumed run is bit-identical without replaying a data loader, and one step on a model of a million
weights costs no more than its two passes.
"""

import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from lensaudit.errors import InputError, WorkError
from lensaudit.files import digest
from lensaudit.unlearn.losses import Loss
from lensaudit.unlearn.state import TrainState, load_state, save_state

B = TypeVar("B")
B_contra = TypeVar("B_contra", contravariant=True)


@dataclass(frozen=True)
class Recipe:
    """How long and how fast; with the data and the start weights it determines the result."""

    n_steps: int
    """Optimiser steps."""
    lr: float
    """Peak learning rate."""
    n_warmup: int = 0
    """Steps of linear rise."""
    schedule: Literal["linear", "constant"] = "linear"
    """What follows the rise: a straight line to 0, or the peak."""
    n_accumulate: int = 1
    """Batches whose gradients are averaged into one step."""
    weight_decay: float = 0.01
    """open-unlearning's TOFU setting."""
    max_grad_norm: float = 1.0
    """The transformers default."""
    betas: tuple[float, float] = (0.9, 0.999)
    trainable: str = ""
    """Regular expression on parameter names; the others keep their bits. Empty: all."""

    def lr_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        if step < self.n_warmup:
            return self.lr * (step + 1) / self.n_warmup
        if self.schedule == "constant":
            return self.lr
        return self.lr * (self.n_steps - step) / max(1, self.n_steps - self.n_warmup)


@dataclass(frozen=True)
class Terms:
    """One evaluation of an objective."""

    total: Loss
    retain: float = math.nan
    """The retain term, where there is one: what a dual variable follows."""


@runtime_checkable
class Objective(Protocol[B_contra]):
    """What is minimised; `multiplier` is the one number that an objective may carry along."""

    @property
    def first_multiplier(self) -> float:
        """The multiplier of the first step."""
        ...

    def __call__(self, model: PreTrainedModel, batch: B_contra, multiplier: float) -> Terms:
        """The loss of one batch."""
        ...

    def next_multiplier(self, multiplier: float, retain: float, step: int) -> float:
        """The multiplier after `step`, from the step's mean retain term."""
        ...


@dataclass(frozen=True)
class Progress:
    """One finished step."""

    step: int
    n_steps: int
    loss: float
    grad_norm: float
    seconds: float


@dataclass(frozen=True)
class Run(Generic[B]):
    """Everything that one training run is made of."""

    objective: Objective[B]
    batch: Callable[[int], B]
    """Batch number -> batch: a pure function, which is what makes a resumed run identical."""
    recipe: Recipe
    identity: dict[str, Any]
    """Plain JSON that tells this run from others: hashes of start weights and data, method."""
    checkpoints: Path | None = None
    """Folder of the resumable state; None keeps none."""
    save_every: int = 50
    autocast: bool = False
    """Forward passes in bfloat16; weights, gradients and moments stay as they are."""

    @property
    def key(self) -> str:
        """Content hash of the settings; a state made under another key is refused."""
        return digest({"recipe": asdict(self.recipe), "identity": self.identity})


def train(
    model: PreTrainedModel, run: Run[B], *, report: Callable[[Progress], None] = lambda _: None
) -> tuple[float, ...]:
    """Train `model` in place, from the last saved state where there is one; the losses by step.

    Raises:
        InputError: the state in the folder was made with other settings.
        WorkError: a loss or gradient is not finite; the last saved state stays as it is.
    """
    names = trained_names(model, run.recipe)
    parameters = {name: one for name, one in model.named_parameters() if name in names}
    optimizer = torch.optim.AdamW(
        parameters.values(), betas=run.recipe.betas, weight_decay=run.recipe.weight_decay
    )
    state = TrainState(step=0, multiplier=run.objective.first_multiplier)
    if run.checkpoints is not None:
        state = load_state(run.checkpoints, run.key, parameters, optimizer) or state
    model.train()
    started = time.monotonic()
    for step in range(state.step, run.recipe.n_steps):
        loss, norm, multiplier = _step(model, run, parameters, optimizer, step, state.multiplier)
        state = TrainState(step + 1, multiplier, (*state.losses, loss))
        if run.checkpoints is not None and (step + 1) % run.save_every == 0:
            save_state(run.checkpoints, run.key, state, parameters, optimizer)
        elapsed = time.monotonic() - started
        report(Progress(step + 1, run.recipe.n_steps, loss, norm, elapsed))
    model.eval()
    return state.losses


def trained_names(model: PreTrainedModel, recipe: Recipe) -> set[str]:
    """The parameters that move: of those that are not frozen, what the expression finds.

    Raises:
        InputError: the expression names none, or is none.
    """
    every = [name for name, one in model.named_parameters() if one.requires_grad]
    try:
        names = {name for name in every if re.search(recipe.trainable, name)}
    except re.error as error:
        raise InputError(f"{recipe.trainable!r} is not a regular expression: {error}") from error
    if not names:
        raise InputError(f"no parameter matches {recipe.trainable!r}; names look like {every[1]!r}")
    return names


def _step(
    model: PreTrainedModel,
    run: Run[B],
    parameters: dict[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    step: int,
    multiplier: float,
) -> tuple[float, float, float]:
    """One optimiser step: its mean loss, its gradient norm and the next multiplier."""
    n = run.recipe.n_accumulate
    loss = retain = 0.0
    for number in range(step * n, (step + 1) * n):
        with torch.autocast(model.device.type, torch.bfloat16, enabled=run.autocast):
            terms = run.objective(model, run.batch(number), multiplier)
        torch.autograd.backward(terms.total / n, inputs=list(parameters.values()))
        loss += terms.total.item() / n
        retain += terms.retain / n
    norm = clip_grad_norm_(parameters.values(), run.recipe.max_grad_norm).item()
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise WorkError(_diverged(run, step, loss))
    for group in optimizer.param_groups:
        group["lr"] = run.recipe.lr_at(step)
    optimizer.step()
    optimizer.zero_grad()
    return loss, norm, run.objective.next_multiplier(multiplier, retain, step)


def _diverged(run: Run[B], step: int, loss: float) -> str:
    saved = step // run.save_every * run.save_every
    what = "loss" if not math.isfinite(loss) else "gradient"
    kept = "nothing was saved yet"
    if run.checkpoints is not None and saved:
        kept = f"the state after step {saved} is kept in {run.checkpoints}"
    return (
        f"the {what} is not finite at step {step + 1} of {run.recipe.n_steps} "
        f"(learning rate {run.recipe.lr_at(step):.3g}); {kept}; lower --lr and name a new --out"
    )
