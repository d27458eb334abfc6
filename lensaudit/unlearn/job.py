"""One unlearned model: from names and numbers to a checkpoint folder, resumable."""

import csv
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from rich.filesize import decimal as size

from lensaudit.data.chat import PLAIN, Encoding, check_tokenizer, pad_id
from lensaudit.data.facts import Fact, answered
from lensaudit.data.tofu import DEMO, TOFU_PAIRS
from lensaudit.errors import InputError
from lensaudit.files import alone, digest, read_text, write_csv
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_model
from lensaudit.models.device import resolve_device
from lensaudit.models.registry import default_data, is_demo
from lensaudit.models.sizes import n_parameters
from lensaudit.results import keyed
from lensaudit.results.records import manifest
from lensaudit.unlearn.methods import (
    COMMON,
    METHODS,
    Hyper,
    Method,
    hyper_of,
    method_named,
    objective_of,
    reads_reference,
)
from lensaudit.unlearn.rows import (
    CHAT,
    UnlearnBatch,
    chat_sample,
    idk_lines,
    load_rows,
    raw_sample,
    rows_hash,
    taught,
    unlearn_batches,
)
from lensaudit.unlearn.settings import Formats, UnlearnSettings, not_negative, positive
from lensaudit.unlearn.train import Recipe, TrainingRun, TrainingStep, train
from lensaudit.unlearn.trainee import (
    ALL_WEIGHTS,
    STATE_FOLDER,
    Tuning,
    check_memory,
    check_rank,
    drop_state,
    seal_model,
    stored_dtype,
    trainee,
    training_bytes,
)

Format = Literal["chat", "raw"]
ENCODERS: dict[Format, Callable[[Any, Fact], Encoding]] = {
    "chat": chat_sample,
    "raw": raw_sample,
}


@dataclass(frozen=True)
class Job:
    """Everything an unlearning run is made of; two equal jobs give equal weights."""

    method: Method
    hyper: Hyper
    start: Checkpoint
    forget: tuple[Fact, ...]
    forget_source: str
    retain: tuple[Fact, ...]
    retain_source: str | None
    idk: tuple[str, ...]
    formats: tuple[Format, ...]
    recipe: Recipe
    batch_size: int
    seed: int
    stored: torch.dtype
    device: str
    save_every: int
    how: Tuning = ALL_WEIGHTS

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this job from others, beside its recipe."""
        return {
            "method": self.method.name,
            "hyper": asdict(self.hyper),
            "weights": self.start.weights,
            "tokenizer": self.start.tokenizer,
            "forget": rows_hash(self.forget),
            "retain": rows_hash(self.retain) if self.retain else None,
            "idk": digest(list(self.idk)) if self.method.alternate == "idk" else None,
            "formats": list(self.formats),
            "batch_size": self.batch_size,
            "seed": self.seed,
            "stored": str(self.stored),
            **self.how.identity,
            # 2: the retain term is read at a multiplier of 0 too
            **({} if self.hyper.epsilon is None else {"dual": 2}),
        }

    @property
    def key(self) -> str:
        """Content hash of the job."""
        return digest({"recipe": asdict(self.recipe), "identity": self.identity})


def n_samples_of(method: Method, forget: Sequence[Fact], formats: Sequence[Format]) -> int:
    """Training sequences per epoch; AltPO's rows count once per alternative."""
    expanded = method.alternate == "given"
    n_rows = sum(len(one.wrong) for one in forget) if expanded else len(forget)
    return n_rows * len(formats)


def n_steps_of(n_samples: int, *, n_epochs: float, batch_size: int, n_accumulate: int) -> int:
    """Optimiser steps of so many passes over the forget samples; at least one.

    >>> n_steps_of(367, n_epochs=10.0, batch_size=8, n_accumulate=4)
    115

    Raises:
        InputError: that many passes cannot be counted.
    """
    n_batches = n_epochs * math.ceil(n_samples / batch_size)
    if not math.isfinite(n_batches):
        raise InputError(f"{n_epochs:g} epochs of {n_samples} rows: wanted a number of them")
    return max(1, math.ceil(n_batches / n_accumulate))


def check(job: Job) -> None:
    """Find what is missing before anything is loaded.

    Raises:
        InputError: no alternates, no retain rows, rows on both sides, or too little memory.
    """
    if job.method.alternate == "given" and not all(one.wrong for one in job.forget):
        raise InputError(
            f"{job.method.name} needs another answer for every forget row: give each a field "
            f"`alternate` (text or list of texts) in {job.forget_source}"
        )
    if job.hyper.keeps and not job.retain:
        raise InputError(
            f"{job.method.name} keeps the retain rows (alpha {job.hyper.alpha:g}): name them with "
            f"--retain-data{', or give --alpha 0' if job.hyper.epsilon is None else ''}"
        )
    both = set(taught(job.forget)) & set(taught(job.retain))
    if both:
        raise InputError(
            f"{len(both)} rows are to be forgotten and kept (first {next(iter(both))[0]!r}); "
            "name other --retain-data"
        )
    check_rank(job.start, job.how.lora)
    check_memory(
        job.start,
        copies=2 if reads_reference(job.method, job.hyper) else 1,
        device=job.device,
        frozen=job.how.frozen,
    )


