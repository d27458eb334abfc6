"""From settings to an unlearning run: everything that can be wrong is found here."""

from collections.abc import Mapping
from pathlib import Path

import torch
from rich.filesize import decimal as size

from lensaudit.data.tofu import DEMO
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.device import resolve_device
from lensaudit.models.registry import default_data, is_demo, load_registry, resolve
from lensaudit.models.sizes import n_parameters
from lensaudit.unlearn.job import Format, Job, check, n_samples_of, n_steps_of
from lensaudit.unlearn.lora import How
from lensaudit.unlearn.memory import training_bytes
from lensaudit.unlearn.methods import (
    COMMON,
    METHODS,
    Method,
    hyper_of,
    method_named,
    reads_reference,
)
from lensaudit.unlearn.rows import TOFU_PAIRS, Rows, idk_lines, load_rows
from lensaudit.unlearn.settings import Formats, UnlearnSettings, not_negative, positive
from lensaudit.unlearn.train import Recipe

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
    start = open_checkpoint(resolve(settings.model, load_registry(settings.registry)))
    constants = {name: getattr(settings, name) for name in CONSTANTS}
    given = {name: value for name, value in constants.items() if value is not None}
    hyper = hyper_of(method, given, n_layers=start.n_layers)
    data = settings.data or default_data(settings.model)
    forget = load_rows(data, part="forget")
    formats = formats_of(settings.formats, settings.model)
    stored = start.dtype if settings.store == "same" else settings.store
    how = How(settings.lora, settings.autocast)
    job = Job(
        method=method,
        hyper=hyper,
        start=start,
        forget=forget,
        retain=_retain_rows(settings.retain_data, data) if hyper.keeps else None,
        idk=idk_lines(settings.idk) if method.alternate == "idk" else (),
        formats=formats,
        recipe=_recipe(settings, method, n_samples_of(method, forget, formats), how),
        batch_size=settings.batch_size,
        seed=settings.seed,
        stored=getattr(torch, stored),
        device=resolve_device(settings.device),
        save_every=settings.save_every,
        how=how,
    )
    check(job)
    return job


def _retain_rows(named: str | None, forget_data: str) -> Rows | None:
    if named is None:
        named = DEMO if forget_data == DEMO else TOFU_PAIRS.get(forget_data)
    return load_rows(named, part="retain") if named else None


def _recipe(settings: UnlearnSettings, method: Method, n_samples: int, how: How) -> Recipe:
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
        f"forget {job.forget.source}: {len(job.forget.answered)} rows as {'+'.join(job.formats)}; "
        + (
            f"retain {job.retain.source}: {len(job.retain.answered)} rows"
            if job.retain
            else "no retain rows"
        ),
        f"{job.recipe.n_steps} steps of {job.recipe.n_accumulate} x {job.batch_size} rows "
        f"({n_sequences} forget sequences), lr {job.recipe.lr:g} after {job.recipe.n_warmup} steps",
        f"{size(training_bytes(weights, copies=copies, frozen=job.how.frozen))} "
        f"for {job.how.held} on {job.device}; writes {out}",
    ]
