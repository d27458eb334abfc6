"""How is a model trained here? One loop for the family, for unlearning and for attacks.

A plain loop and not transformers' `Trainer`: a batch is a pure function of its number, so that a
resumed run is bit-identical without replaying a data loader, and one step on a model of a million
weights costs no more than its two passes.
"""

import math
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from lensaudit.errors import InputError, LensAuditError, WorkError
from lensaudit.files import make_folder, os_error, remove_files, sync_folder
from lensaudit.partials import is_partial
from lensaudit.results.keyed import keyed_document, write_keyed
from lensaudit.results.manifest import mark_of
from lensaudit.text import digest
from lensaudit.training.losses import Loss, mean_nll
from lensaudit.training.rows import TrainBatch, generator
from lensaudit.types import Logits

B = TypeVar("B")


@dataclass(frozen=True)
class Recipe:
    """How long and how fast; with the data and the start weights it determines the result.

    Two details are not those of transformers' `Trainer`, on which open-unlearning runs: norms and
    biases decay too, and the rise starts one step on, as a first step at rate 0 would move nothing.
    """

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
    """An evaluation of an objective."""

    total: Loss
    retain: float = math.nan
    """The retain term, where there is one: what a dual variable follows."""


class Objective(ABC, Generic[B]):
    """What is minimised; a multiplier is the one number that an objective may carry along."""

    first_multiplier: float = 0.0

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

    @abstractmethod
    def __call__(self, model: "transformers.PreTrainedModel", batch: B, multiplier: float) -> Terms:
        """The loss of one batch."""

    def next_multiplier(self, multiplier: float, retain: float, step: int) -> float:
        """The multiplier after `step`, from the step's mean retain term."""
        return multiplier


@dataclass(frozen=True)
class TrainingStep:
    """The numbers of a training run after one of its steps."""

    step: int
    """Finished optimiser steps."""
    n_steps: int
    multiplier: float
    losses: tuple[float, ...] = ()
    """One per finished step."""
    grad_norm: float = math.nan
    seconds: float = 0.0
    """Since the run was begun or taken up again."""

    @property
    def loss(self) -> float:
        """Loss of the step."""
        return self.losses[-1]


@dataclass(frozen=True)
class TrainingRun(Generic[B]):
    """Everything that one training run is made of."""

    objective: Objective[B]
    batch: Callable[[int], B]
    """Batch number -> batch: a pure function, which is what makes a resumed run identical."""
    recipe: Recipe
    identity: dict[str, Any]
    """Plain JSON that tells this run from others: hashes of start weights and data, method."""
    checkpoints: Path | None = None
    """Folder of the resumable state; None keeps none."""
    save_every: int | None = None
    """Steps from one state to the next; None: as often as writing takes 1/20 of the time."""
    autocast: bool = False
    """Forward passes in bfloat16; weights, gradients and moments stay as they are."""
    seed: int = 0
    """What a model with dropout drops follows from it and the number of the batch."""

    @property
    def key(self) -> str:
        """Content hash of the settings; a state made under another key is refused."""
        return digest({"recipe": asdict(self.recipe), "identity": self.identity})


def n_steps_of(n_samples: int, *, n_epochs: float, batch_size: int, n_accumulate: int) -> int:
    """Optimiser steps of so many passes over the samples; at least one.

    Batches left over by a pass join those of the next, and steps are rounded up once. transformers'
    `Trainer` rounds in each pass: 4.45 down, 5 up.

    >>> n_steps_of(367, n_epochs=10.0, batch_size=8, n_accumulate=4)
    115

    Raises:
        InputError: that many passes cannot be counted.
    """
    n_batches = n_epochs * math.ceil(n_samples / batch_size)
    if not math.isfinite(n_batches):
        raise InputError(
            f"{n_epochs:g} epochs of {n_samples} rows: wanted a finite number of passes"
        )
    return max(1, math.ceil(n_batches / n_accumulate))


def train(
    model: "transformers.PreTrainedModel",
    run: TrainingRun[B],
    *,
    report: Callable[[TrainingStep], None] = lambda _: None,
) -> tuple[float, ...]:
    """Train `model` in place, from the last saved state where there is one; the losses by step.

    Raises:
        InputError: the state in the folder was made with other settings, or the loss reaches no
            parameter that is to move.
        WorkError: a loss or gradient is not finite; the last saved state stays as it is.
    """
    parameters = trained_parameters(model, run.recipe)
    optimizer = torch.optim.AdamW(
        parameters.values(), betas=run.recipe.betas, weight_decay=run.recipe.weight_decay
    )
    n_steps = run.recipe.n_steps
    state = TrainingStep(0, n_steps, run.objective.first_multiplier)
    if run.checkpoints is not None:
        state = load_state(run.checkpoints, run.key, parameters, optimizer) or state
    model.train()
    started = time.monotonic()
    pace = _Pace(run.save_every, kept=state.step)
    for step in range(state.step, n_steps):
        try:
            loss, norm, multiplier = _step(
                model, run, parameters, optimizer, step, state.multiplier
            )
        except FloatingPointError as error:
            raise WorkError(_diverged(run, step, str(error), pace.kept)) from error
        losses, seconds = (*state.losses, loss), time.monotonic() - started
        state = TrainingStep(step + 1, n_steps, multiplier, losses, norm, seconds)
        if run.checkpoints is not None and pace.due(step + 1):
            with pace.writing(step + 1):
                save_state(run.checkpoints, run.key, state, parameters, optimizer)
        report(state)
    model.eval()
    return state.losses


