"""What holds while a block lasts: the value of a variable, a file that is opened once."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from copy import copy
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_read: ContextVar[dict[str, Any] | None] = ContextVar("read", default=None)


@contextmanager
def holding(variable: ContextVar[R], value: R) -> Iterator[None]:
    """While the block lasts, the variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def read_once() -> AbstractContextManager[None]:
    """While the block lasts, a file opened `once` keeps the content that was read first."""
    return holding(_read, {})


def once(opens: Callable[P, R]) -> Callable[P, R]:
    """A function that opens or reads: in a block of `read_once` the same is not opened twice."""

    @functools.wraps(opens)
    def found(*args: P.args, **named: P.kwargs) -> R:
        known, key = _read.get(), repr((opens.__qualname__, args, named))
        if known is None:
            return opens(*args, **named)
        if key not in known:
            known[key] = opens(*args, **named)
        return copy(known[key])

    return found
