"""Tables of texts, in which nothing is read as markup, and where they are printed."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lensaudit.screen.cells import name
from lensaudit.text import printable

PIPE_WIDTH = 1000
"""Columns where there is no terminal: nothing is cut or folded."""
Part = Table | str
"""Of what is shown: a table or a line."""


def table(
    title: str,
    columns: Iterable[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    left: Sequence[str] = (),
) -> Table:
    """A table of rows; columns are flush right but those in `left`, an empty row ends a section."""
    made = Table(title=printable(title) or None)
    for one in columns:
        made.add_column(one, justify="left" if one in left else "right", overflow="fold")
    return filled(made, rows)


def filled(made: Table, rows: Iterable[Sequence[str | Text]]) -> Table:
    """The table with rows added; texts in them may hold anybody's names."""
    for cells in rows:
        if cells:
            made.add_row(*(name(one) if isinstance(one, str) else one for one in cells))
        else:
            made.add_section()
    return made


def as_markdown(made: Table) -> str:
    """The table for a paper or a pull request; nothing in a cell is read as markup."""
    heads = [str(column.header).replace("\n", " ") for column in made.columns]
    ends = ["---" if column.justify == "left" else "---:" for column in made.columns]
    rows = [
        [str(cell) for cell in cells]
        for cells in zip(*(column.cells for column in made.columns), strict=True)
    ]
    lines = [map(markdown_cell, row) for row in (heads, *rows)]
    head, *body = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([head, f"|{'|'.join(ends)}|", *body])


def markdown_cell(text: str) -> str:
    """Text of a model or a data set inside a table."""
    marks = {mark: f"\\{mark}" for mark in "\\|`*_[]"} | {"<": "&lt;", ">": "&gt;"}
    return " ".join(printable(text).translate(str.maketrans(marks)).split())


def dim(text: str) -> Text:
    """A cell that stands back, such as an anchor's name."""
    return styled(text, "dim")


def styled(text: str, style: str) -> Text:
    """A cell in a colour."""
    return Text(name(text), style=style)


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Console that tables are printed on: no markup, no emoji, no colours of its own."""
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "stderr": stderr}
    found = Console(**plain)
    if width is None and found.is_terminal:
        return found
    return Console(**plain, width=width or PIPE_WIDTH)


def lines_of(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows in columns without lines or colours, as other programs read them; none is folded."""
    made = filled(Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0)), rows)
    screen = console(width=PIPE_WIDTH)
    with screen.capture() as captured:
        screen.print(made)
    return [line.rstrip() for line in captured.get().splitlines()]
