"""Rows of another shape than lists of objects: tables, columns, a list inside an object."""

import csv
import io
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lensaudit.files import parse_json

TABLES = {".csv": ",;\t|", ".tsv": "\t", ".tab": "\t"}
"""Suffix -> signs of which one stands between the cells of a line."""
_JSON = ("idx", "paraphrased_question", "paraphrased_answer", "perturbed_answer", "placebos")
"""Columns whose cells are a number or a list of texts, in JSON."""


def table_rows(text: str, signs: str) -> tuple[list[tuple[str, Any]], list[str]]:
    """The rows of a table by line, and what is wrong with others; an empty cell is none."""
    sign = max(signs, key=text.partition("\n")[0].count)
    lines = csv.reader(io.StringIO(text), delimiter=sign, strict=True)
    rows, problems = [], []
    try:
        names = next(lines, [])
        for cells in filter(None, lines):
            where = f"line {lines.line_num}"
            if len(cells) != len(names):
                problems.append(f"{where}: has {len(cells)} cells, line 1 has {len(names)}")
            pairs = zip(names, cells, strict=False)
            rows.append((where, {k: _cell(k, one) for k, one in pairs if one or k == "prefix"}))
    except csv.Error as error:
        problems.append(f"line {lines.line_num} is no line of a table ({error})")
    return rows, problems


def _cell(name: str, text: str) -> Any:
    with suppress(ValueError):
        return parse_json(text) if name in _JSON else text
    return text


def rows_within(value: Any) -> list[Any] | None:
    """The rows of an object: its one list of objects, or its columns; None: it holds none.

    >>> rows_within({"data": [{"idx": 0}]}), rows_within({"idx": [0], "entity": {"0": "Ada"}})
    ([{'idx': 0}], [{'idx': 0, 'entity': 'Ada'}])
    """
    inner = [*value.values()] if isinstance(value, Mapping) else []
    lists = [[*one.values()] if isinstance(one, Mapping) else one for one in inner]
    lists = [one for one in lists if isinstance(one, list)]
    objects = [
        one
        for one in inner
        if isinstance(one, list) and any(isinstance(row, Mapping) for row in one)
    ]
    if objects:
        return objects[0] if len(objects) == 1 else None
    whole = inner and len(lists) == len(inner) and len({len(one) for one in lists}) == 1
    return (
        [dict(zip(value, row, strict=True)) for row in zip(*lists, strict=True)] if whole else None
    )
