"""`lensaudit sweep`: many checkpoints, one plan."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.filesize import decimal as size

from lensaudit.cli.options import ByteSize, SettingOption, options, shared
from lensaudit.cli.terminal import emit, notice, say, tell, written
from lensaudit.errors import PartialError
from lensaudit.sweep.settings import CheckSettings, PlanSettings, RunSettings

if TYPE_CHECKING:
    from lensaudit.sweep.plan import Plan, SweepFolder

FOLDER = click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
WATCH_S = 10.0
SHOWN = 20


@click.group()
def sweep() -> None:
    """Audit many checkpoints: plan, run on any engine, look, collect.

    A unit is one checkpoint in one variant with all its scores. Finished units are never done
    again, failed ones never look finished. Exit code 3: some units failed, they are named.
    """


@sweep.command("plan")
@click.argument("models", nargs=-1)
@options(PlanSettings)
@shared("json", "dry_run")
def plan(settings: PlanSettings, as_json: bool, dry_run: bool) -> None:
    """Write the plan of a sweep: MODELS are names, folders, patterns or role:NAME.

    idknll_*_ep10 is a pattern, role:pool_knows all of a role. The anchors are added. A plan never
    changes; the same command gives the same plan.
    """
    from lensaudit.sweep.plan import SweepFolder, write_plan
    from lensaudit.sweep.planning import plan_of

    made, layout = plan_of(settings, notice), SweepFolder(settings.out)
    if not dry_run:
        write_plan(settings.out, made)
    print_plan(layout, made, as_json=as_json)
    if not dry_run and not as_json:
        written(layout.plan)


@sweep.command("run")
@FOLDER
@options(RunSettings)
@shared("json", "dry_run")
def run(folder: Path, settings: RunSettings, as_json: bool, dry_run: bool) -> None:
    """Do what is left of a sweep. Run it again after an interruption, or beside another run."""
    from lensaudit.sweep.engines import engine_of
    from lensaudit.sweep.run import RunOptions, run_sweep

    layout, planned = _opened(folder)
    if dry_run:
        print_plan(layout, planned, as_json=as_json)
        return
    engine = engine_of(settings, planned, report=notice)
    limits = RunOptions(
        engine=settings.engine,
        max_hours=settings.max_hours,
        quota_bytes=settings.quota,
        offline=settings.offline,
    )
    try:
        run_sweep(folder, engine, limits, notice)
    finally:  # whatever the end is
        print_status(layout, planned, as_json=as_json)


@sweep.command("status")
@FOLDER
@click.option("--watch", is_flag=True, help="Again every 10 seconds until nothing runs.")
@shared("json")
def status(folder: Path, watch: bool, as_json: bool) -> None:
    """Say how many units are done, running, failed and left, and why some failed."""
    from lensaudit.sweep.status import problem_lines

    layout, planned = _opened(folder)
    while True:
        found = print_status(layout, planned, as_json=as_json)
        for line in [] if as_json else problem_lines(found, SHOWN):
            say(line)
        if not watch or not found["running"]:
            return
        time.sleep(WATCH_S)


@sweep.command("retry")
@FOLDER
@click.argument("models", nargs=-1)
@click.option(
    "--redo",
    cls=SettingOption,
    typed=True,
    is_flag=True,
    help="Finished units of MODELS too: their results go.",
)
def retry(folder: Path, models: tuple[str, ...], redo: bool) -> None:
    """Let failed units be tried again by the next run: all, or those of MODELS."""
    from lensaudit.sweep.upkeep import retry as set_back

    chosen = set_back(*_opened(folder), models, redo=redo)
    say(f"{len(chosen)} units will be tried again")
    for unit in chosen:
        say(f"  {unit.label}")


@sweep.command("collect")
@FOLDER
@click.option("--out", "-o", type=click.Path(path_type=Path), help="[default: FOLDER/results]")
@click.option("--allow-missing", is_flag=True, help="Go on where planned units have no result.")
@shared("json")
def collect(folder: Path, out: Path | None, allow_missing: bool, as_json: bool) -> None:
    """Write one table of all numbers, and the folders that `meta` and `report` read."""
    from lensaudit.sweep.collect import collect as gather

    found = gather(*_opened(folder), out, allow_missing=allow_missing)
    for line in found.notes:
        notice(line)
    for label, why in found.missing.items():
        notice(f"missing: {label}: {why}")
    if as_json:
        content = {"n_planned": found.n_planned, "n_done": found.n_done}
        emit({**content, "missing": dict(found.missing), "verdicts": found.verdicts})
    else:
        tell(one["sentence"] for one in found.verdicts)
        say(f"{found.n_done} of {found.n_planned} planned units")
        written(found.folder)


@sweep.command("gc")
@FOLDER
@click.option(
    "--others", cls=SettingOption, typed=True, is_flag=True, help="Results of other plans too."
)
@shared("dry_run")
def gc(folder: Path, others: bool, dry_run: bool) -> None:
    """Remove leftovers of finished units and dead workers; results stay.

    A leftover that holds a file of others stays whole, and that is named.
    """
    from lensaudit.sweep.upkeep import garbage, remove

    layout, plan = _opened(folder)
    left = garbage(layout, plan, others=others)
    for path in left.found:
        say(f"{'would remove' if dry_run else 'removed'}: {path}")
    for line in left.strange:
        say(line)
    freed = "" if dry_run else f", {size(remove(layout, left.found))} freed"
    say(f"{len(left.found)} leftovers{freed}")


@sweep.command("fetch")
@FOLDER
@click.option("--quota", type=ByteSize(), help="At most. [default: all that is needed]")
def fetch(folder: Path, quota: int | None) -> None:
    """Fetch the checkpoints of all units that are left, for `run --offline` without a network."""
    from lensaudit.sweep.weights import fetch_left

    failed = fetch_left(*_opened(folder), quota, notice)
    if failed:
        named = "; ".join(failed.values())
        raise PartialError(f"{len(failed)} checkpoints were not fetched: {named}")


@sweep.command("verify")
@FOLDER
@options(CheckSettings)
@shared("json")
def verify(folder: Path, settings: CheckSettings, as_json: bool) -> None:
    """Compute random finished units again from nothing and compare. Exit code 4: they differ."""
    from lensaudit.sweep.verify import refuse, verify_sweep

    found = verify_sweep(*_opened(folder), **vars(settings), report=notice)
    if as_json:
        emit([asdict(one) for one in found])
    for one in [] if as_json else found:
        worst = f"{one.worst:.2e} at {one.metric}" if one.metric else "none"
        say(f"{one.unit}: {one.n_values} values, largest difference {worst}")
    refuse(found)


def _opened(folder: Path) -> tuple["SweepFolder", "Plan"]:
    from lensaudit.sweep.plan import SweepFolder, read_plan

    return SweepFolder(folder), read_plan(folder)


def print_plan(layout: "SweepFolder", planned: "Plan", *, as_json: bool) -> None:
    """What a run would do."""
    from lensaudit.sweep.planning import forecast_of, lines_of

    forecast = forecast_of(layout, planned)
    emit(forecast) if as_json else say("\n".join(lines_of(forecast)))


def print_status(layout: "SweepFolder", planned: "Plan", *, as_json: bool) -> dict[str, Any]:
    """One line, or the document; returned too."""
    from lensaudit.sweep.status import line_of, status_of

    found = status_of(layout, planned)
    emit(found) if as_json else say(line_of(found))
    return found
