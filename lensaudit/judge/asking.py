"""Many calls at once: cache first, budget before each, every answer kept at once."""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from lensaudit.errors import InputError, WorkError
from lensaudit.judge.budget import Budget
from lensaudit.judge.cache import AnswerCache
from lensaudit.judge.calls import Call, Failure, Outcome, Reply
from lensaudit.judge.transport import EndpointError, Transport
from lensaudit.progress import Tick

STOP_AFTER = 5
"""Calls that fail in a row before the rest is given up: a server that is down is not asked on."""
CONCURRENCY = 8


@runtime_checkable
class Assignment(Protocol):
    """What has to be asked, given what was answered so far."""

    def pending(self, found: Mapping[str, Outcome]) -> list[Call]:
        """Calls whose answers are still wanted; empty when everything is settled."""
        ...


@dataclass(frozen=True)
class Counts:
    """Where the answers of a run came from."""

    asked: int
    """Sent to the server, those that failed too."""
    cached: int
    failed: int = 0
    """Of those asked, without a usable answer."""


@dataclass
class Asker:
    """Gets answers: from the cache, else from the server, within the budget."""

    cache: AnswerCache
    transport: Transport | None
    """None: the cache is all there is (`--offline`)."""
    budget: Budget = field(default_factory=Budget)
    concurrency: int = CONCURRENCY
    since: float = 0.0
    """Answers older than this are asked for again (seconds since 1970)."""
    progress: Tick = lambda what, done, total: None
    fatal: str = ""
    """Why the server refuses every call, once it does."""
    n_cached: int = 0

    @property
    def counts(self) -> Counts:
        """So far."""
        spent = self.budget.spent
        return Counts(spent.calls, self.n_cached, spent.n_failed)

    def settle(self, assignment: Assignment) -> dict[str, Outcome]:
        """Ask until the assignment wants nothing more; outcomes by key."""
        found: dict[str, Outcome] = {}
        while calls := assignment.pending(found):
            found |= self.ask(calls)
        return found

    def ask(self, calls: Iterable[Call]) -> dict[str, Outcome]:
        """An outcome per distinct call, by key; what could not be asked has its reason.

        On Ctrl-C the calls in flight are waited for and kept: they are paid for.
        """
        wanted = {call.key: call for call in calls}
        found: dict[str, Outcome] = {}
        for key, call in wanted.items():
            reply = self.cache.get(call, since=self.since)
            if reply is not None:
                found[key] = reply
        self.n_cached += len(found)
        missing = [call for key, call in wanted.items() if key not in found]
        return found | self._send(missing)

    def _send(self, calls: list[Call]) -> dict[str, Outcome]:
        if not calls:
            return {}
        if self.transport is None:
            gone = Failure("api_error", "not in the cache (--offline)")
            return {call.key: gone for call in calls}
        crew = _Crew(self, self.transport, len(calls))
        pool = ThreadPoolExecutor(max(1, min(self.concurrency, len(calls))))
        try:
            outcomes = list(pool.map(crew.work, calls))
        except BaseException:
            crew.stop(Failure("api_error", "interrupted"))
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        self.fatal = crew.fatal or self.fatal
        return {call.key: outcome for call, outcome in zip(calls, outcomes, strict=True)}


class _Crew:
    """What the threads of one `ask` share."""

    def __init__(self, asker: Asker, transport: Transport, total: int):
        self._asker, self._transport, self._total = asker, transport, total
        self._lock = threading.Lock()
        self._stopped: Failure | None = Failure("api_error", asker.fatal) if asker.fatal else None
        self._in_a_row = self._done = 0
        self.fatal = ""

    def stop(self, why: Failure) -> None:
        """From now on nothing is sent."""
        with self._lock:
            self._stopped = self._stopped or why

    def work(self, call: Call) -> Outcome:
        """One call: reserve, send, keep, settle."""
        if self._stopped is not None:
            return self._stopped
        problem = self._asker.budget.reserve(call)
        if problem:
            self.stop(Failure("budget", f"not asked: {problem}"))
            return Failure("budget", f"not asked: {problem}")
        try:
            outcome = self._transport.chat(call)
        except EndpointError as error:
            self._asker.budget.fail(call, billed=False)
            with self._lock:
                self.fatal = str(error)
            self.stop(Failure("api_error", f"not asked: {error}"))
            return Failure("api_error", str(error))
        if isinstance(outcome, Reply):
            self._asker.cache.put(call, outcome)
            self._asker.budget.settle(call, outcome.usage)
        else:
            self._asker.budget.fail(call, billed=outcome.cause != "refused")
        self._count(outcome)
        return outcome

    def _count(self, outcome: Outcome) -> None:
        with self._lock:
            self._done += 1
            self._in_a_row = 0 if isinstance(outcome, Reply) else self._in_a_row + 1
            if isinstance(outcome, Failure) and self._in_a_row >= STOP_AFTER:
                why = f"not asked: {STOP_AFTER} calls failed in a row; {outcome.reason}"
                self._stopped = self._stopped or Failure(outcome.status, why)
            self._asker.progress("judged", self._done, self._total)


def refuse_fatal(asker: Asker) -> None:
    """Raise what made the server refuse every call.

    Raises:
        InputError: nothing was answered.
        WorkError: something was; it is in the cache.
    """
    if asker.fatal and asker.budget.spent.calls <= 1:
        raise InputError(asker.fatal)
    if asker.fatal:
        raise WorkError(f"{asker.fatal}; answers so far are kept in {asker.cache.path}")
