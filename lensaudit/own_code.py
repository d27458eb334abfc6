"""What the registers of the package take from outside it; what that raises becomes one line."""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from lensaudit.errors import InputError, LensAuditError

OWN = "lensaudit_own_"
"""Before the name of a file that is run as a module."""


@contextmanager
def calling_own(what: str) -> Iterator[None]:
    """Let what code of the user's raises in this block become one line, `sys.exit` too."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, LensAuditError):
            raise
        said = " ".join(str(error).split())
        raise InputError(f"{what} ({type(error).__name__}: {said:.160})") from error


def is_outside(function: Any) -> bool:
    """Whether code comes from outside the package."""
    return function.__module__.partition(".")[0] != __name__.partition(".")[0]


def enter(
    known: dict[str, Any], kind: str, entry: Any, of: Callable[[Any], Any] = attrgetter("fn")
) -> Any:
    """Keep an entry under its name; gives back the function that was decorated.

    A file that is run again replaces what it entered.

    Args:
        known: entries by name.
        kind: of entry, for messages.
        entry: has a name, and a function.
        of: gives the function.

    Raises:
        ValueError: there is another of this name, or it can stand in no list and no file name.
    """
    name, fn = entry.name, of(entry)
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise ValueError(f"{kind} {name!r}: wanted a name of letters, digits and _")
    if name in known:
        there, new = (inspect.unwrap(one) for one in (of(known[name]), fn))
        same = inspect.getfile(there) == inspect.getfile(new)
        if not same or there.__globals__ is new.__globals__:
            raise ValueError(f"{kind} {name}: there is one of this name already")
    known[name] = entry
    return fn
