"""Keywords of a Python call as the fields of the settings that they stand for."""

import difflib
import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_type_hints

from lensaudit.errors import InputError
from lensaudit.results.reading import checked_as
from lensaudit.settings import Option, named


def given_to(
    call: str, record: Any, given: Mapping[str, Any], known: Collection[str] = ()
) -> dict[str, Any]:
    """Keywords as the fields of a record hold them.

    Args:
        call: whose keywords they are.
        record: the settings.
        given: the keywords.
        known: those of the fields that the call knows; none: all.

    Raises:
        TypeError: the call knows no such keyword.
        InputError: one is of another kind or out of its range: `layers=9`, `limit=0`.
    """
    keywords = inspect.signature(record).parameters
    for name in given:
        if name not in (names := known or keywords):
            near = difflib.get_close_matches(name, names)
            hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(names)}"
            raise TypeError(f"{call}() has no keyword {name!r}; {hint}")
    kinds, found = get_type_hints(record, include_extras=True), dict[str, Any]()
    for name, own in given.items():
        value, words = _fit(own, keywords[name]), getattr(kinds[name], "__metadata__", ())
        options = [one for one in words if isinstance(one, Option)]
        if any(one.commas for one in options):
            value = _joined(value)
        where = f"{call}({name}={value!r:.40})"
        found[name] = checked_as(kinds[name], value, where)
        for said, kept in zip(_each(value), _each(found[name]), strict=False):
            if wrong := _unlike(said, kept) or _out_of_range(kept, options):
                raise InputError(f"{where}: found {said}, wanted {wrong}")
    return found


def _unlike(said: Any, kept: Any) -> str:
    """What is wanted in place of a truth, or of a fraction, that Python takes for a number."""
    if isinstance(said, bool) and not isinstance(kept, bool):
        return "a whole number" if isinstance(kept, int) else "a number"
    return "a whole number" if isinstance(said, float) and isinstance(kept, int) else ""


def _out_of_range(kept: Any, options: Iterable[Option]) -> str:
    if not isinstance(kept, int | float):
        return ""
    return next((wrong for one in options if (wrong := one.wanted(kept))), "")


def _fit(value: Any, keyword: inspect.Parameter) -> Any:
    """A value as its field holds it: of a field for several, one is a tuple of one."""
    several = isinstance(value, Iterable) and not isinstance(value, str | Path)
    if isinstance(keyword.default, tuple) and value is not None:
        value = tuple(cast(Iterable[Any], value)) if several else (value,)
    if isinstance(value, list | tuple):
        return tuple(map(_plain, cast(Sequence[Any], value)))
    return _plain(value)


def _each(value: Any) -> tuple[Any, ...]:
    return cast(tuple[Any, ...], value) if isinstance(value, tuple) else (value,)


def _joined(value: Any) -> Any:
    """A list in one text, as the option spells it.

    >>> _joined(9), _joined((0, 3)), _joined("0-7")
    ('9', '0,3', '0-7')
    """
    parts = _each(value)
    texts = [str(one) for one in parts if isinstance(one, str | int | float) and one is not True]
    return ",".join(texts) if len(texts) == len(parts) else value


def _plain(value: Any) -> Any:
    """A place as text, which says a name or a file wherever either is wanted."""
    return named(value) if isinstance(value, Path) else value
