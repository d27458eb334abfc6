"""One unlearned model: from names and numbers to a checkpoint folder, resumable."""

import csv
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from lensaudit.data.chat import PLAIN, check_tokenizer, pad_id
from lensaudit.errors import InputError
from lensaudit.files import alone, digest, read_text, write_csv
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer
from lensaudit.results import keyed
from lensaudit.results.records import manifest
from lensaudit.unlearn.encode import CHAT, Answered, Sample, chat_sample, raw_sample
from lensaudit.unlearn.lora import ALL_WEIGHTS, How, check_rank, trainee
from lensaudit.unlearn.memory import check_memory
from lensaudit.unlearn.methods import Method, objective_of, reads_reference
from lensaudit.unlearn.objective import Hyper, UnlearnBatch
from lensaudit.unlearn.rows import Rows
from lensaudit.unlearn.samples import unlearn_batches
from lensaudit.unlearn.save import STATE_FOLDER, drop_state, seal_model
from lensaudit.unlearn.train import Progress, Recipe, Run, train

Format = Literal["chat", "raw"]
ENCODERS: dict[Format, Callable[[Any, Answered], Sample]] = {
    "chat": chat_sample,
    "raw": raw_sample,
}


@dataclass(frozen=True)
class Job:
    """Everything an unlearning run is made of; two equal jobs give equal weights."""

    method: Method
    hyper: Hyper
    start: Checkpoint
    forget: Rows
    retain: Rows | None
    idk: tuple[str, ...]
    formats: tuple[Format, ...]
    recipe: Recipe
    batch_size: int
    seed: int
    stored: torch.dtype
    device: str
    save_every: int
    how: How = ALL_WEIGHTS

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this job from others, beside its recipe."""
        return {
            "method": self.method.name,
            "hyper": asdict(self.hyper),
            "weights": self.start.weights,
            "tokenizer": self.start.tokenizer,
            "forget": self.forget.digest,
            "retain": self.retain.digest if self.retain else None,
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


def n_samples_of(method: Method, forget: Rows, formats: Sequence[Format]) -> int:
    """Training sequences per epoch; AltPO's rows count once per alternative."""
    expanded = method.alternate == "given" and forget.alternates
    n_rows = sum(map(len, forget.alternates)) if expanded else len(forget.answered)
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
    if job.method.alternate == "given" and not (
        job.forget.alternates and all(job.forget.alternates)
    ):
        raise InputError(
            f"{job.method.name} needs another answer for every forget row: give each a field "
            f"`alternate` (text or list of texts) in {job.forget.source}"
        )
    if job.hyper.keeps and job.retain is None:
        raise InputError(
            f"{job.method.name} keeps the retain rows (alpha {job.hyper.alpha:g}): name them with "
            f"--retain-data{', or give --alpha 0' if job.hyper.epsilon is None else ''}"
        )
    both = set(job.forget.answered) & set(job.retain.answered if job.retain else ())
    if both:
        raise InputError(
            f"{len(both)} rows are to be forgotten and kept (first {next(iter(both)).question!r}); "
            "name other --retain-data"
        )
    check_rank(job.start, job.how.lora)
    check_memory(
        job.start,
        copies=2 if reads_reference(job.method, job.hyper) else 1,
        device=job.device,
        frozen=job.how.frozen,
    )


@runtime_checkable
class Keyed(Protocol):
    """A job that a folder can be told to belong to."""

    @property
    def key(self) -> str:
        """Content hash of the job."""
        ...


def finished(job: Keyed, out: Path) -> bool:
    """Whether `out` holds the finished model of this very job.

    Raises:
        InputError: it holds something else.
    """
    keyed.check_own(out, job.key)
    if not keyed.finished(out, job.key):
        return False
    drop_state(out)  # of a run that was killed between its manifest and its last line
    return True


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


