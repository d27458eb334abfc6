"""Errors shown to a user: one line, what to do, and the exit code."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FailureKind = Literal["input", "work", "partial", "verification", "try again", "memory"]


class LensAuditError(Exception):
    """A message for the user; never a traceback. Exit codes are those of docs/terminal.md."""

    exit_code = 1
    kind: FailureKind = "work"


class InputError(LensAuditError):
    """Wrong usage or bad input, found before work starts."""

    exit_code = 2
    kind = "input"


class WorkError(LensAuditError):
    """Failed while working; the message says what is kept."""


class PartialError(LensAuditError):
    """Some units of a many-unit run failed; the message lists them."""

    exit_code = 3
    kind = "partial"


class VerificationError(LensAuditError):
    """A verification or a gate failed."""

    exit_code = 4
    kind = "verification"


class TryAgainError(LensAuditError):
    """A passing condition: the disk is full, a lock is held."""

    exit_code = 75
    kind = "try again"


@dataclass(frozen=True)
class Failure:
    """A step that failed while the rest of its run went on."""

    model: str
    step: str
    """`patch`, `evaluate`, or the score that broke."""
    kind: FailureKind
    message: str
    """One line."""


def failure_in(model: str, step: str, error: Exception) -> Failure:
    """What an error says, as a value; one that is not ours came from a lack of memory."""
    kind = error.kind if isinstance(error, LensAuditError) else "memory"
    return Failure(model, step, kind, next(iter(str(error).splitlines()), type(error).__name__))


def told_by(error: BaseException, most: int = 300) -> str:
    r"""What a library says, in one line; of a long text its first line and its last.

    >>> told_by(RuntimeError("Error(s) in loading:\n\tsize mismatch for head"))
    'Error(s) in loading: size mismatch for head'
    """
    lines = [" ".join(one.split()) for one in str(error).splitlines() if one.strip()]
    text = " ".join(lines) or type(error).__name__
    return text if len(text) <= most else f"{lines[0][: most // 2]} … {lines[-1][-most // 2 :]}"


def need(package: str, *, called: str, extra: str) -> None:
    """Refuse to go on without an optional package; nothing of it is imported.

    Args:
        package: what is imported.
        called: name shown to the user.
        extra: our optional extra that installs it.

    Raises:
        InputError: it is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise InputError(f"{called} is not installed; pip install 'lensaudit[{extra}]'")


def shortened(lines: Sequence[str], shown: int = 1, apart: str = "; ") -> str:
    """The first of several lines, and how many more there are.

    >>> shortened(["a", "b", "c"], 2)
    'a; b (and 1 more)'
    """
    more = f" (and {len(lines) - shown} more)" if len(lines) > shown else ""
    return apart.join(lines[:shown]) + more
