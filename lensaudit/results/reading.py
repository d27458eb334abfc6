"""Files of results, read with every surprise turned into one line."""

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import parse_json, read_json, read_text

JsonObject = Mapping[str, Any]


def json_object(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object.

    Raises:
        InputError: missing, unreadable, or another value.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds {type(content).__name__}, wanted a JSON object")
    return content


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a finished JSONL file.

    Raises:
        InputError: a line is not a JSON object; names it.
    """
    rows = []
    for n, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise InputError(f"{path}: line {n} is not JSON; was it cut?") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}: line {n} is not a JSON object")
        rows.append(row)
    return rows


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header."""
    found = csv.DictReader(io.StringIO(read_text(path)))
    return [{str(key): value or "" for key, value in row.items()} for row in found]


def number(value: Any, where: str) -> float | None:
    """A finite number, or None for null.

    Raises:
        InputError: anything else.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{where}: found {str(value)[:60]!r}, wanted a number or null")
    return float(value)


def part(record: Any, *names: str) -> dict[str, Any]:
    """An object inside an object inside …; empty where there is none.

    >>> part({"inputs": {"model": {"name": "a"}}}, "inputs", "model"), part({}, "inputs")
    ({'name': 'a'}, {})
    """
    for name in names:
        record = record.get(name) if isinstance(record, Mapping) else None
    return dict(record) if isinstance(record, Mapping) else {}


def need(content: JsonObject, where: object, *names: str) -> None:
    """Refuse a record that lacks a field.

    Raises:
        InputError: names the first one missing.
    """
    for name in names:
        if name not in content:
            raise InputError(f"{where}: has no {name!r}")


def brief(value: Any, digits: int = 6) -> Any:
    """The same value with floats at `digits` significant digits: the page shows fewer.

    >>> brief({"a": [0.123456789, 1, None]})
    {'a': [0.123457, 1, None]}
    """
    match value:
        case bool() | int() | str() | None:
            return value
        case float():
            return float(f"{value:.{digits}g}") if math.isfinite(value) else None
        case Mapping():
            return {key: brief(one, digits) for key, one in value.items()}
        case _:
            return [brief(one, digits) for one in value]
