"""How numbers, names and intervals look, alike in every table and sentence.

Names come from anybody's folders and files: control characters never reach the terminal.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lensaudit.text import printable

BLOCKS = "_▁▂▃▄▅▆▇█"


def number(value: float | int | None, digits: int = 3) -> str:
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
    """Cell for a missing interval: which unit had too few.

    >>> no_interval({"ci95": None, "ci95_why": "3 authors: no interval"}), no_interval({})
    ('3 authors: no interval', '–')
    """
    return row.get(f"{name}_why") or "–"


def brackets(row: Mapping[str, Any], name: str = "ci95", digits: int = 1) -> str:
    """An interval in brackets, or why there is none."""
    ends = row[name]
    return f"[{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]" if ends else no_interval(row, name)


def name(text: object) -> str:
    r"""A name from a folder, a file or the Hub, on one line and without terminal escapes.

    >>> name("x[/lr]\x1b[31m"), name("two\nlines")
    ('x[/lr][31m', 'two lines')
    """
    return " ".join(printable(str(text)).splitlines())


def fields(values: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """A line for each name and value."""
    for key, value in values.items():
        yield f"{indent}{name(key)}: {name(value)}"


def profile(values: Sequence[float | None], top: float) -> str:
    """One character per layer, from a line at 0 to full (`top`).

    >>> profile([0.0, 0.5, 1.0, None], 1.0)
    '_▄█·'
    """
    scale = len(BLOCKS) - 1
    return "".join(
        "·" if v is None else BLOCKS[round(scale * min(1.0, max(0.0, v / top if top else 0.0)))]
        for v in values
    )
