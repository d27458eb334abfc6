"""Python files of the user's: run where a person names one, with one line for what they raise."""

import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError

_RAISED = (
    *(ImportError, SyntaxError, NameError, TypeError, ValueError, AttributeError, LookupError),
    *(ArithmeticError, AssertionError, RuntimeError, OSError),
)


def run_own(path: Path, wanted: str) -> dict[str, Any]:
    """The names that a file defines; it is code, run what you have read.

    Args:
        path: of the file.
        wanted: what it should hold, for the message.

    Raises:
        InputError: no such file, or it cannot be run.
    """
    if not path.is_file() or path.suffix != ".py":
        raise InputError(f"{path}: wanted a Python file with {wanted}")
    with calling_own(f"{path}: cannot be run"):
        return runpy.run_path(str(path), run_name=f"lensaudit_own_{path.stem}")
    raise AssertionError("what the block raises is raised again")


@contextmanager
def calling_own(what: str) -> Iterator[None]:
    """Let what code of the user's raises in this block become one line."""
    try:
        yield
    except InputError:
        raise
    except _RAISED as error:
        raise InputError(f"{what} ({type(error).__name__}: {error!s:.160})") from error
