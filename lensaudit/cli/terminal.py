"""How commands speak: numbers, names, tables, remarks and progress, alike for all of them.

Names come from anybody's folders and files. Nothing here reads markup in them, and control
characters never reach the terminal. In a pipe, which has no width, lines are as long as they are.
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from lensaudit.files import canonical_json, escaped, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lensaudit.auditing.progress import Progress

PIPE_WIDTH = 1000
"""Columns where there is no terminal: nothing is cut or folded."""
BLOCKS = " ▁▂▃▄▅▆▇█"


def number(value: float | None, digits: int = 3) -> str:
    """A number, or a dash where there is none.

    >>> number(0.5), number(None), number(float("nan"))
    ('0.500', '–', '–')
    """
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def brief(value: float | None) -> str:
    """A number of any size with four significant digits, or a dash.

    >>> brief(12345.678), brief(0.000123456)
    ('1.235e+04', '0.0001235')
    """
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def interval(
    ends: Sequence[float | str | None] | None, missing: str = "–", form: str = ".3f"
) -> str:
    """Both ends of an interval.

    >>> interval((0.25, 0.5)), interval(None), interval(["", ""])
    ('0.250 to 0.500', '–', '–')
    """
    if not ends or not all(isinstance(end, (int, float)) for end in ends):
        return missing
    return " to ".join(format(end, form) for end in ends)


def no_interval(row: Mapping[str, Any], name: str = "ci95") -> str:
    """What stands in a column of intervals where there is none: who was too few.

    >>> no_interval({"ci95": None, "ci95_why": "3 authors: no interval"}), no_interval({})
    ('3 authors: no interval', '–')
    """
    return row.get(f"{name}_why") or "–"


def size(n_bytes: int) -> str:
    """Bytes for people, in powers of 1000.

    >>> size(999), size(141_000_000)
    ('999 bytes', '141.0 MB')
    """
    from rich.filesize import decimal

    return decimal(n_bytes)


def name(text: object) -> str:
    r"""A name from a folder, a file or the Hub, on one line and without terminal escapes.

    >>> name("x[/lr]\x1b[31m"), name("two\nlines")
    ('x[/lr][31m', 'two lines')
    """
    return " ".join(printable(str(text)).splitlines())


def profile(values: Sequence[float | None], top: float) -> str:
    """One character per layer, from blank (0) to full (`top`).

    >>> profile([0.0, 0.5, 1.0, None], 1.0)
    ' ▄█·'
    """
    scale = len(BLOCKS) - 1
    return "".join(
        "·" if v is None else BLOCKS[round(scale * min(1.0, max(0.0, v / top if top else 0.0)))]
        for v in values
    )


def say(text: object, *, err: bool = False) -> None:
    """A line of the result on stdout; whatever names are in it."""
    click.echo(printable(str(text)), err=err)


def emit(value: Any, *, pretty: bool = False) -> None:
    """The result of `--json`: one document, on one line or for people to read too."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) if pretty else None
    click.echo(canonical_json(value) if text is None else escaped(text))


def written(path: object) -> None:
    """Where the files are."""
    say(f"written: {path}")


def is_quiet() -> bool:
    """Whether `lensaudit --quiet` was asked for: results and errors only."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().params.get("quiet"))


def notice(text: str) -> None:
    """A remark that changes nothing of the result, on stderr."""
    if not is_quiet():
        say(f"lensaudit: {text}", err=True)


def console(*, stderr: bool = False, width: int | None = None) -> "Console":
    """Where tables are printed: no markup, no emoji, no colours of its own."""
    from rich.console import Console

    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "stderr": stderr}
    found = Console(**plain)
    if width is None and found.is_terminal:
        return found
    return Console(**plain, width=width or PIPE_WIDTH)


def table(title: str, columns: Iterable[str], *, left: Sequence[str] = ()) -> "Table":
    """An empty table; columns are flush right but those in `left`."""
    from rich.table import Table

    made = Table(title=printable(title) or None)
    for one in columns:
        made.add_column(one, justify="left" if one in left else "right", overflow="fold")
    return made


def row(table: "Table", *cells: "str | Text") -> None:
    """Add a row; texts in it may hold anybody's names."""
    table.add_row(*(printable(cell) if isinstance(cell, str) else cell for cell in cells))


def dim(text: str) -> "Text":
    """A cell that stands back, such as an anchor's name."""
    return styled(text, "dim")


def styled(text: str, style: str) -> "Text":
    """A cell in a colour."""
    from rich.text import Text

    return Text(printable(text), style=style)


def show(*tables: "Table") -> None:
    """Print tables on stdout."""
    screen = console()
    for one in tables:
        screen.print(one)


def listing(rows: Iterable[Sequence[str]]) -> None:
    """Rows in columns without lines or colours, as other programs read them; none is folded."""
    from rich.table import Table

    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for cells in rows:
        row(made, *cells)
    screen = console(width=PIPE_WIDTH)
    with screen.capture() as captured:
        screen.print(made)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def fields(values: Mapping[str, object], indent: str = "") -> None:
    """A line for each name and value."""
    for key, value in values.items():
        say(f"{indent}{name(key)}: {name(value)}")


class ProgressBar:
    """Progress on stderr: one bar with rate and time left on a terminal, else a line a tenth."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}
        self._tenths: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report `done` of `total`."""
        if is_quiet():
            return
        what = name(what)
        if sys.stderr.isatty():
            self._draw(what, done, total)
            return
        tenth = 10 * done // max(1, total)
        if self._tenths.get(what) != tenth:
            self._tenths[what] = tenth
            click.echo(f"{what}: {done}/{total}", err=True)

    def tell(self, progress: "Progress") -> None:
        """Report how much of a stage is done."""
        self(progress.stage, progress.done, progress.of)

    def _draw(self, what: str, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = _bar()
            self._bar.start()
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total)
        self._bar.update(self._tasks[what], completed=done)

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> Any:
    """A bar with its rate and the time left."""
    from rich import progress
    from rich.text import Text

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