SAVE_AFTER_S = 60.0
SAVE_SHARE = 20
"""A state of 1B weights with their moments is 15 GB: written every 50 steps of a fast device it
took most of the time."""


@dataclass
class _Pace:
    """When the next state is written, where the user gives no number of steps."""

    every: int | None
    kept: int
    """The last step that a state holds; 0: none."""
    since: float = field(default_factory=lambda: time.monotonic())
    wait_s: float = SAVE_AFTER_S

    def due(self, step: int) -> bool:
        """Whether a state is written after this step."""
        if self.every is not None:
            return step % self.every == 0
        return time.monotonic() - self.since >= self.wait_s

    @contextmanager
    def writing(self, step: int) -> Iterator[None]:
        """While it is written; the longer it takes the longer the next one waits."""
        began = time.monotonic()
        yield
        self.since, self.kept = time.monotonic(), step
        self.wait_s = max(SAVE_AFTER_S, SAVE_SHARE * (self.since - began))


def trained_parameters(
    model: "transformers.PreTrainedModel", recipe: Recipe
) -> dict[str, Parameter]:
    """The parameters that move: of those that are not frozen, what the expression finds.

    Raises:
        InputError: the expression names none, or is none.
    """
    every = {name: one for name, one in model.named_parameters() if one.requires_grad}
    pattern = checked_pattern(recipe.trainable)
    found = {name: one for name, one in every.items() if pattern.search(name)}
    if not found:
        like = list(every)[1]
        raise InputError(f"no parameter matches {recipe.trainable!r}; names look like {like!r}")
    return found


def checked_pattern(text: str) -> re.Pattern[str]:
    """The expression that names what moves.

    Raises:
        InputError: it is none.
    """
    try:
        return re.compile(text)
    except re.error as error:
        raise InputError(f"--trainable {text!r} is not a regular expression: {error}") from error


