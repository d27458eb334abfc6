"""How commands speak: results, remarks and progress, alike for all of them.

Names come from anybody's folders and files. Nothing here reads markup in them, and control
characters never reach the terminal. In a pipe, which has no width, lines are as long as they are.
How numbers, tables and sentences look is in `lensaudit/screen`.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lensaudit.screen.cells import name
from lensaudit.text import canonical_json, escaped, printable

if TYPE_CHECKING:
    from lensaudit.progress import Progress
    from lensaudit.screen.tables import Part

Found = TypeVar("Found")
LEVELS = ("debug", "info", "warning", "error")
"""What of stderr is shown: also other packages' warnings, progress, remarks, errors alone."""
QUIET_SECONDS = 10
"""How long a pipe hears nothing of a long stage."""


def say(text: object, *, err: bool = False) -> None:
    """A line of the result on stdout; whatever names are in it."""
    click.echo(printable(str(text)), err=err)


def emit(value: Any, *, pretty: bool = False) -> None:
    """Print the result of `--json`: one document, on one line or indented for reading."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) if pretty else None
    click.echo(canonical_json(value) if text is None else escaped(text))


def written(path: object) -> None:
    """Say in which folder the files are."""
    say(f"written: {path}")


def answer(
    document: Any,
    parts: "Iterable[Part]",
    folder: object = None,
    *,
    as_json: bool,
    pretty: bool = False,
) -> None:
    """The result: a document, or its tables and lines, and where its files are."""
    if as_json:
        emit(document, pretty=pretty)
        return
    tell(parts)
    if folder is not None:
        written(folder)


def one_or_all(documents: Sequence[Any]) -> Any:
    """The document of the only model, or a list of all."""
    return documents[0] if len(documents) == 1 else documents


def is_quiet(least: str = "warning") -> bool:
    """Whether what is of this level is not to be heard: of remarks, with `lensaudit --quiet`."""
    context = click.get_current_context(silent=True)
    said = {} if context is None else context.find_root().params
    level = "error" if said.get("quiet") else said.get("log_level") or "info"
    return LEVELS.index(level) > LEVELS.index(least)


class _Remarks(logging.Handler):
    """What the package logs, and a plugin below its name, is a remark on the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, if its level is heard."""
        notice(record.getMessage())


@contextmanager
def listening(level: str) -> Iterator[None]:
    """While a command runs its terminal shows what is logged from a level on."""
    global _doing
    if level in ("warning", "error"):
        _doing = None
    logger, remarks = logging.getLogger("lensaudit"), _Remarks()
    before = logger.level
    logger.setLevel(level.upper())
    logger.addHandler(remarks)
    try:
        yield
    finally:
        logger.removeHandler(remarks)
        logger.setLevel(before)


def notice(text: str, *, again: bool = False) -> None:
    """A remark that changes nothing of the result, on stderr; said once unless `again`."""
    context = click.get_current_context(silent=True)
    told = set() if context is None else context.find_root().meta.setdefault("told", set())
    # steps that open the same models remark the same
    if not is_quiet() and (again or text not in told):
        say(f"lensaudit: {name(text)}", err=True)
    told.add(text)


def tell(parts: "Iterable[Part]") -> None:
    """Print what is shown of a result: its tables and lines, in order."""
    from lensaudit.screen.tables import console

    screen = console()
    for part in parts:
        say(name(part)) if isinstance(part, str) else screen.print(part)


def listing(rows: Iterable[Sequence[str]]) -> None:
    """Rows in columns, as other programs read them."""
    from lensaudit.screen.tables import lines_of

    for line in lines_of(rows):
        click.echo(line)


class ProgressBar(AbstractContextManager["ProgressBar"]):
    """Progress on stderr: a bar with the time left; in a pipe a line a stage, or each 10 s."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}
        self._told = time.monotonic()

    def __call__(self, progress: "Progress") -> None:
        """Report how much of a stage is done."""
        if is_quiet("info"):
            return
        what, done, total = name(progress.stage), progress.done, progress.of
        if sys.stderr.isatty():
            self._draw(what, done, total)
            return
        if done == total or time.monotonic() - self._told >= QUIET_SECONDS:
            self._told = time.monotonic()
            click.echo(f"{what}: {done}/{total}", err=True)

    def _draw(self, what: str, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = _bar()
            self._bar.start()
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total)
        self._bar.update(self._tasks[what], completed=done)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> Any:
    """A bar with its rate and the time left."""
    from rich import progress
    from rich.text import Text

    from lensaudit.screen.tables import console

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            return Text(f"{task.speed:.3g}/s" if task.speed else "")

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        Rate(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
    )


_ERASE = "\r\x1b[2K"


_doing: list[str] | None = None
"""What is being done, the innermost last; None: nothing is shown."""


def announce(arguments: Sequence[str]) -> None:
    """From now on say what is done before there is a result.

    Not where nobody looks, and not for `-q`.
    """
    global _doing
    quiet = any(one in ("-q", "--quiet") for one in arguments)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not quiet:
        _doing = []


LOOKING = "looking for a finished run"


def looked_up(call: Callable[[], Callable[..., Found]], *asked: Any, **how: Any) -> Found:
    """The result of a function of the library, read or made; told remarks and progress.

    `call` gives the function, whose module is imported while a person reads what is looked for.
    """
    with during(LOOKING):
        found = call()
    with ProgressBar() as bar:
        return found(*asked, notice=notice, progress=bar, **how)


@contextmanager
def during(what: str) -> Iterator[None]:
    """Say what is done before anything else can be said."""
    if _doing is None:
        yield
        return
    _doing.append(what)
    _show(what)
    try:
        yield
    finally:
        _doing.pop()
        _show(_doing[-1] if _doing else "")


def _show(what: str) -> None:
    sys.stderr.write(f"{_ERASE}{what and f'{what} …'}")
    sys.stderr.flush()