def trained(job: Keyed, out: Path, train: Callable[[], object]) -> bool:
    """Train, unless `out` holds the finished model of this very job: then False.

    Raises:
        InputError: it holds something else.
        TryAgainError: another process trains into it.
    """
    keyed.check_own(out, job.key)
    with alone(out):
        if finished(job, out):
            return False
        train()
    return True


def make(job: Job, out: Path, *, report: Callable[[Progress], None]) -> bool:
    """Have the unlearned model in `out`; False if it was there before."""
    return trained(job, out, lambda: unlearn(job, out, report=report))


def unlearn(job: Job, out: Path, *, report: Callable[[Progress], None]) -> tuple[float, ...]:
    """Train, and write the checkpoint, `losses.csv` and `manifest.json` into `out`.

    Raises:
        InputError: the model or tokenizer cannot be used, or `out` holds another run.
        WorkError: the loss diverged; the last saved state is kept.
    """
    started = time.monotonic()
    keyed.begin(out, job.key)
    tokenizer = load_tokenizer(job.start)
    for one in job.formats:
        check_tokenizer(tokenizer, CHAT if one == "chat" else PLAIN, job.start.spec.name)
    model, wrapped = trainee(job.start, job.how, seed=job.seed, device=job.device)
    limit = getattr(model.config, "max_position_embeddings", None)
    batches = _batches(job, tokenizer, limit)
    losses = train(model, _run(job, batches, out / STATE_FOLDER), report=report)
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


def record(job: Job, started: float):
    """The manifest of a finished run."""
    inputs = {
        **job.identity,
        "key": job.key,
        "start": job.start.spec.name,
        "forget_source": job.forget.source,
        "retain_source": job.retain.source if job.retain else None,
    }
    options = {**asdict(job.recipe), "save_every": job.save_every}
    return manifest("unlearn", options=options, inputs=inputs, device=job.device, started=started)


def _run(job: Job, batches: Callable[[int], UnlearnBatch], folder: Path) -> Run[UnlearnBatch]:
    needs_copy = reads_reference(job.method, job.hyper)
    reference = load_causal(job.start, device=job.device) if needs_copy else None
    return Run(
        objective_of(job.method, job.hyper, reference),
        batches,
        job.recipe,
        job.identity,
        folder,
        job.save_every,
        job.how.autocast,
    )


def _batches(job: Job, tokenizer: Any, limit: int | None) -> Callable[[int], UnlearnBatch]:
    encoders = [ENCODERS[one] for one in job.formats]

    def encoded(rows: Sequence[Answered]) -> list[Sample]:
        return [encode(tokenizer, row) for row in rows for encode in encoders]

    pairs = _pairs(job)
    forget = encoded([row for row, _ in pairs])
    retain = encoded(job.retain.answered) if job.retain else []
    alternates = [
        tuple(encode(tokenizer, Answered(row.question, other)) for other in others)
        for row, others in pairs
        for encode in encoders
        if others
    ]
    longest = max(len(one.ids) for one in chain(forget, retain, *alternates))
    if limit is not None and longest > limit:
        raise InputError(
            f"{job.start.spec.name}: reads {limit} tokens, the longest row has {longest}; "
            "leave long rows out of the data"
        )
    batch = unlearn_batches(
        forget,
        retain,
        alternates,
        batch_size=job.batch_size,
        seed=job.seed,
        pad=pad_id(tokenizer),
    )
    return lambda number: batch(number).to(job.device)


def _pairs(job: Job) -> list[tuple[Answered, tuple[str, ...]]]:
    """Every forget row with the other answers that one access may draw."""
    match job.method.alternate:
        case "idk":
            return [(row, job.idk) for row in job.forget.answered]
        case "given":
            # one row per alternative, as AltPO's data set is expanded upstream
            rows = zip(job.forget.answered, job.forget.alternates, strict=True)
            return [(row, (other,)) for row, others in rows for other in others]
        case _:
            return [(row, ()) for row in job.forget.answered]
