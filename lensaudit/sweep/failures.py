"""Why did a unit fail, and is it worth another try?

transient   the network, a full disk, a lock: tried again after a pause, by the next run too
resource    too little memory: tried again with half the batch
preempted   told to stop, or out of time: goes on where it was
poison      its worker was killed each time: left alone until `retry`
permanent   anything else would fail the same way: left alone until `retry`
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Literal

from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

from lensaudit.errors import LensAuditError, TryAgainError
from lensaudit.files import printable

Kind = Literal["transient", "resource", "preempted", "poison", "permanent"]
MAX_TRIES = 5
"""Attempts at a unit with transient failures, within one run."""
MAX_KILLS = 3
"""Killed workers after which a unit is poison."""
MAX_HALVINGS = 5
"""32 texts per batch, the default, become one."""
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_MEMORY = ("out of memory", "can't allocate memory", "does not fit into memory")
_REASON = 300
"""Characters of a message that are kept."""


class Preempted(LensAuditError):
    """The worker was told to stop, or its time is over; what is finished is kept."""

    exit_code = 75


@dataclass(frozen=True)
class Failure:
    """How an attempt ended, if not well."""

    kind: Kind
    reason: str
    retry_after_s: float = 0.0
    """What a server asked for."""


def failure_of(error: BaseException) -> Failure:
    """The class of an error, by what caused it."""
    reason = printable(_line(error))[:_REASON]
    chain = list(_causes(error))
    if any(isinstance(one, Preempted | KeyboardInterrupt | SystemExit) for one in chain):
        return Failure("preempted", reason or "interrupted")
    if any(_is_memory(one) for one in chain):
        return Failure("resource", reason)
    for one in chain:
        if isinstance(one, HfHubHTTPError) and one.response.status_code in _PASSING:
            return Failure("transient", reason, _retry_after(one))
    if any(_is_passing(one) for one in chain):
        return Failure("transient", reason)
    return Failure("permanent", reason)


def _line(error: BaseException) -> str:
    text = next(iter(str(error).splitlines()), "")
    return text if isinstance(error, LensAuditError) else f"{type(error).__name__}: {text}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__


def _is_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError | LensAuditError) and any(w in text for w in _MEMORY)


def _is_passing(error: BaseException) -> bool:
    if isinstance(error, OfflineModeIsEnabled):
        return False
    if isinstance(error, TryAgainError | ConnectionError | TimeoutError):
        return True
    # the Hub library says so when it could not ask: no network, or it answered too late
    return isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None


def _retry_after(error: HfHubHTTPError) -> float:
    """Seconds that the server asks for; it may say so as a number or as a date."""
    text = error.response.headers.get("Retry-After", "")
    try:
        seconds = float(text)
    except ValueError:
        return _until(text, error.response.headers.get("Date", ""))
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _until(then: str, now: str) -> float:
    """Seconds between two dates of one server, so that no clock of ours matters."""
    try:
        gap = parsedate_to_datetime(then) - parsedate_to_datetime(now)
    except ValueError:
        return 0.0
    return max(0.0, gap.total_seconds())