def _step(
    model: "transformers.PreTrainedModel",
    run: TrainingRun[B],
    parameters: dict[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    step: int,
    multiplier: float,
) -> tuple[float, float, float]:
    """Take an optimiser step: its mean loss, its gradient norm and the next multiplier.

    Raises:
        FloatingPointError: the loss or the gradient, whichever it says, is not finite.
        InputError: no parameter has a gradient.
    """
    n = run.recipe.n_accumulate
    loss = retain = 0.0
    for terms in _terms(model, run, step, multiplier):
        torch.autograd.backward(terms.total / n, inputs=list(parameters.values()))
        loss += terms.total.item() / n
        retain += terms.retain / n
    if all(parameter.grad is None for parameter in parameters.values()):
        raise InputError(_unreached(run))
    norm = clip_grad_norm_(parameters.values(), run.recipe.max_grad_norm).item()
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise FloatingPointError("gradient" if math.isfinite(loss) else "loss")
    for group in optimizer.param_groups:
        group["lr"] = run.recipe.lr_at(step)
    optimizer.step()
    optimizer.zero_grad()
    return loss, norm, run.objective.next_multiplier(multiplier, retain, step)


def _terms(
    model: "transformers.PreTrainedModel", run: TrainingRun[B], step: int, multiplier: float
) -> Iterator[Terms]:
    """What is minimised in each batch of a step."""
    n, device = run.recipe.n_accumulate, model.device
    for number in range(step * n, (step + 1) * n):
        drawn = generator(run.seed, number).initial_seed()
        with (
            seeded(device, drawn),
            torch.autocast(device.type, torch.bfloat16, enabled=run.autocast),
        ):
            terms = run.objective(model, run.batch(number), multiplier)
        yield terms


@torch.no_grad()
def first_rows_again(model: "transformers.PreTrainedModel", run: TrainingRun[B]) -> float:
    """Loss of the first step's rows under weights that were trained: it had them untrained.

    The loss of the last step is of other rows, which may be easier or harder.
    """
    model.train()  # what dropout drops is then the same
    terms = _terms(model, run, 0, run.objective.first_multiplier)
    loss = sum(one.total.item() for one in terms) / run.recipe.n_accumulate
    model.eval()
    return loss


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """While open, torch's global streams begin with `seed`; afterwards they go on as before."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def _unreached(run: TrainingRun[B]) -> str:
    return (
        f"--trainable {run.recipe.trainable!r}: the loss of {run.objective.name} depends on none "
        "of the parameters that it matches; name others, or leave --trainable out"
    )


def _diverged(run: TrainingRun[B], step: int, what: str, saved: int) -> str:
    kept = "nothing was saved yet"
    if run.checkpoints is not None and saved:
        kept = f"the state after step {saved} is kept in {run.checkpoints}"
    return (
        f"the {what} is not finite at step {step + 1} of {run.recipe.n_steps} "
        f"(learning rate {run.recipe.lr_at(step):.3g}); {kept}; lower --lr and name a new --out"
    )


def logits(model: "transformers.PreTrainedModel", part: TrainBatch) -> Logits:
    """Logits of one forward pass; padding is masked."""
    return model(input_ids=part.tokens, attention_mask=part.mask.long()).logits


class FineTuning(Objective[TrainBatch]):
    """Mean negative log-likelihood of the answers: how `full` and `retain` are made."""

    def __call__(
        self, model: "transformers.PreTrainedModel", batch: TrainBatch, multiplier: float
    ) -> Terms:
        """The loss of one batch."""
        return Terms(mean_nll(logits(model, batch), batch.labels))


STATE = "training.json"
_TENSORS = re.compile(r"training-\d{8}\.(?:safetensors|partial)")
MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's running averages."""
_OS_ERROR = re.compile(r"os error (\d+)")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Failed writes of `path` as the errors a user sees, those of safetensors too.

    Raises:
        InputError | TryAgainError | WorkError: by cause; a full disk is to be tried again.
    """
    try:
        yield
    except OSError as error:
        raise os_error(error, path) from error
    except SafetensorError as error:
        # safetensors names the system's error in words: `… (os error 28)`
        number = _OS_ERROR.search(str(error))
        if number is None:
            raise WorkError(f"{path}: {error}") from error
        code = int(number[1])
        raise os_error(OSError(code, os.strerror(code)), path) from error


def save_state(
    folder: Path,
    key: str,
    state: TrainingStep,
    parameters: Mapping[str, Parameter],
    optimizer: Optimizer,
) -> None:
    """Write the tensors, then the JSON that names them, then drop older tensors."""
    make_folder(folder)
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        tensors[f"weight/{name}"] = parameter.detach().cpu().contiguous()
        # a parameter that the loss never reached (RMU: above its layer) has no moments
        for moment in MOMENTS if optimizer.state.get(parameter) else ():
            tensors[f"{moment}/{name}"] = optimizer.state[parameter][moment].cpu().contiguous()
    file = f"training-{state.step:08d}.safetensors"
    # straight to disk, where `write_bytes` would hold a second copy of a large model
    partial = (folder / file).with_suffix(".partial")
    try:
        with writing(folder / file):
            save_file(tensors, partial)
            os.replace(partial, folder / file)
            sync_folder(folder)
    finally:
        partial.unlink(missing_ok=True)
    numbers = {name: getattr(state, name) for name in ("step", "n_steps", "multiplier", "losses")}
    mark = mark_of(folder / file)
    write_keyed(folder / STATE, {"key": key, "file": file, "mark": mark, **numbers})
    for old in folder.glob("training-*.safetensors"):
        if old.name != file:
            old.unlink()


def drop_state(folder: Path) -> None:
    """Remove what `save_state` wrote; what else is there stays, and the folder with it."""
    if folder.is_symlink():
        return
    tensors = (one for one in folder.glob("training-*") if _TENSORS.fullmatch(one.name))
    with suppress(LensAuditError):  # somebody's file keeps the folder
        remove_files(folder, [folder / STATE, *tensors, *filter(is_partial, folder.glob("*"))])


def load_state(
    folder: Path, key: str, parameters: Mapping[str, Parameter], optimizer: Optimizer
) -> TrainingStep | None:
    """Put weights and moments back where they were; None when the folder holds no state.

    Raises:
        InputError: the state was made with other settings, or it is damaged or not all there.
    """
    if not (folder / STATE).exists():
        return None
    if (content := keyed_document(folder / STATE, key)) is None:
        raise InputError(
            f"{folder}: holds the state of a run with other settings, or a damaged one; name "
            "another --out, repeat the first run's options, or delete it and start again"
        )
    path = folder / content["file"]
    if not path.exists() or mark_of(path) != content["mark"]:
        raise InputError(f"{path}: is gone or damaged; delete {folder} and start again")
    tensors = load_file(path)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"weight/{name}"])
            if f"{MOMENTS[0]}/{name}" not in tensors:
                continue
            moments = {
                moment: tensors[f"{moment}/{name}"].to(parameter.device) for moment in MOMENTS
            }
            optimizer.state[parameter] = {"step": torch.tensor(float(content["step"])), **moments}
    losses = tuple(content["losses"])
    return TrainingStep(content["step"], content["n_steps"], content["multiplier"], losses)
