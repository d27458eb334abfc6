"""`lensaudit init`: write the project file, from what lies in a folder."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lensaudit.cli.options import SettingOption, shared
from lensaudit.cli.terminal import emit, notice, say
from lensaudit.errors import InputError, VerificationError
from lensaudit.project import FILE, read_project, strangeness

if TYPE_CHECKING:
    from lensaudit.auditing.discover import Discovered

ASKED = {
    "full": "which model was there before unlearning",
    "retain": "which model never saw the forget rows",
    "forget": "which rows were unlearned",
}
"""Without these nothing can be audited; asked on a terminal, where files do not tell."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option("--force", cls=SettingOption, typed=True, is_flag=True, help=f"Write over {FILE}.")
@shared("json", "dry_run")
def init(folder: Path, force: bool, as_json: bool, dry_run: bool) -> None:
    """Write lensaudit.toml for the models and rows in FOLDER, and check it.

    Roles come from manifests, the registry and folder names, fields from the rows themselves. What
    nobody tells is a comment to fill in; on a terminal it is asked for.
    """
    from lensaudit.auditing.discover import check_project, discover
    from lensaudit.files import write_bytes

    file = folder / FILE
    if file.exists() and not (force or dry_run):
        raise InputError(f"{file}: exists; edit it, or write over it with --force")
    found = discover(folder)
    if dry_run:
        say(found.text())
        return
    if sys.stdin.isatty() and not as_json:
        found = _ask(found)
    write_bytes(file, found.text().encode("utf-8", "backslashreplace"))
    try:
        lines = check_project(read_project(file))
    except InputError as error:
        raise VerificationError(f"{file}: written, but {error}") from error
    if as_json:
        emit({"file": str(file), "says": dict(found.chosen), "open": dict(found.open)})
    else:
        _print(found, file, lines)


def _print(found: "Discovered", file: Path, lines: list[str]) -> None:
    missing = [key for key in ASKED if key in found.open]
    say(f"written: {file}")
    for line in lines:
        say(line)
    if why := strangeness(file):
        notice(f"{file} is read where it is named with --project: {why}")
    if missing:
        notice(f"still to fill in: {', '.join(missing)}")
    elif "forget" in found.chosen:
        say("next: lensaudit annotate, then lensaudit audit")
    else:
        say("next: lensaudit audit")


def _ask(found: "Discovered") -> "Discovered":
    """The same with a person's answers; an empty one leaves it open."""
    for key, question in ASKED.items():
        candidates = found.open.get(key, ())
        if not candidates:
            continue
        shown = ", ".join(f"{n} {one}" for n, one in enumerate(candidates, 1))
        said = click.prompt(f"{question}? ({shown}; empty: later)", default="", show_default=False)
        if said.isdigit() and 0 < int(said) <= len(candidates):
            found = found.with_answer(key, candidates[int(said) - 1])
    return found
