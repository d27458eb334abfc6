"""Keywords of a Python call as the fields of the settings that they stand for."""

import difflib
import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
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
        if any(isinstance(one, Option) and one.commas for one in words):
            value = _joined(value)
        where = f"{call}({name}={value!r:.40})"
        found[name] = checked_as(kinds[name], value, where)
        numbers = found[name] if isinstance(found[name], tuple) else (found[name],)
        for option, one in product(words, numbers):
            if isinstance(option, Option) and isinstance(one, int | float) and option.wanted(one):
                raise InputError(f"{where}: found {one}, wanted {option.wanted(one)}")
    return found


def _fit(value: Any, keyword: inspect.Parameter) -> Any:
    """A value as its field holds it: of a field for several, one is a tuple of one."""
    several = isinstance(value, Iterable) and not isinstance(value, str | Path)
    if isinstance(keyword.default, tuple) and value is not None:
        value = tuple(cast(Iterable[Any], value)) if several else (value,)
    if isinstance(value, list | tuple):
        return tuple(map(_plain, cast(Sequence[Any], value)))
    return _plain(value)


def _joined(value: Any) -> Any:
    """A list in one text, as the option spells it.

    >>> _joined(9), _joined((0, 3)), _joined("0-7")
    ('9', '0,3', '0-7')
    """
    parts = cast(tuple[Any, ...], value) if isinstance(value, tuple) else (value,)
    texts = [str(one) for one in parts if isinstance(one, str | int | float) and one is not True]
    return ",".join(texts) if len(texts) == len(parts) else value


def _plain(value: Any) -> Any:
    """A place as text, which says a name or a file wherever either is wanted."""
    return named(value) if isinstance(value, Path) else value
