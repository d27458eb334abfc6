"""Rows of another shape than lists of objects: tables, columns, a list inside an object."""

import csv
import io
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lensaudit.text import parse_json

TABLES = {".csv": ",;\t|", ".tsv": "\t", ".tab": "\t"}
"""Suffix -> signs of which one stands between the cells of a line."""
FURTHER = {
    "aliases": "aliases",
    "translated_question": "translations",
    "two_hop": "two_hop",
    "two_hop_answer": "two_hop_answers",
}
"""Columns of a row that attacks ask or look for, and the fields of a fact that hold them."""
LISTS = (
    *("paraphrased_question", "paraphrased_answer", "perturbed_answer", "placebos"),
    *FURTHER,
)
"""Fields that may hold several texts; in a table a list of them, in JSON."""


def table_rows(text: str, signs: str) -> tuple[list[tuple[str, Any]], list[str]]:
    """The rows of a table by line, and what is wrong with others; an empty cell is none."""
    sign = max(signs, key=text.partition("\n")[0].count)
    lines = csv.DictReader(io.StringIO(text), delimiter=sign, strict=True)
    try:
        rows = [(f"line {lines.line_num}", row) for row in lines]
    except csv.Error as error:
        return [], [f"line {lines.line_num} is no line of a table ({error})"]
    if named := [one for one, n in Counter(lines.fieldnames or ()).items() if one and n > 1]:
        return [], [f"line 1 names {', '.join(named)} more than once"]
    apart = [where for where, row in rows if None in row or None in row.values()]
    told = [
        (where, {k: _cell(k, one) for k, one in row.items() if one or k == "prefix"})
        for where, row in rows
    ]
    return told, [f"{where}: has another number of cells than line 1" for where in apart]


def _cell(name: str, text: Any) -> Any:
    with suppress(ValueError, TypeError):
        # beside idx a number alone is a text, as a year
        return (
            parse_json(text)
            if name == "idx" or (name in LISTS and text.strip("-.0123456789 "))
            else text
        )
    return text


def rows_within(value: Any) -> list[Any]:
    """The rows of an object: its one list of objects, or its columns; empty: it holds none.

    Columns are lists, or objects with the same keys in any order.

    >>> rows_within({"data": [{"idx": 0}]}), rows_within({"idx": [0], "entity": {"0": "Ada"}})
    ([{'idx': 0}], [{'idx': 0, 'entity': 'Ada'}])
    """
    inner = [*value.values()] if isinstance(value, Mapping) else []
    columns = [
        one if isinstance(one, Mapping) else {str(n): cell for n, cell in enumerate(one)}
        for one in inner
        if isinstance(one, list | Mapping)
    ]
    objects = [
        one
        for one in inner
        if isinstance(one, list) and any(isinstance(row, Mapping) for row in one)
    ]
    keys = columns[0] if len(columns) == len(inner) and not objects and columns else {}
    is_table = all(one.keys() == keys.keys() for one in columns)
    rows = [
        dict(zip(value, (one[key] for one in columns), strict=True)) for key in keys if is_table
    ]
    return objects[0] if len(objects) == 1 else rows
