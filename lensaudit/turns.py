"""One process at a time in a folder, or at a file."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from lensaudit.errors import TryAgainError
from lensaudit.files import make_folder

_held: ContextVar[frozenset[tuple[int, int]]] = ContextVar("held", default=frozenset())
"""Device and number of the folders in which this thread has its turn."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """`in_turn`, but in a folder that is made, and where another process works in it, not at all.

    Raises:
        TryAgainError: another process works in it.
    """

    def refuse() -> None:
        raise TryAgainError(f"{folder}: another process works in it; run again later")

    with in_turn(make_folder(folder), refuse, again=False):
        yield


@contextmanager
def in_turn(
    folder: Path, waits: Callable[[], object] = lambda: None, *, again: bool = True
) -> Iterator[bool]:
    """One process at a time in a folder, or at a file; another one is waited for.

    A lock of the system on the folder itself. `filelock`, which holds a lock elsewhere in the
    package, locks a file that it makes beside: a result folder must hold nothing but the result,
    and one that may only be read takes no file. Where there is no folder, or no such lock, nobody
    waits.

    Args:
        folder: locked while the context lasts.
        waits: called where another process has its turn, before it is waited for.
        again: within its turn a thread may ask for the folder again.

    Yields:
        Whether another process was waited for.
    """
    waited = False
    with ExitStack() as held:
        with suppress(ImportError, OSError):  # a system or a disk without such locks; no folder
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait
            held.callback(os.close, descriptor)
            at = os.fstat(descriptor)
            own = (at.st_dev, at.st_ino)
            if not again or own not in _held.get():
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    waited = True
                    waits()
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                held.callback(_held.reset, _held.set(_held.get() | {own}))
        yield waited
