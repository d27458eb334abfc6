"""`lensaudit data`: rows of published sets become rows that every command reads."""

from pathlib import Path
from typing import get_args

import click

from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import emit, notice, say
from lensaudit.doors.data import ConvertSettings, SetName


@click.group()
def data() -> None:
    """Data sets of others: convert."""


@data.command()
@click.argument("name", metavar="SET", type=click.Choice(get_args(SetName)))
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@options(ConvertSettings)
@shared("force", "json")
def convert(settings: ConvertSettings, force: bool, as_json: bool) -> None:
    """Make rows for --data of the FILES of a published SET, your own copy.

    SET is tofu, muse, wmdp, rwku, lume, pistol, knowundo or elude; files are JSON lists or JSONL.
    What a file's rows are for is told by its name (retain…, neighbor…: to keep). Rows to keep go to
    a file of their own. What is left out is counted by reason; rows without a span are for
    `lensaudit annotate`.
    """
    from lensaudit.doors.data import convert as write

    found = write(settings, force=force)
    if as_json:
        written = {half: {"out": str(at), "n": n} for half, (at, n) in found.written.items()}
        emit(vars(found) | {"written": written})
        return
    for half, (place, n) in found.written.items():
        say(f"written: {place} ({n} rows to {half})")
    for file, half in found.read.items():
        say(f"{file}: rows to {half}")
    for why, n in found.dropped.items():
        say(f"left out: {n} rows: {why}")
    say(f"without a span: {found.without_span}")
    for note in found.notes:
        notice(note)
    first, *_ = (place for place, _ in found.written.values())
    todo = f"annotate {first} -o forget.json" if found.without_span else f"audit --data {first}"
    say(f"next: lensaudit {todo}")
