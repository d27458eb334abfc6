"""Who tried a unit, and how did that end? An append-only log per unit."""

import json
import math
import os
import platform
import re
import resource
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, get_args

from lensaudit.files import append_jsonl, read_appended
from lensaudit.partials import is_running, process_name
from lensaudit.sweep.failures import MAX_HALVINGS, MAX_KILLS, MAX_TRIES, Failure, Kind, failure_of

Row = dict[str, Any]
_PROCESS = re.compile(r".{1,64}-\d{1,10}")


@dataclass(frozen=True)
class History:
    """What a unit's log says since it was last set back by `retry`."""

    n_attempts: int = 0
    n_killed: int = 0
    """Attempts without an end whose worker is gone, and which nobody told to stop."""
    n_halvings: int = 0
    """Attempts that ran out of memory."""
    n_transient: int = 0
    """Of the run that is asked about."""
    n_done: int = 0
    """Attempts that ended well: more than one, where results were damaged since."""
    last: Failure | None = None
    seconds: float | None = None
    """Of the last attempt that ended well."""

    @property
    def failed(self) -> Failure | None:
        """Why the unit is not tried again; None where it is."""
        if self.n_killed >= MAX_KILLS:
            return Failure("poison", f"its worker was killed {self.n_killed} times")
        if self.n_done >= MAX_TRIES:
            return Failure("permanent", f"it ended well {self.n_done} times, and has no result")
        if self.last is None:
            return None
        over = {
            "permanent": True,
            "transient": self.n_transient >= MAX_TRIES,
            "resource": self.n_halvings > MAX_HALVINGS,
        }
        return self.last if over.get(self.last.kind) else None


def history(path: Path, *, run: str = "", is_claimed: bool = False) -> History:
    """What happened to a unit so far.

    Args:
        path: its log.
        run: the run whose transient failures count.
        is_claimed: somebody works on it, so that an attempt without an end is not a death.
    """
    rows: list[Row] = []
    for row in filter(_is_whole, read_appended(path)):
        rows = [] if row.get("event") == "retry" else [*rows, row]
    ends = {row.get("attempt"): row for row in rows if row.get("event") == "end"}
    told = {row.get("attempt") for row in rows if row.get("event") == "told to stop"}
    starts = [row for row in rows if row.get("event") == "start"]
    n_done = sum(row["outcome"] == "done" for row in ends.values())
    open_ = [row for row in starts if row["attempt"] not in ends]
    killed = [r for r in open_ if r["attempt"] not in told and not _alive(r, is_claimed)]
    kinds = [row.get("outcome") for row in ends.values()]
    recent = [r for r in ends.values() if r.get("run") == run and r.get("outcome") == "transient"]
    last = next(reversed(ends.values()), None)
    return History(
        n_attempts=len(starts),
        n_killed=len(killed),
        n_halvings=kinds.count("resource"),
        n_transient=len(recent),
        n_done=n_done,
        last=_failure(last),
        seconds=next((r.get("seconds") for r in ends.values() if r.get("outcome") == "done"), None),
    )


def _is_whole(row: Row) -> bool:
    """Whether a line is one of ours; others count as little as torn ones."""
    event, texts = row.get("event"), ("attempt", "run")
    if event in ("retry", "told to stop"):
        return event == "retry" or isinstance(row.get("attempt"), str)
    if not all(isinstance(row.get(name), str) for name in texts):
        return False
    if event == "start":
        return bool(_PROCESS.fullmatch(str(row.get("process"))))
    if event != "end" or row.get("outcome") not in ("done", *get_args(Kind)):
        return False
    seconds: Any = (row.get("seconds"), row.get("retry_after_s") or 0)
    return all(type(one) in (int, float) and 0 <= one < math.inf for one in seconds)


def _alive(row: Row, is_claimed: bool) -> bool:
    running = is_running(row["process"])
    return is_claimed if running is None else running and is_claimed


def _failure(row: Row | None) -> Failure | None:
    if row is None or row.get("outcome") == "done":
        return None
    kind: Kind = row.get("outcome", "permanent")
    return Failure(kind, str(row.get("reason", "")), float(row.get("retry_after_s") or 0))


def set_back(path: Path) -> None:
    """Let a unit be tried again, whatever happened to it."""
    append_jsonl(path, [{"event": "retry", "time": time.time()}])


class Attempt:
    """One try, as a context: its begin and its end are logged, a failure ends here.

    What stops the worker rather than the unit (an interrupt, a signal) is logged and goes on.
    """

    def __init__(self, path: Path, *, run: str, engine: str) -> None:
        self.path, self.run, self.engine = path, run, engine
        self.key = f"{process_name()}-{time.time_ns()}"
        self.failure: Failure | None = None
        self._started = time.monotonic()

    def __enter__(self) -> "Attempt":
        """Log the start; signals that ask for an end are answered from now on."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._started = time.monotonic()
        self._log(
            "start",
            process=process_name(),
            host=platform.node(),
            pid=os.getpid(),
            engine=self.engine,
            gpu=os.environ.get("CUDA_VISIBLE_DEVICES"),
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Log the end. A failure of the unit is kept in `failure` and does not go on."""
        self.failure = failure_of(error) if error is not None else None
        found: Row = {"outcome": "done"}
        if self.failure is not None:
            found = {
                "outcome": self.failure.kind,
                "reason": self.failure.reason,
                "retry_after_s": self.failure.retry_after_s,
                "traceback": [] if error is None else traceback.format_tb(error.__traceback__)[-6:],
            }
        self._log(
            "end",
            **found,
            seconds=round(time.monotonic() - self._started, 3),
            peak_bytes=peak_bytes(),
        )
        return isinstance(error, Exception) and found["outcome"] != "preempted"

    def told_to_stop(self) -> None:
        """Note that a death from here on is not the unit's fault; safe in a signal handler."""
        row = {"event": "told to stop", "attempt": self.key, "time": time.time()}
        with self.path.open("ab", buffering=0) as stream:
            stream.write(json.dumps(row).encode() + b"\n")

    def _log(self, event: str, **more: Any) -> None:
        row = {"event": event, "attempt": self.key, "run": self.run, "time": time.time(), **more}
        append_jsonl(self.path, [row])


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class StopSignals:
    """SIGTERM and SIGUSR2 set `asked`; the second one interrupts. As they were afterwards."""

    def __init__(self, *, install: bool = True) -> None:
        self.install = install
        self.asked = False
        self.attempt: Attempt | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        """Answer the signals, where this thread may."""
        for number in (signal.SIGTERM, signal.SIGUSR2) if self.install else ():
            try:
                self._before[number] = signal.signal(number, self._asked)
            except ValueError:  # not the main thread: whoever owns it decides
                break
        return self

    def __exit__(self, *error: object) -> None:
        """Put the earlier handlers back."""
        for number, before in self._before.items():
            signal.signal(number, before)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.attempt is not None:
            self.attempt.told_to_stop()
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
