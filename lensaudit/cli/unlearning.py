"""`unlearn` behind the options: resolve, plan, train, print."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import torch

from lensaudit.data.tofu import DEMO
from lensaudit.errors import InputError
from lensaudit.files import canonical_json
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.device import resolve_device
from lensaudit.models.registry import DEMO as DEMO_NAMES
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.prepare import default_data
from lensaudit.unlearn.job import (
    Format,
    Job,
    check,
    finished,
    kept_losses,
    n_samples_of,
    n_steps_of,
)
from lensaudit.unlearn.job import unlearn as train_job
from lensaudit.unlearn.memory import n_parameters, training_bytes
from lensaudit.unlearn.methods import (
    COMMON,
    METHODS,
    Method,
    hyper_of,
    method_named,
    reads_reference,
)
from lensaudit.unlearn.rows import TOFU_PAIRS, Rows, idk_lines, load_rows
from lensaudit.unlearn.train import Progress, Recipe

DEMO_LR = 5e-4
"""A model of a million weights needs steps that a model of a billion would not survive."""
FORMATS: Mapping[str, tuple[Format, ...]] = {
    "chat": ("chat",), "raw": ("raw",), "both": ("raw", "chat"),
}  # fmt: skip
CONSTANTS = sorted({*COMMON, *(name for method in METHODS.values() for name in method.constants)})


def run_unlearn(
    *,
    out: Path,
    notice: Callable[[str], None],
    progress: Callable[[str, int, int], None],
    as_json: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Make the model, or say that it is there."""
    job = job_of(options)
    check(job)
    if dry_run:
        click.echo("\n".join(plan_of(job, out)))
        return

    def report(done: Progress) -> None:
        progress("step", done.step, done.n_steps)

    if finished(job, out):
        notice(f"{out} holds this model already; nothing to do")
        if not as_json:
            return
        losses = kept_losses(out)
    else:
        losses = train_job(job, out, report=report)
    summary = {"out": str(out), "method": job.method.name, "steps": job.recipe.n_steps,
               "first_loss": losses[0], "last_loss": losses[-1]}  # fmt: skip
    click.echo(
        canonical_json(summary)
        if as_json
        else f"{out}: {job.method.name} from {job.start.spec.name}, {job.recipe.n_steps} steps, "
        f"loss {losses[0]:.4f} -> {losses[-1]:.4f}"
    )


def job_of(options: Mapping[str, Any]) -> Job:
    """The job that the options describe; reads data and the headers of the start model.

    Raises:
        InputError: whatever is wrong with names, files or numbers.
    """
    method = method_named(options["method"])
    start = open_checkpoint(resolve(options["model"], load_registry(options["registry"])))
    given = {name: options[name] for name in CONSTANTS if options[name] is not None}
    hyper = hyper_of(method, given, n_layers=start.n_layers)
    data = options["data"] or default_data(options["model"])
    forget = load_rows(data, part="forget")
    formats = FORMATS[options["formats"] or ("both" if is_demo(options["model"]) else "chat")]
    return Job(
        method=method,
        hyper=hyper,
        start=start,
        forget=forget,
        retain=_retain_rows(options["retain_data"], data) if hyper.alpha > 0 else None,
        idk=idk_lines(options["idk"]) if method.alternate == "idk" else (),
        formats=formats,
        recipe=_recipe(options, method, n_samples_of(method, forget, formats)),
        batch_size=options["batch_size"],
        seed=options["seed"],
        stored=getattr(torch, start.dtype if options["store"] == "same" else options["store"]),
        device=resolve_device(options["device"]),
        save_every=options["save_every"],
    )


def is_demo(model: str) -> bool:
    """Whether the name is one of the embedded family."""
    return model.startswith(DEMO_NAMES)


def _retain_rows(named: str | None, forget_data: str) -> Rows | None:
    if named is None:
        named = DEMO if forget_data == DEMO else TOFU_PAIRS.get(forget_data)
    return load_rows(named, part="retain") if named else None


def _recipe(options: Mapping[str, Any], method: Method, n_samples: int) -> Recipe:
    """Epochs become steps; what is left out is the method's published value."""
    sizes = {"batch_size": options["batch_size"], "n_accumulate": options["accumulate"]}
    n_epochs = positive(options, "epochs", method.n_epochs)
    lr = positive(options, "lr", DEMO_LR if is_demo(options["model"]) else method.lr)
    n_steps = options["steps"] or n_steps_of(n_samples, n_epochs=n_epochs, **sizes)
    n_warmup = n_steps_of(n_samples, n_epochs=options["warmup_epochs"], **sizes)
    return Recipe(
        n_steps=n_steps,
        lr=lr,
        n_warmup=min(n_warmup, n_steps) if options["warmup_epochs"] > 0 else 0,
        schedule=options["schedule"],
        n_accumulate=options["accumulate"],
        weight_decay=decay_of(options),
        max_grad_norm=positive(options, "max_grad_norm", 1.0),
        trainable=options["trainable"],
    )


def positive(options: Mapping[str, Any], name: str, default: float) -> float:
    """A number option, or its default.

    Raises:
        InputError: it is no number above 0.
    """
    value = default if options[name] is None else options[name]
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"--{name.replace('_', '-')} {value:g}: wanted a number above 0")
    return value


def decay_of(options: Mapping[str, Any]) -> float:
    """`--weight-decay`; its range is the command's, which lets nan and infinity pass.

    Raises:
        InputError: it is neither 0 nor a number above.
    """
    value = options["weight_decay"]
    if not math.isfinite(value):
        raise InputError(f"--weight-decay {value:g}: wanted a number from 0")
    return value


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
        + (f"retain {job.retain.source}: {len(job.retain.answered)} rows" if job.retain
           else "no retain rows"),
        f"{job.recipe.n_steps} steps of {job.recipe.n_accumulate} x {job.batch_size} rows "
        f"({n_sequences} forget sequences), lr {job.recipe.lr:g} after {job.recipe.n_warmup} steps",
        f"{training_bytes(weights, copies=copies) / 1e9:.2f} GB for weights, gradients and moments "
        f"on {job.device}; writes {out}",
    ]  # fmt: skip
