"""Is a value from a file what its record says? Dataclasses are the schema, errors one voice."""

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AllowInfNan, Field, Strict, TypeAdapter, ValidationError

from lensaudit.errors import InputError
from lensaudit.scores.estimate import Estimate

Record = TypeVar("Record")
Number = Annotated[float, Strict(), AllowInfNan(False)]
"""A finite number; no text that looks like one, no true."""
Length = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
Whole = Annotated[int, Strict()]
Flag = Annotated[bool, Strict()]
AtLayer = Annotated[str, Field(pattern=r"^-?[0-9]{1,9}$")]
"""A layer, or an idx, as the name of a field."""

_WANTED = {
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
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
    """The same for any type that pydantic knows, as a list of records."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        said = "; ".join(one for one in (_said(first), remedy) if one)
        raise InputError(f"{where}: {said}") from error


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


def fits(kind: Any, value: Any) -> bool:
    """Whether a value is what its record says; for what is computed again where it is not."""
    try:
        _adapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True


@functools.cache
def _adapter(kind: Any) -> Any:  # beartype cannot read the type of an adapter
    return TypeAdapter(kind)


def _said(error: Any) -> str:
    """Where in the value, what was found and what was wanted."""
    place = _place(error["loc"])
    if error["type"] == "missing" and isinstance(error["loc"][-1], str):
        owner = f"{_place(error['loc'][:-1])}: " if error["loc"][1:] else ""
        return f"{owner}has no {error['loc'][-1]!r}"
    found, limits = error["input"], error.get("ctx", {})
    if "error" in limits:  # what a record says of its fields together
        return f"{place}{': ' if place else ''}{limits['error']}"
    wanted = _WANTED.get(error["type"]) or limits.get("expected") or _bounds(limits)
    return f"{place}{': ' if place else ''}found {repr(found)[:_SHOWN]}, wanted {wanted}"


def _bounds(limits: Mapping[str, Any]) -> str:
    if "ge" in limits:
        return f"at least {limits['ge']:g}"
    return f"at most {limits['le']:g}" if "le" in limits else "another number of values"


def _place(parts: Sequence[Any]) -> str:
    """Names and places alone: which of several types was tried is no place."""
    return ".".join(part for part in map(str, parts) if "[" not in part)
