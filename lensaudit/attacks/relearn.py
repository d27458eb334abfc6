"""Does knowledge come back at once when the model sees the forget set again? Relearning.

One pass of plain fine-tuning on the forget answers; what hides knowledge gives way to it, what was
erased must be learned anew. So the same attack on `retain`, which never had the knowledge, says
how much one pass teaches: only a change beyond that one is recovery.

Settings are those of the UDS meta-evaluation (gnueaj/unlearning-depth-score @ fc31639); training
is in float32 where theirs is in bfloat16.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.filesize import decimal as size
from transformers import PreTrainedModel

from lensaudit.attacks.settings import RelearnSettings
from lensaudit.data.chat import pad_id
from lensaudit.errors import InputError
from lensaudit.files import digest, write_csv
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_model
from lensaudit.models.device import free_bytes, resolve_device
from lensaudit.models.registry import default_data, is_demo
from lensaudit.models.sizes import n_parameters
from lensaudit.results import keyed
from lensaudit.results.records import Manifest, manifest
from lensaudit.results.sentences import rows_relearned
from lensaudit.unlearn.job import (
    ENCODERS,
    FORMATS,
    Format,
    check_formats,
    check_lengths,
    formats_of,
    kept_losses,
    n_steps_of,
    trained,
)
from lensaudit.unlearn.rows import (
    Answered,
    Sample,
    TrainBatch,
    TrainingRows,
    collate,
    in_epochs,
    load_rows,
)
from lensaudit.unlearn.settings import not_negative, positive
from lensaudit.unlearn.train import FineTuning, Recipe, TrainingRun, TrainingStep, train
from lensaudit.unlearn.trainee import (
    ALL_WEIGHTS,
    STATE_FOLDER,
    Tuning,
    check_memory,
    check_rank,
    seal_model,
    trainee,
    training_bytes,
)

Report = Callable[[TrainingStep], None]


@dataclass(frozen=True)
class Relearning:
    """How the model is shown the forget set; the defaults are the published attack."""

    lr: float = 2e-5
    """Peak; falls to 0 along a straight line, without a rise before it."""
    n_epochs: float = RelearnSettings.epochs
    batch_size: int = RelearnSettings.batch_size
    n_accumulate: int = RelearnSettings.accumulate
    """Parts that a step's `batch_size * n_accumulate` rows are read in: 32 rows a step."""
    weight_decay: float = RelearnSettings.weight_decay
    max_grad_norm: float = RelearnSettings.max_grad_norm
    n_warmup: int = 0
    formats: tuple[Format, ...] = ("chat",)
    seed: int = RelearnSettings.seed
    """Of the order of rows."""

    def recipe(self, n_samples: int) -> Recipe:
        """The training recipe for so many sequences; 400 of them are 13 steps."""
        n_steps = n_steps_of(
            n_samples,
            n_epochs=self.n_epochs,
            batch_size=self.batch_size * self.n_accumulate,
            n_accumulate=1,
        )
        return Recipe(
            n_steps=n_steps,
            lr=self.lr,
            n_warmup=min(self.n_warmup, n_steps),
            n_accumulate=self.n_accumulate,
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm,
        )


def relearned(
    model: PreTrainedModel,
    tokenizer: Any,
    rows: Sequence[Answered],
    *,
    settings: Relearning | None = None,
    report: Report = lambda _: None,
) -> PreTrainedModel:
    """A copy of a causal model, fine-tuned on `rows`, in the model's dtype; `model` stays as it is.

    Training is in float32. The same arguments give the same weights.

    Raises:
        InputError: the tokenizer lacks a chat template or a row is longer than the model reads.
        WorkError: the loss diverged.
    """
    settings = settings or Relearning()
    dtype = next(model.parameters()).dtype
    twin: Any = copy.deepcopy(model).float()
    run = run_of(twin, tokenizer, rows, settings, name=type(model).__name__)
    train(twin, run, report=report)
    return twin.to(dtype)