def kept_losses(out: Path) -> tuple[float, ...]:
    """The losses of a finished folder, by step.

    Raises:
        InputError: its `losses.csv` is gone or has no losses.
    """
    path = out / "losses.csv"
    try:
        losses = [float(row["loss"]) for row in csv.DictReader(read_text(path).splitlines())]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error}); make the model again elsewhere") from error
    if not losses:
        raise InputError(f"{path}: holds no losses; make the model again elsewhere")
    return tuple(losses)


def trained(key: str, out: Path, train: Callable[[], object]) -> bool:
    """Train, unless `out` holds the finished model of the job with this key: then False.

    Raises:
        InputError: it holds something else.
        TryAgainError: another process trains into it.
    """
    keyed.check_own(out, key)
    with alone(out):
        if keyed.check_own(out, key):
            drop_state(out)  # of a run that was killed between its manifest and its last line
            return False
        train()
    return True


def make(job: Job, out: Path, *, report: Callable[[TrainingStep], None]) -> bool:
    """Have checkpoint, `losses.csv` and `manifest.json` in `out`; False if they were there before.

    Raises:
        InputError: the model or tokenizer cannot be used, or `out` holds another run.
        WorkError: the loss diverged; the last saved state is kept.
    """

    def run(model: Any, tokenizer: Any) -> TrainingRun[UnlearnBatch]:
        check_formats(tokenizer, job.formats, job.start.spec.name)
        needs_copy = reads_reference(job.method, job.hyper)
        reference = load_causal(job.start, device=job.device) if needs_copy else None
        return TrainingRun(
            objective_of(job.method, job.hyper, reference),
            _batches(job, tokenizer, model),
            job.recipe,
            job.identity,
            out / STATE_FOLDER,
            job.save_every,
            job.how.autocast,
        )

    sources = {"forget_source": job.forget_source, "retain_source": job.retain_source}

    def write() -> None:
        train_into(job, out, run, command="unlearn", seed=job.seed, sources=sources, report=report)

    return trained(job.key, out, write)


def train_into(
    job: Any,
    out: Path,
    run: Callable[[Any, Any], TrainingRun[Any]],
    *,
    command: str,
    seed: int,
    sources: Mapping[str, str | None],
    report: Callable[[TrainingStep], None],
) -> tuple[float, ...]:
    """Write checkpoint, `losses.csv` and `manifest.json` of a training job; the losses by step.

    Args:
        job: its start model, recipe and identity.
        out: holds this run, or nothing.
        run: of the loaded model and its tokenizer.
        command: that the manifest names.
        seed: of a new adapter.
        sources: where rows come from, for the manifest.
        report: after each step.
    """
    started = time.monotonic()
    keyed.begin(out, job.key)
    tokenizer = load_tokenizer(job.start)
    model, wrapped = trainee(job.start, job.how, seed=seed, device=job.device)
    losses = train(model, run(model, tokenizer), report=report)
    write_csv(out / "losses.csv", ("step", "loss"), list(enumerate(losses, 1)))
    inputs = {**job.identity, "key": job.key, "start": job.start.spec.name, **sources}
    options = {**asdict(job.recipe), "save_every": job.save_every}
    seal_model(
        model,
        job.start,
        out,
        dtype=job.stored,
        key=job.key,
        record=lambda: manifest(
            command, options=options, inputs=inputs, device=job.device, started=started
        ),
        wrapped=wrapped,
    )
    return losses


def _batches(job: Job, tokenizer: Any, model: Any) -> Callable[[int], UnlearnBatch]:
    encoders = [ENCODERS[one] for one in job.formats]

    def encoded(rows: Sequence[Fact]) -> list[Encoding]:
        return [encode(tokenizer, row) for row in rows for encode in encoders]

    pairs = _pairs(job)
    forget = encoded([row for row, _ in pairs])
    retain = encoded(job.retain)
    alternates = [
        tuple(encode(tokenizer, answered(row.question, other)) for other in others)
        for row, others in pairs
        for encode in encoders
        if others
    ]
    check_lengths(chain(forget, retain, *alternates), model, job.start.spec.name)
    batch = unlearn_batches(
        forget,
        retain,
        alternates,
        batch_size=job.batch_size,
        seed=job.seed,
        pad=pad_id(tokenizer),
    )
    return lambda number: batch(number).to(job.device)


def check_formats(tokenizer: Any, formats: Sequence[Format], name: str) -> None:
    """Refuse a tokenizer that cannot write rows in these formats.

    Raises:
        InputError: what it lacks.
    """
    for one in formats:
        check_tokenizer(tokenizer, CHAT if one == "chat" else PLAIN, name)


