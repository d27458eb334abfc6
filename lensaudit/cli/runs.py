"""`lensaudit runs`: what was run, on what, and why two numbers differ."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.filesize import decimal as size

from lensaudit.cli.options import shared
from lensaudit.cli.terminal import emit, listing, say, tell
from lensaudit.errors import InputError
from lensaudit.settings import results_folder

if TYPE_CHECKING:
    from lensaudit.results.run_log import Run

RUN = click.argument("run", type=click.Path(path_type=Path))
RUNS = click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))


@click.group()
def runs() -> None:
    """The log of finished runs, read from the manifests of result folders.

    A RUN is a folder, or its name below the folder of results.
    """


@runs.command("ls")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, file_okay=False))
@click.option("--command", help="Only runs of this command.")
@click.option("--model", help="Only runs in which a model of this name takes part.")
@shared("json")
def list_(folders: tuple[Path, ...], command: str | None, model: str | None, as_json: bool) -> None:
    """List the runs in FOLDERS, the latest first; without FOLDERS all results."""
    from lensaudit.results.run_log import find_runs
    from lensaudit.screen.runs import COLUMNS, columns

    found = [
        one
        for one in find_runs(folders or (results_folder(),))
        if command in (None, one.command) and (model is None or model in one.models.values())
    ]
    if as_json:
        emit([one.document() for one in found], pretty=True)
    elif not found:
        say("no runs; every command that writes a result folder leaves one")
    else:
        listing([COLUMNS, *map(columns, found)])


@runs.command()
@RUN
@shared("json")
def show(run: Path, as_json: bool) -> None:
    """Tell all that is recorded of a RUN."""
    from lensaudit.screen.runs import of_run

    found = _read(run, whole=True)
    if as_json:
        emit(found.document() | {"values": dict(found.values), "manifest": found.manifest})
        return
    tell(of_run(found))


@runs.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@shared("json")
def diff(first: Path, second: Path, as_json: bool) -> None:
    """Which option or which content explains that FIRST and SECOND differ?"""
    from lensaudit.results.run_log import compare
    from lensaudit.screen.runs import of_comparison

    found = compare(_read(first, whole=True), _read(second, whole=True))
    if as_json:
        emit(found.document(), pretty=True)
        return
    tell(of_comparison(found))


@runs.command()
@RUNS
@shared("dry_run", "json")
def rm(runs: tuple[Path, ...], dry_run: bool, as_json: bool) -> None:
    """Delete the folders of RUNS: the files that their manifests name, and no others.

    A folder that holds anything else, or a model, stays as it is; what it holds is named.
    """
    from lensaudit.results.run_log import remove

    found = list(map(_read, runs))
    for one in found:
        remove(one, dry_run=True)  # all are looked at before one is gone
    done = [(one, remove(one, dry_run=dry_run)) for one in found]
    if as_json:
        emit(
            {
                "removed": [{"folder": str(one.folder), "n_bytes": n} for one, n in done],
                "dry_run": dry_run,
            }
        )
        return
    for one, n_bytes in done:
        say(f"{'would remove' if dry_run else 'removed'} {one.folder} ({size(n_bytes)})")


def _read(place: Path, *, whole: bool = False) -> "Run":
    """The run that is meant: a folder, or one below the folder of results."""
    from lensaudit.results.run_log import read_run

    below = results_folder() / place
    if place.is_dir() or not below.is_dir():
        if not place.is_dir():
            raise InputError(f"{place}: no such run; `lensaudit runs ls` lists them")
        return read_run(place, whole=whole)
    return read_run(below, whole=whole)