def run_of(
    model: PreTrainedModel,
    tokenizer: Any,
    rows: Sequence[Answered],
    settings: Relearning,
    *,
    name: str,
    identity: dict[str, Any] | None = None,
    checkpoints: Path | None = None,
    save_every: int = 50,
    autocast: bool = False,
) -> TrainingRun[TrainBatch]:
    """The training run of an attack."""
    check_formats(tokenizer, settings.formats, name)
    samples = [ENCODERS[one](tokenizer, row) for row in rows for one in settings.formats]
    check_lengths(samples, model, name)
    batch = relearn_batches(samples, settings, pad=pad_id(tokenizer))
    return TrainingRun(
        FineTuning(),
        lambda number: batch(number).to(model.device),
        settings.recipe(len(samples)),
        identity or {},
        checkpoints,
        save_every,
        autocast,
    )


def relearn_batches(
    samples: Sequence[Sample], settings: Relearning, *, pad: int
) -> Callable[[int], TrainBatch]:
    """Batch number to batch; every row once per epoch.

    A step's rows are dealt out to its parts, so that the last step of an epoch, which is short,
    reads no row of the next epoch.
    """
    n_parts = settings.n_accumulate
    step_rows = in_epochs(
        len(samples), batch_size=settings.batch_size * n_parts, seed=settings.seed
    )

    def batch(number: int) -> TrainBatch:
        step, part = divmod(number, n_parts)
        rows = step_rows(step)
        # fewer rows than parts: some rows count twice in the step's mean
        chosen = rows[part::n_parts] or [rows[part % len(rows)]]
        return collate([samples[row] for row in chosen], pad=pad)

    return batch


DEMO_RELEARNING = Relearning(lr=1e-3, formats=FORMATS["both"])
"""For demo/… models, which know both forms: 2e-5 would leave their million weights as they are."""


def relearning_for(*, demo: bool) -> Relearning:
    """How every command relearns: rows in this order, at this rate, unless it is told otherwise."""
    return DEMO_RELEARNING if demo else Relearning()