def check_lengths(samples: Iterable[Encoding], model: Any, name: str) -> None:
    """Refuse sequences that are longer than a model reads.

    Raises:
        InputError: the longest is.
    """
    limit = getattr(model.config, "max_position_embeddings", None)
    longest = max(len(one.ids) for one in samples)
    if limit is not None and longest > limit:
        raise InputError(
            f"{name}: reads {limit} tokens, the longest row has {longest}; leave long rows out of "
            "the data"
        )


def _pairs(job: Job) -> list[tuple[Fact, tuple[str, ...]]]:
    """Every forget row with the other answers that one access may draw."""
    if job.method.alternate == "given":
        # one row per alternative, as AltPO's data set is expanded upstream
        return [(row, (other,)) for row in job.forget for other in row.wrong]
    return [(row, job.idk) for row in job.forget]


DEMO_LR = 5e-4
"""A model of a million weights needs steps that a model of a billion would not survive."""
FORMATS: Mapping[Formats, tuple[Format, ...]] = {
    "chat": ("chat",),
    "raw": ("raw",),
    "both": ("raw", "chat"),
}
CONSTANTS = sorted({*COMMON, *(name for method in METHODS.values() for name in method.constants)})


def formats_of(named: Formats | None, model: str) -> tuple[Format, ...]:
    """How rows are written; the embedded family knows both forms."""
    return FORMATS[named or ("both" if is_demo(model) else "chat")]


def prepare(settings: UnlearnSettings) -> Job:
    """The job that the settings describe, checked; reads data and the start model's headers.

    Raises:
        InputError: whatever is wrong with names, files or numbers.
    """
    method = method_named(settings.method)
    start = open_model(settings.model, settings.registry)
    constants = {name: getattr(settings, name) for name in CONSTANTS}
    given = {name: value for name, value in constants.items() if value is not None}
    hyper = hyper_of(method, given, n_layers=start.n_layers)
    data = settings.data or default_data(settings.model)
    forget = load_rows(data, part="forget")
    kept = settings.retain_data or (DEMO if data == DEMO else TOFU_PAIRS.get(data))
    kept = kept if hyper.keeps else None
    formats = formats_of(settings.formats, settings.model)
    how = Tuning(settings.lora, settings.autocast)
    job = Job(
        method=method,
        hyper=hyper,
        start=start,
        forget=forget,
        forget_source=data,
        retain=load_rows(kept, part="retain") if kept else (),
        retain_source=kept,
        idk=idk_lines(settings.idk) if method.alternate == "idk" else (),
        formats=formats,
        recipe=_recipe(settings, method, n_samples_of(method, forget, formats), how),
        batch_size=settings.batch_size,
        seed=settings.seed,
        stored=stored_dtype(start, settings.store),
        device=resolve_device(settings.device),
        save_every=settings.save_every,
        how=how,
    )
    check(job)
    return job


def _recipe(settings: UnlearnSettings, method: Method, n_samples: int, how: Tuning) -> Recipe:
    """Epochs become steps; what is left out is the method's published value."""
    sizes = {"batch_size": settings.batch_size, "n_accumulate": settings.accumulate}
    epochs = method.n_epochs if settings.epochs is None else settings.epochs
    default_lr = how.rate(DEMO_LR if is_demo(settings.model) else method.lr)
    n_epochs = positive("--epochs", epochs)
    lr = positive("--lr", default_lr if settings.lr is None else settings.lr)
    n_steps = settings.steps or n_steps_of(n_samples, n_epochs=n_epochs, **sizes)
    n_warmup = n_steps_of(n_samples, n_epochs=settings.warmup_epochs, **sizes)
    return Recipe(
        n_steps=n_steps,
        lr=lr,
        n_warmup=min(n_warmup, n_steps) if settings.warmup_epochs > 0 else 0,
        schedule=settings.schedule,
        n_accumulate=settings.accumulate,
        weight_decay=not_negative("--weight-decay", settings.weight_decay),
        max_grad_norm=positive("--max-grad-norm", settings.max_grad_norm),
        trainable=settings.trainable,
    )


def plan_of(job: Job, out: Path) -> list[str]:
    """What would be done, line by line."""
    n_sequences = job.recipe.n_steps * job.recipe.n_accumulate * job.batch_size
    weights = n_parameters(job.start.folder)
    copies = 2 if reads_reference(job.method, job.hyper) else 1
    constants = {name: getattr(job.hyper, name) for name in (*COMMON, *job.method.constants)}
    return [
        f"{job.method.name} from {job.start.spec.name}: "
        + ", ".join(f"{name} {value}" for name, value in constants.items()),
        f"forget {job.forget_source}: {len(job.forget)} rows as {'+'.join(job.formats)}; "
        + (
            f"retain {job.retain_source}: {len(job.retain)} rows"
            if job.retain
            else "no retain rows"
        ),
        f"{job.recipe.n_steps} steps of {job.recipe.n_accumulate} x {job.batch_size} rows "
        f"({n_sequences} forget sequences), lr {job.recipe.lr:g} after {job.recipe.n_warmup} steps",
        f"{size(training_bytes(weights, copies=copies, frozen=job.how.frozen))} "
        f"for {job.how.held} on {job.device}; writes {out}",
    ]
