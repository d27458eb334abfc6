"""How is a unit: who works on it, who tried it, how did that end, and what came of it?

transient   the network, a full disk, a lock: tried again after a pause, by the next run too
resource    too little memory: tried again with half the batch
preempted   told to stop, or out of time: goes on where it was
poison      its worker was killed each time: left alone until `retry`
permanent   anything else would fail the same way: left alone until `retry`

A claim guards against duplicate work, no more: results do not depend on it. It is a file, made
while a `FileLock` is held, touched every half minute, and void when its process is gone, or when it
was not touched for five minutes. No `FileLock` is held for a whole attempt: on a disk that nodes
share it may not reach the other node, and it does not say who holds it. Ages are taken from the
file system's own clock, so that nodes whose clocks differ agree. What came of each attempt is a
line of an append-only log per unit. A result is published whole by one rename, and found again by
the key of its unit.
"""

import contextlib
import errno
import json
import math
import os
import platform
import re
import resource
import secrets
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout

from lensaudit.errors import LensAuditError, TryAgainError, WorkError, told_by
from lensaudit.files import (
    append_jsonl,
    make_folder,
    os_error,
    os_errors,
    read_bytes,
    sync_folder,
)
from lensaudit.partials import is_running, process_name
from lensaudit.results.appended import read_appended
from lensaudit.results.keyed import keyed_document, write_keyed
from lensaudit.results.locate import OF_RETAIN, PASSES
from lensaudit.results.manifest import EVAL, PARTS, mark_of
from lensaudit.results.planned import RESULT, UNITS
from lensaudit.sweep.plan import Sweep, Unit
from lensaudit.sweep.removal import remove_below
from lensaudit.text import parse_json, printable

Row = dict[str, Any]
_PROCESS = re.compile(r".{1,64}-\d{1,10}")
Kind = Literal["transient", "resource", "preempted", "poison", "permanent"]
MAX_TRIES = 5
"""Attempts at a unit with transient failures, within one run."""
MAX_KILLS = 3
"""Killed workers after which a unit is poison."""
MAX_HALVINGS = 5
"""32 texts per batch, the default, become one."""
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_MEMORY = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc"),
    *("does not fit into memory", "cublas_status_alloc_failed"),
)
_PASSING_ERRNO = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT})
_FLIPPED_BIT = "uncorrectable ecc error"
_REASON = 300
"""Characters of a message that are kept."""
BEAT_S = 30.0
STALE_S = 300.0


class Preempted(LensAuditError):
    """The worker was told to stop, or its time is over; what is finished is kept."""

    exit_code = 75


@dataclass(frozen=True)
class AttemptFailure:
    """Kind and reason of an attempt that failed."""

    kind: Kind
    reason: str
    retry_after_s: float = 0.0
    """What a server asked for."""


def failure_of(error: BaseException) -> AttemptFailure:
    """The class of an error, by what caused it."""
    from huggingface_hub.errors import HfHubHTTPError  # a tenth of a second

    if isinstance(error, LensAuditError):
        named = next(iter(str(error).splitlines()), "")
    else:
        named = f"{type(error).__name__}: {told_by(error)}"
    reason = printable(named)[:_REASON]
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    if any(isinstance(one, Preempted | KeyboardInterrupt | SystemExit) for one in chain):
        return AttemptFailure("preempted", reason or "interrupted")
    if any(map(_is_memory, chain)):
        return AttemptFailure("resource", reason)
    for one in chain:
        if isinstance(one, HfHubHTTPError) and one.response.status_code in _PASSING:
            return AttemptFailure("transient", reason, _retry_after(one.response.headers))
    return AttemptFailure("transient" if any(map(_is_passing, chain)) else "permanent", reason)


def _is_memory(error: BaseException) -> bool:
    text = str(error).lower()
    speaks = isinstance(error, RuntimeError | OSError | LensAuditError)
    return isinstance(error, MemoryError) or (speaks and any(one in text for one in _MEMORY))


