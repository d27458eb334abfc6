"""`relearn` and `quantize` behind the options: resolve, plan, attack, print."""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lensaudit.attacks import recovery, relearn, rounding
from lensaudit.attacks.before_after import Auditing, Shift
from lensaudit.attacks.checkpoints import stored_dtype
from lensaudit.attacks.quantize import engine_of
from lensaudit.attacks.relearn import DEMO_RELEARNING, Relearning
from lensaudit.cli.unlearning import FORMATS, decay_of, is_demo, positive
from lensaudit.errors import InputError
from lensaudit.files import canonical_json, printable, read_json, read_text, slug
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.device import resolve_device
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.prepare import default_anchor, default_data
from lensaudit.unlearn.job import finished, kept_losses
from lensaudit.unlearn.memory import n_parameters, training_bytes
from lensaudit.unlearn.rows import load_rows
from lensaudit.unlearn.train import Progress

Notice = Callable[[str], None]


def run_quantize(
    *, out: Path, notice: Notice, as_json: bool, dry_run: bool, **options: Any
) -> None:
    """Make the checkpoint, or say that it is there."""
    start = open_checkpoint(resolve(options["model"], load_registry(options["registry"])))
    job = rounding.Job(
        start=start,
        method=options["method"],
        engine=options["engine"],
        stored=stored_dtype(start, options["store"]),
        device=resolve_device(options["device"]),
    )
    rounding.check(job)
    if dry_run:
        click.echo(
            f"{job.method} of {start.spec.name}, {n_parameters(start.folder):,} weights, by "
            f"{engine_of(job.engine)}, kept as {job.stored}; writes {out}"
        )
        return
    if finished(job, out):
        notice(f"{out} holds this model already; nothing to do")
        if not as_json:
            return
    else:
        rounding.quantize(job, out)
    _print_errors(job, out, as_json=as_json)


def _print_errors(job: rounding.Job, out: Path, *, as_json: bool) -> None:
    """What a finished folder says of its rounding."""
    made = read_json(out / "manifest.json")["options"]
    path = out / "errors.csv"
    rows = csv.DictReader(read_text(path).splitlines())
    try:
        errors = {row["matrix"]: float(row["relative_error"]) for row in rows}
        worst = max(errors, key=errors.__getitem__)
    except (KeyError, TypeError, ValueError) as reason:
        raise InputError(f"{path}: damaged ({reason}); make the model again elsewhere") from reason
    error, n = made["relative_error"], len(errors)
    summary = {"out": str(out), "method": job.method, "engine": made["engine"].split()[0],
               "matrices": n, "relative_error": error,
               "worst": {"matrix": worst, "relative_error": errors[worst]}}  # fmt: skip
    click.echo(
        canonical_json(summary)
        if as_json
        else f"{out}: {job.method} of {job.start.spec.name}, {n} matrices, relative weight "
        f"error {error:.4f} (worst {errors[worst]:.4f}, {worst})"
    )


def run_relearn(
    *,
    out: Path | None,
    audit: bool,
    notice: Notice,
    progress: Callable[[str, int, int], None],
    as_json: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Make the checkpoint, the audit, or both."""
    job = job_of(options, options["model"])
    relearn.check(job)
    if dry_run:
        click.echo("\n".join(plan_of(job, out)))
        return

    def report(done: Progress) -> None:
        progress("step", done.step, done.n_steps)

    if not audit:
        assert out is not None  # the command asks for one of the two
        _checkpoint(job, out, report, notice, as_json=as_json)
        return
    auditing = Auditing(
        full=options["full"] or default_anchor("full", [options["model"]]),
        retain=options["retain"] or default_anchor("retain", [options["model"]]),
        data=options["data"] or default_data(options["model"]),
        **{name: options[name] for name in ("registry", "dtype", "activations")},
        device=job.device,
        notice=notice,
        progress=progress,
    )
    work = out / "audit" if out else Path("experiments/out") / f"{slug(options['model'])}-relearn"
    jobs = {
        name: job_of(options, name) for name in dict.fromkeys((options["model"], auditing.retain))
    }
    shifts = recovery.recovery(jobs, auditing, work, keep=out, report=report)
    _print(shifts, work, as_json=as_json)


def _checkpoint(
    job: relearn.Job, out: Path, report: relearn.Report, notice: Notice, *, as_json: bool
) -> None:
    if finished(job, out):
        notice(f"{out} holds this model already; nothing to do")
        if not as_json:
            return
        losses = kept_losses(out)
    else:
        losses = relearn.relearn(job, out, report=report)
    summary = {"out": str(out), "steps": len(losses), "first_loss": losses[0],
               "last_loss": losses[-1]}  # fmt: skip
    click.echo(
        canonical_json(summary)
        if as_json
        else f"{out}: {job.start.spec.name} relearned, {len(losses)} steps, "
        f"loss {losses[0]:.4f} -> {losses[-1]:.4f}"
    )


def job_of(options: Mapping[str, Any], model: str) -> relearn.Job:
    """The relearning run that the options describe, on one model.

    Raises:
        InputError: whatever is wrong with names, files or numbers.
    """
    start = open_checkpoint(resolve(model, load_registry(options["registry"])))
    demo = is_demo(options["model"])
    settings = Relearning(
        lr=positive(options, "lr", DEMO_RELEARNING.lr if demo else Relearning().lr),
        n_epochs=positive(options, "epochs", 1.0),
        batch_size=options["batch_size"],
        n_accumulate=options["accumulate"],
        weight_decay=decay_of(options),
        max_grad_norm=positive(options, "max_grad_norm", 1.0),
        formats=FORMATS[options["formats"] or ("both" if demo else "chat")],
        seed=options["seed"],
    )
    return relearn.Job(
        start=start,
        rows=load_rows(options["data"] or default_data(options["model"]), part="forget"),
        settings=settings,
        stored=stored_dtype(start, options["store"]),
        device=resolve_device(options["device"]),
        save_every=options["save_every"],
    )


def plan_of(job: relearn.Job, out: Path | None) -> list[str]:
    """What would be done, line by line."""
    recipe, settings = job.recipe, job.settings
    weights = n_parameters(job.start.folder)
    return [
        f"relearning of {job.rows.source} by {job.start.spec.name}: {len(job.rows.answered)} rows "
        f"as {'+'.join(settings.formats)}",
        f"{recipe.n_steps} steps of {settings.n_accumulate} x {settings.batch_size} rows, "
        f"lr {recipe.lr:g}",
        f"{training_bytes(weights, copies=1) / 1e9:.2f} GB for weights, gradients and moments on "
        f"{job.device}; writes {out or 'the audit alone'}",
    ]


def _print(shifts: tuple[Shift, ...], work: Path, *, as_json: bool) -> None:
    if as_json:
        click.echo(canonical_json([one.as_json() for one in shifts]))
        return
    table = Table(title="before -> after relearning; uds: 1 forgotten, the others: high knows")
    table.add_column("model")
    names = list(shifts[0].before)
    for name in names:
        table.add_column(name, justify="right")
    for one in shifts:
        cells = (f"{one.before[name]:.3f} -> {one.after[name]:.3f}" for name in names)
        table.add_row(escape(printable(one.model)), *cells)
    Console(highlight=False, width=100).print(table)
    click.echo(f"written: {work}")
