"""`sweep` behind the options: plan, run, look, collect."""

import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import notice
from lensaudit.errors import PartialError
from lensaudit.files import canonical_json
from lensaudit.sweep.collect import collect
from lensaudit.sweep.engines import engine_of
from lensaudit.sweep.layout import Layout
from lensaudit.sweep.plan import Conditions, Plan, read_plan, write_plan
from lensaudit.sweep.run import RunOptions, run_sweep
from lensaudit.sweep.status import line_of, problem_lines, status_of
from lensaudit.sweep.upkeep import garbage, remove, retry

WATCH_S = 10.0
_SHOWN = 20


def make(
    models: Sequence[str],
    files: Sequence[Path],
    *,
    variants: str,
    metrics: str,
    full: str | None,
    retain: str | None,
    registry: Path | None,
    out: Path,
    as_json: bool,
    dry_run: bool,
    **conditions: Any,
) -> None:
    """Write a plan and say what it holds."""
    from lensaudit.models.registry import load_registry
    from lensaudit.sweep.planning import plan_sweep
    from lensaudit.sweep.select import listed

    named = None if metrics == "all" else tuple(_list(metrics))
    known = {one.name for one in fields(Conditions)}
    given: dict[str, Any] = {
        key: str(v) if isinstance(v, Path) else v for key, v in conditions.items()
    }
    plan = plan_sweep(
        [*models, *(name for file in files for name in listed(file))],
        variants=_list(variants),
        conditions=Conditions(
            metrics=named or (), **{key: value for key, value in given.items() if key in known}
        ),
        registry=load_registry(registry),
        full=full,
        retain=retain,
    )
    if not dry_run:
        write_plan(out, plan)
    _print_plan(Layout(out), plan, as_json=as_json)
    if not dry_run and not as_json:
        click.echo(f"written: {Layout(out).plan}")


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def dry(folder: Path, *, as_json: bool) -> None:
    """Say what a run would do."""
    _print_plan(Layout(folder), read_plan(folder), as_json=as_json)


def _print_plan(layout: Layout, plan: Plan, *, as_json: bool) -> None:
    from lensaudit.sweep.forecast import forecast_of, lines_of

    forecast = forecast_of(layout, plan)
    click.echo(canonical_json(forecast) if as_json else "\n".join(lines_of(forecast)))


def go(folder: Path, *, engine: str, as_json: bool, **options: Any) -> None:
    """Run a sweep; its status at the end, whatever the end is."""
    layout, plan = Layout(folder), read_plan(folder)
    run_options = RunOptions(
        engine=engine,
        max_hours=options.pop("max_hours"),
        quota_bytes=options.pop("quota"),
        offline=options.pop("offline"),
    )
    made = engine_of(engine, plan, report=notice, **options)
    try:
        run_sweep(folder, made, run_options, notice)
    finally:
        status = status_of(layout, plan)
        click.echo(canonical_json(status) if as_json else line_of(status))


def show_status(folder: Path, *, watch: bool, as_json: bool) -> None:
    """Print the status, again and again with `watch`."""
    plan = read_plan(folder)
    while True:
        status = status_of(Layout(folder), plan)
        if as_json:
            click.echo(canonical_json(status))
        else:
            click.echo(line_of(status))
            for line in problem_lines(status, _SHOWN):
                click.echo(line)
        if not watch or not status["running"]:
            return
        time.sleep(WATCH_S)


def set_back(folder: Path, models: Sequence[str], *, redo: bool) -> None:
    """Let failed units be tried again."""
    chosen = retry(Layout(folder), read_plan(folder), models, redo=redo)
    click.echo(f"{len(chosen)} units will be tried again")
    for unit in chosen:
        click.echo(f"  {unit.label}")


def gather(folder: Path, out: Path | None, *, allow_missing: bool, as_json: bool) -> None:
    """Collect, and say how many planned units the numbers rest on."""
    found = collect(Layout(folder), read_plan(folder), out, allow_missing=allow_missing)
    for line in found.notes:
        notice(line)
    for label, why in found.missing.items():
        notice(f"missing: {label}: {why}")
    if as_json:
        content = {"n_planned": found.n_planned, "n_done": found.n_done}
        click.echo(canonical_json({**content, "missing": dict(found.missing)}))
    else:
        click.echo(f"{found.n_done} of {found.n_planned} planned units")
        click.echo(f"written: {found.folder}")


def clean(folder: Path, *, others: bool, dry_run: bool) -> None:
    """Remove leftovers, or say which there are."""
    paths = garbage(Layout(folder), read_plan(folder), others=others)
    for path in paths:
        click.echo(f"{'would remove' if dry_run else 'removed'}: {path}")
    freed = 0 if dry_run else remove(paths)
    click.echo(f"{len(paths)} leftovers" + ("" if dry_run else f", {freed / 1e6:.1f} MB freed"))


def fetch_all(folder: Path, quota: int | None) -> None:
    """Fetch what is left to do; failures are named at the end."""
    from lensaudit.sweep.weights import fetch_left

    failed = fetch_left(Layout(folder), read_plan(folder), quota, notice)
    if failed:
        named = "; ".join(failed.values())
        raise PartialError(f"{len(failed)} checkpoints were not fetched: {named}")


def check_again(
    folder: Path, *, sample: int, seed: int, tolerance: float | None, as_json: bool
) -> None:
    """Compute random units again and say how far they are off."""
    from lensaudit.sweep.verify import refuse, verify_sweep

    found = verify_sweep(
        Layout(folder), read_plan(folder), sample=sample, seed=seed, tolerance=tolerance,
        report=notice,
    )  # fmt: skip
    if as_json:
        click.echo(canonical_json([asdict(one) for one in found]))
    else:
        for one in found:
            worst = f"{one.worst:.2e} at {one.metric}" if one.metric else "none"
            click.echo(f"{one.unit}: {one.n_values} values, largest difference {worst}")
    refuse(found)