@dataclass(frozen=True)
class RelearnJob:
    """Everything a relearned model is made of; two equal jobs give equal weights."""

    start: Checkpoint
    rows: TrainingRows
    settings: Relearning
    stored: torch.dtype
    device: str
    save_every: int = 50
    how: Tuning = ALL_WEIGHTS

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this job from others."""
        return {
            "command": "relearn",
            "weights": self.start.weights,
            "tokenizer": self.start.tokenizer,
            "forget": self.rows.digest,
            "settings": asdict(self.settings) | {"formats": list(self.settings.formats)},
            "stored": str(self.stored),
            **self.how.identity,
        }

    @property
    def key(self) -> str:
        """Content hash of the job."""
        return digest(self.identity)

    @property
    def recipe(self) -> Recipe:
        """Steps and learning rate of the training."""
        return self.settings.recipe(len(self.rows.answered) * len(self.settings.formats))


def prepare(settings: RelearnSettings, model: str) -> RelearnJob:
    """The relearning run that the settings describe, on one model.

    Raises:
        InputError: whatever is wrong with names, files or numbers.
    """
    start = open_model(model, settings.registry)
    default = relearning_for(demo=is_demo(settings.model))
    how = Tuning(settings.lora, settings.autocast)
    relearning = Relearning(
        lr=positive("--lr", how.rate(default.lr) if settings.lr is None else settings.lr),
        n_epochs=positive("--epochs", settings.epochs),
        batch_size=settings.batch_size,
        n_accumulate=settings.accumulate,
        weight_decay=not_negative("--weight-decay", settings.weight_decay),
        max_grad_norm=positive("--max-grad-norm", settings.max_grad_norm),
        formats=formats_of(settings.formats, settings.model),
        seed=settings.seed,
    )
    return RelearnJob(
        start=start,
        rows=load_rows(settings.data or default_data(settings.model), part="forget"),
        settings=relearning,
        stored=stored_dtype(start, settings.store),
        device=resolve_device(settings.device),
        save_every=settings.save_every,
        how=how,
    )


def check(job: RelearnJob) -> None:
    """Find what is missing before anything is loaded.

    Raises:
        InputError: epochs that cannot be counted, or too little memory.
    """
    _ = job.recipe
    check_rank(job.start, job.how.lora)
    check_memory(job.start, copies=1, device=job.device, frozen=job.how.frozen)


def plan_of(job: RelearnJob, out: Path | None) -> list[str]:
    """What would be done, line by line."""
    recipe, settings = job.recipe, job.settings
    weights = n_parameters(job.start.folder)
    return [
        f"relearning of {job.rows.source} by {job.start.spec.name}: {len(job.rows.answered)} rows "
        f"as {'+'.join(settings.formats)}",
        f"{recipe.n_steps} steps of {settings.n_accumulate} x {settings.batch_size} rows, "
        f"lr {recipe.lr:g}",
        f"{size(training_bytes(weights, copies=1, frozen=job.how.frozen))} for "
        f"{job.how.held} on {job.device}; writes {out or 'the audit alone'}",
    ]


def make(job: RelearnJob, out: Path, *, report: Report) -> bool:
    """Have the relearned model in `out`; False if it was there before."""
    return trained(job, out, lambda: relearn(job, out, report=report))


def taught_nothing(out: Path) -> str | None:
    """What to know of a finished folder whose training changed next to nothing; None of others.

    Raises:
        InputError: its losses are gone.
    """
    losses = kept_losses(out)
    return rows_relearned(losses[0], losses[-1], len(losses))


def relearn(job: RelearnJob, out: Path, *, report: Report) -> tuple[float, ...]:
    """Write the checkpoint, `losses.csv` and `manifest.json` into `out`; the losses by step.

    Raises:
        InputError: model or tokenizer cannot be used, or `out` holds another run.
        WorkError: the loss diverged; the last saved state is kept.
    """
    started = time.monotonic()
    keyed.begin(out, job.key)
    tokenizer = load_tokenizer(job.start)
    model, wrapped = trainee(job.start, job.how, seed=job.settings.seed, device=job.device)
    run = run_of(
        model,
        tokenizer,
        job.rows.answered,
        job.settings,
        name=job.start.spec.name,
        identity=job.identity,
        checkpoints=out / STATE_FOLDER,
        save_every=job.save_every,
        autocast=job.how.autocast,
    )
    losses = train(model, run, report=report)
    write_csv(out / "losses.csv", ("step", "loss"), list(enumerate(losses, 1)))
    seal_model(
        model,
        job.start,
        out,
        dtype=job.stored,
        key=job.key,
        record=lambda: record(job, started),
        wrapped=wrapped,
    )
    return losses


def record(job: RelearnJob, started: float) -> Manifest:
    """The manifest of a finished run."""
    inputs = {
        **job.identity,
        "key": job.key,
        "start": job.start.spec.name,
        "forget_source": job.rows.source,
    }
    options = {**asdict(job.recipe), "save_every": job.save_every}
    return manifest("relearn", options=options, inputs=inputs, device=job.device, started=started)


def stored_dtype(start: Checkpoint, named: str) -> torch.dtype:
    """The precision of saved weights: a name, or `same` as the start model's.

    Raises:
        InputError: the start model's is none that torch has.
    """
    name = start.dtype if named == "same" else named
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"{start.spec.name}: weights of dtype {name}; name one with --store")
    return dtype


def check_fits(start: Checkpoint, *, bytes_per_weight: int, device: str) -> None:
    """Refuse a model that does not fit, before it is loaded.

    Raises:
        InputError: more is needed than is free.
    """
    needed, free = bytes_per_weight * n_parameters(start.folder), free_bytes(device)
    if free is not None and needed > free:
        raise InputError(
            f"{start.spec.name}: its weights take {size(needed)}, {size(free)} are "
            f"free on {device}; take a smaller model or another --device"
        )
