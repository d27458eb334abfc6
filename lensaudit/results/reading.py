"""Files of results, and keywords, read with every surprise turned into one line.

Dataclasses are the schema.
"""

import csv
import functools
import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, Strict, TypeAdapter, ValidationError

from lensaudit.errors import InputError
from lensaudit.files import read_json, read_text
from lensaudit.scores.estimate import Estimate, Number
from lensaudit.text import parse_json

SUMMARY = "summary.json"
"""File by which a result of most kinds is known."""
JsonObject = Mapping[str, Any]
Record = TypeVar("Record")
Length = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
Whole = Annotated[int, Strict()]
Flag = Annotated[bool, Strict()]
AtLayer = Annotated[str, Field(pattern=r"^-?[0-9]{1,9}$")]
"""A layer, or an idx, as the name of a field."""


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


def part(record: Any, *names: str) -> dict[Any, Any]:
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


def null(value: Any) -> Any:
    """A value with NaN and infinities as None: JSON has none."""
    return brief(value, None)


def brief(value: Any, digits: int | None = 6) -> Any:
    """A value with floats at `digits` significant digits: the page shows fewer.

    >>> brief({"a": [0.123456789, 1, None]})
    {'a': [0.123457, 1, None]}
    """
    match value:
        case bool() | int() | str() | None:
            return value
        case float():
            kept = float(f"{value:.{digits}g}") if digits else value
            return kept if math.isfinite(value) else None
        case Mapping():
            return {key: brief(one, digits) for key, one in value.items()}
        case _:
            return [brief(one, digits) for one in value]


_WANTED = {
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "string_type": "a text",
    "string_too_short": "a text",
    "string_pattern_mismatch": "another text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "mapping_type": "an object",
    "dataclass_type": "an object",
    "dataclass_exact_type": "an object",
}
_SEVERAL = "another number of values"
_SHOWN = 40
"""Characters of a value that an error quotes."""


def checked(kind: type[Record], value: Any, where: object, *, remedy: str = "") -> Record:
    """The value as a record; fields that the record does not name are passed over.

    Args:
        kind: a dataclass.
        value: from JSON.
        where: the file, and the place in it.
        remedy: what to do if it is not one.

    Raises:
        InputError: a field is missing or something else; names the first one.
    """
    return checked_as(kind, value, where, remedy=remedy)


def checked_as(kind: Any, value: Any, where: object, *, remedy: str = "") -> Any:
    """A value checked against any type that pydantic knows, as `checked` does for a record."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        said = _said(error.errors(include_url=False)[0])
        raise InputError(f"{where}: {'; '.join(filter(None, (said, remedy)))}") from error


def document(record: Any) -> dict[str, Any]:
    """A record as plain JSON, field by field as `checked` reads it."""
    # a whole number stands for a float as well
    return _adapter(type(record)).dump_python(record, mode="json", by_alias=True, warnings=False)


def read_as(kind: type[Record], path: Path) -> Record:
    """The record that a JSON file holds; see `checked`."""
    return checked(kind, json_object(path), path)


def check_inside(found: Estimate, where: object) -> None:
    """Refuse a value that lies outside its own interval.

    Raises:
        InputError: it does, or the interval ends before it begins.
    """
    if found.ends is None:
        return
    (low, high), value, within = found.ends, found.value, 1e-6
    if low > high or (value is not None and not low - within <= value <= high + within):
        shown = " is upside down" if value is None else f" does not hold {value:g}"
        raise InputError(f"{where}: the interval {low:g} to {high:g}{shown}")


@functools.cache
def _adapter(kind: Any) -> Any:  # beartype cannot read the type of an adapter
    return TypeAdapter(kind)


def _said(error: Any) -> str:
    """An error in words: where in the value, what was found, what was wanted."""
    place = _place(error["loc"])
    if error["type"] == "missing" and isinstance(error["loc"][-1], str):
        owner = f"{_place(error['loc'][:-1])}: " if error["loc"][1:] else ""
        return f"{owner}has no {error['loc'][-1]!r}"
    found, limits = error["input"], error.get("ctx", {})
    if "error" in limits:  # what a record says of its fields together
        return f"{place}{': ' if place else ''}{limits['error']}"
    bounds = (f"at {w} {limits[k]:g}" for k, w in (("ge", "least"), ("le", "most")) if k in limits)
    wanted = _WANTED.get(error["type"]) or limits.get("expected") or next(bounds, _SEVERAL)
    return f"{place}{': ' if place else ''}found {repr(found)[:_SHOWN]}, wanted {wanted}"


def _place(parts: Sequence[Any]) -> str:
    """Names and places alone: which of several types was tried is no place."""
    return ".".join(part for part in map(str, parts) if "[" not in part)


def place_in(call: str, given: Any) -> Any:
    """A name or a place, as a caller of `call` gave it.

    >>> place_in("load_model", "demo/npo")
    'demo/npo'

    Raises:
        InputError: it is neither.
    """
    if not isinstance(given, str | os.PathLike):
        # a model is written on many lines
        raise InputError(
            f"{call}: found {' '.join(repr(given).split()):.60}, wanted a name or a folder"
        )
    return given