def _is_passing(error: BaseException) -> bool:
    from huggingface_hub.errors import (
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    # the Hub library says so when it could not ask: no network, or it answered too late
    unasked = isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None
    # its client's own errors are of two kinds; an answer's status code was looked at before
    unanswered = isinstance(error, HTTPError) and getattr(error, "response", None) is None
    system = isinstance(error, OSError) and error.errno in _PASSING_ERRNO
    device = isinstance(error, RuntimeError) and _FLIPPED_BIT in str(error).lower()
    passing = isinstance(error, TryAgainError | ConnectionError | TimeoutError)
    found = passing or unasked or unanswered or system or device
    return found and not isinstance(error, OfflineModeIsEnabled)


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks for: a number, or two dates of its own, so no clock of ours."""
    text = headers.get("Retry-After", "")
    with contextlib.suppress(ValueError):
        seconds = float(text)
        return seconds if math.isfinite(seconds) and seconds > 0 else 0.0
    with contextlib.suppress(ValueError):
        now = parsedate_to_datetime(headers.get("Date", ""))
        return max(0.0, (parsedate_to_datetime(text) - now).total_seconds())
    return 0.0


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


def set_back(path: Path) -> None:
    """Let a unit be tried again, whatever happened to it."""
    append_jsonl(path, [{"event": "retry", "time": time.time()}])


class Attempt:
    """An attempt, as a context: its begin and its end are logged, a failure ends here.

    What stops the worker rather than the unit (an interrupt, a signal) is logged and goes on.
    """

    def __init__(self, path: Path, *, run: str, engine: str) -> None:
        self.path, self.run, self.engine = path, run, engine
        self.key = f"{process_name()}-{time.time_ns()}"
        self.failure: AttemptFailure | None = None
        self._started = time.monotonic()
        self._begin = 0

    def __enter__(self) -> "Attempt":
        """Log the start."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._begin = self.path.stat().st_size if self.path.exists() else 0
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
        """Log the end. A failure of the unit is kept in `failure` and does not go on.

        Where the disk has no room for the end, the start goes too: alone it means a killed worker.
        """
        found: Row = {"outcome": "done"}
        if error is not None:
            self.failure = failure_of(error)
            found = {
                "outcome": self.failure.kind,
                "reason": self.failure.reason,
                "retry_after_s": self.failure.retry_after_s,
                "traceback": traceback.format_tb(trace)[-6:],
            }
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            self._log(
                "end",
                **found,
                seconds=round(time.monotonic() - self._started, 3),
                peak_bytes=peak if sys.platform == "darwin" else peak * 1024,
            )
        except LensAuditError:
            self._take_back()
        return isinstance(error, Exception) and found["outcome"] != "preempted"

    def told_to_stop(self) -> None:
        """Note that a death from here on is not the unit's fault; safe in a signal handler."""
        row = {"event": "told to stop", "attempt": self.key, "time": time.time()}
        with self.path.open("ab", buffering=0) as stream:
            stream.write(json.dumps(row).encode() + b"\n")

    def _take_back(self) -> None:
        """Remove the start from the log, while it is the last line."""
        with contextlib.suppress(OSError, ValueError, KeyError), self.path.open("rb+") as stream:
            stream.seek(self._begin)
            # whatever else was written since would make this no JSON
            if json.loads(stream.read())["attempt"] == self.key:
                stream.truncate(self._begin)

    def _log(self, event: str, **more: Any) -> None:
        row = {"event": event, "attempt": self.key, "run": self.run, "time": time.time(), **more}
        append_jsonl(self.path, [row])


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


def holder(path: Path) -> str | None:
    """The process that holds a claim; None where none does."""
    try:
        touched = path.stat().st_mtime
    except OSError:
        return None
    age_s = _now(path.parent) - touched
    try:
        process = str(parse_json(read_bytes(path))["process"])
        running = is_running(process)
    except (ValueError, KeyError, TypeError, LensAuditError):
        # being written, or torn by a full disk: old ones count as nobody's
        process, running = "unreadable", None
    # a process number may have been given to another process since: the heartbeat counts here too
    return process if running is not False and age_s < STALE_S else None


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Hold a claim for the body; False where another process does."""
    nonce, stop = secrets.token_hex(8), threading.Event()
    if not _take(path, nonce):
        yield False
        return

    def beat() -> None:
        while not stop.wait(BEAT_S):
            with contextlib.suppress(OSError):
                os.utime(path)

    heart = threading.Thread(target=beat, daemon=True)
    heart.start()
    try:
        yield True
    finally:
        stop.set()
        heart.join()
        with contextlib.suppress(OSError, ValueError, KeyError):
            if json.loads(path.read_bytes())["nonce"] == nonce:
                path.unlink()


def _take(path: Path, nonce: str) -> bool:
    make_folder(path.parent)
    try:
        with locked(path.with_suffix(".lock"), timeout_s=10.0):
            if holder(path) is not None:
                return False
            path.unlink(missing_ok=True)
            with contextlib.ExitStack() as torn:  # a full disk leaves no claim of nobody
                with path.open("x") as stream:
                    torn.callback(path.unlink, missing_ok=True)
                    json.dump({"process": process_name(), "nonce": nonce}, stream)
                torn.pop_all()
    except (FileExistsError, Timeout):
        return False
    except OSError as error:
        raise os_error(error, path) from error
    return True


@contextlib.contextmanager
def locked(path: Path, timeout_s: float = -1.0) -> Iterator[None]:
    """Hold a `FileLock`; on a disk without locks nothing is held, and nobody waits.

    Raises:
        Timeout: another process held it all the time.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(FileLock(path, timeout=timeout_s))
        except Timeout:
            raise
        except (OSError, NotImplementedError):  # a claim and a reservation guard well enough
            pass
        yield


def _now(folder: Path) -> float:
    """The time by the clock that stamps files in `folder`."""
    probe = folder / f".now-{secrets.token_hex(6)}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:  # a folder that can only be read, or a full disk
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


SCHEMA = 2
CHECKPOINT = "checkpoint"
"""The attacked model, beside the parts of a unit."""
REGISTRY = "registry.json"
"""Names the attacked model where it is evaluated."""
_SCRATCH = (CHECKPOINT, REGISTRY, f"{EVAL}/{PASSES}", f"{EVAL}/{OF_RETAIN}")
"""What only the work needed."""


def finished(sweep: Sweep, unit: Unit) -> Mapping[str, Any] | None:
    """The result of a unit; None where it is not done. A damaged one is not done."""
    return keyed_document(sweep.unit(unit.id) / RESULT, unit.id)


def publish(sweep: Sweep, unit: Unit, record: Mapping[str, Any] | None) -> None:
    """Make a unit's work its result: one rename, after everything is on disk.

    Args:
        sweep: in its folder.
        unit: the unit.
        record: what the result says beside the names of its files; None where it is written.

    Raises:
        WorkError: it cannot be published.
    """
    work, done = sweep.work(unit.id), sweep.unit(unit.id)
    gone = [one for one in _SCRATCH if one != CHECKPOINT or not sweep.conditions.keep]
    if record is not None:
        parts = (work / part for part in (*PARTS, CHECKPOINT))
        below = [one for part in parts for one in sorted(part.rglob("*")) if one.is_file()]
        marks = {path.relative_to(work).as_posix(): path for path in below}
        scratch = tuple(f"{name}/" for name in gone)
        files = {k: mark_of(v) for k, v in marks.items() if not k.startswith(scratch)}
        identity = {"schema": SCHEMA, "key": unit.id, "unit": unit.id, "target": unit.target}
        write_keyed(work / RESULT, {**identity, "variant": unit.variant, **record, "files": files})
    for name in gone:
        remove_below(sweep.root, work / name)
    with os_errors(done):
        done.parent.mkdir(parents=True, exist_ok=True)
        if finished(sweep, unit) is not None:  # another worker was faster; both hold the same
            remove_below(sweep.root, work)
            return
        remove_below(sweep.root, done)
        os.rename(work, done)
        sync_folder(done.parent)
    if finished(sweep, unit) is None:
        raise WorkError(f"{unit.label}: its published result cannot be read back from {done}")


StateName = Literal["done", "running", "failed", "to do"]


@dataclass(frozen=True)
class UnitState:
    """State of one unit at the moment, and what its log says since it was last set back."""

    unit: Unit
    name: StateName
    failure: AttemptFailure | None
    """Why it failed for good, or what stopped its last attempt."""
    n_attempts: int
    n_killed: int
    """Attempts without an end whose worker is gone without having been told to stop."""
    n_halvings: int
    """Attempts that ran out of memory."""
    n_transient: int
    """Of the run that is asked about."""
    worker: str | None
    """Who works on it."""
    result: Mapping[str, Any] | None


def state_of(sweep: Sweep, unit: Unit, *, run: str = "", mine: bool = False) -> UnitState:
    """The state of a unit, from its result, its claim and its log.

    Args:
        sweep: in its folder.
        unit: the unit.
        run: transient failures count against it only within this run.
        mine: the claim is the caller's, so that nobody else works on it.
    """
    result = finished(sweep, unit)
    worker = None if mine or result is not None else holder(sweep.claim(unit.id))
    rows: list[Row] = []
    for row in filter(_is_whole, read_appended(sweep.attempts(unit.id))):
        rows = [] if row["event"] == "retry" else [*rows, row]
    starts, ends, told = (
        {row["attempt"]: row for row in rows if row["event"] == event}
        for event in ("start", "end", "told to stop")
    )
    killed = [
        row
        for row in starts.values()
        if row["attempt"] not in told and row["attempt"] not in ends
        # of another machine nobody can say whether it runs: the claim counts
        if (running := is_running(row["process"])) is False
        or (worker is None and (mine or running is None))
    ]
    outcomes = Counter(row["outcome"] for row in ends.values())
    recent = [one for one in ends.values() if (one["run"], one["outcome"]) == (run, "transient")]
    last, failed = None, False
    end: Row = next(reversed(ends.values()), {"outcome": "done"})
    if end["outcome"] != "done":
        asked_s = float(end.get("retry_after_s") or 0)
        last = AttemptFailure(end["outcome"], str(end.get("reason", "")), asked_s)
        failed = {
            "permanent": True,
            "transient": len(recent) >= MAX_TRIES,
            "resource": outcomes["resource"] > MAX_HALVINGS,
        }.get(last.kind, False)
    if len(killed) >= MAX_KILLS:
        failed, last = True, AttemptFailure("poison", f"its worker was killed {len(killed)} times")
    elif outcomes["done"] >= MAX_TRIES:
        reason = f"it ended well {outcomes['done']} times, and has no result"
        failed, last = True, AttemptFailure("permanent", reason)
    name: StateName = "failed" if failed else "to do"
    if result is not None or worker is not None:
        name, last = "running" if result is None else "done", None
    counts = (len(starts), len(killed), outcomes["resource"], len(recent))
    return UnitState(unit, name, last, *counts, worker, result)


def states_of(sweep: Sweep, *, run: str = "") -> list[UnitState]:
    """The state of every unit, in the order of the plan."""
    return [state_of(sweep, unit, run=run) for unit in sweep.units]


def why_missing(state: UnitState) -> str:
    """Reason why a planned unit has no result."""
    if state.name == "running":
        return f"running ({state.worker})"
    return f"{state.failure.kind}: {state.failure.reason}" if state.failure else "not begun"


def strangers(sweep: Sweep) -> list[str]:
    """Results in the folder that are of no unit of the plan."""
    return sorted(one.name for one in sweep.root.glob(f"{UNITS}/*") if sweep.is_other(one.name))
