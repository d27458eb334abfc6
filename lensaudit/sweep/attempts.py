"""How is a unit: who works on it, who tried it, how did that end, and what came of it?

transient   the network, a full disk, a lock: tried again after a pause, by the next run too
resource    too little memory: tried again with half the batch
preempted   told to stop, or out of time: goes on where it was
poison      its worker was killed each time: left alone until `retry`
permanent   anything else would fail the same way: left alone until `retry`

A claim guards against duplicate work, no more: results do not depend on it. It is a file made with
O_EXCL, touched every half minute, and void when its process is gone, or when it was not touched for
five minutes. Ages are taken from the file system's own clock, so that nodes whose clocks differ
agree. What came of each attempt is a line of an append-only log per unit. A result is published
whole by one rename, and found again by the key of its unit.
"""

import contextlib
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

from lensaudit.errors import LensAuditError, TryAgainError, WorkError
from lensaudit.files import (
    append_jsonl,
    make_folder,
    os_error,
    parse_json,
    printable,
    read_appended,
    read_bytes,
    remove_below,
    sync_folder,
)
from lensaudit.partials import is_running, process_name
from lensaudit.results.eval_runs import check_share
from lensaudit.results.keyed import keyed_document, write_keyed
from lensaudit.results.reading import Number, Whole, check_inside
from lensaudit.results.records import mark_of
from lensaudit.scores.estimate import Estimate
from lensaudit.sweep.plan import Sweep, Unit

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
_MEMORY = ("out of memory", "can't allocate memory", "does not fit into memory")
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
    reason = printable(_line(error))[:_REASON]
    chain = list(_causes(error))
    if any(isinstance(one, Preempted | KeyboardInterrupt | SystemExit) for one in chain):
        return AttemptFailure("preempted", reason or "interrupted")
    if any(_is_memory(one) for one in chain):
        return AttemptFailure("resource", reason)
    for one in chain:
        if isinstance(one, HfHubHTTPError) and one.response.status_code in _PASSING:
            return AttemptFailure("transient", reason, _retry_after(one))
    if any(_is_passing(one) for one in chain):
        return AttemptFailure("transient", reason)
    return AttemptFailure("permanent", reason)


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
    last: AttemptFailure | None = None
    seconds: float | None = None
    """Of the last attempt that ended well."""

    @property
    def failed(self) -> AttemptFailure | None:
        """Why the unit is not tried again; None where it is."""
        if self.n_killed >= MAX_KILLS:
            return AttemptFailure("poison", f"its worker was killed {self.n_killed} times")
        if self.n_done >= MAX_TRIES:
            return AttemptFailure(
                "permanent", f"it ended well {self.n_done} times, and has no result"
            )
        if self.last is None:
            return None
        over = {
            "permanent": True,
            "transient": self.n_transient >= MAX_TRIES,
            "resource": self.n_halvings > MAX_HALVINGS,
        }
        return self.last if over.get(self.last.kind) else None


def history(path: Path, *, run: str = "", is_claimed: bool = False) -> History:
    """Attempts at a unit so far, counted from its log.

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
    # of another machine nobody can say whether it runs: the claim counts
    here = [row for row in open_ if is_claimed and is_running(row["process"]) is not False]
    killed = [row for row in open_ if row["attempt"] not in told and row not in here]
    kinds = [row.get("outcome") for row in ends.values()]
    recent = [r for r in ends.values() if r.get("run") == run and r.get("outcome") == "transient"]
    end: Row = next(reversed(ends.values()), {"outcome": "done"})
    last = None
    if end["outcome"] != "done":
        asked_s = float(end.get("retry_after_s") or 0)
        last = AttemptFailure(end["outcome"], str(end.get("reason", "")), asked_s)
    return History(
        n_attempts=len(starts),
        n_killed=len(killed),
        n_halvings=kinds.count("resource"),
        n_transient=len(recent),
        n_done=n_done,
        last=last,
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
        self.failure: AttemptFailure | None = None
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
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._log(
            "end",
            **found,
            seconds=round(time.monotonic() - self._started, 3),
            peak_bytes=peak if sys.platform == "darwin" else peak * 1024,
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
    """The process that holds a claim; None where nobody does."""
    try:
        found: Any = parse_json(read_bytes(path))
        age = _now(path.parent) - path.stat().st_mtime
        process = str(found["process"])
        running = is_running(process)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, LensAuditError):
        # being written, or torn by a full disk: old ones count as nobody's
        with contextlib.suppress(OSError):
            return "unreadable" if _now(path.parent) - path.stat().st_mtime < STALE_S else None
        return None
    # a process number may have been given to another process since: the heartbeat counts here too
    return process if running is not False and age < STALE_S else None


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Hold a claim for the body; False where somebody else does."""
    nonce = secrets.token_hex(8)
    if not _take(path, nonce):
        yield False
        return
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, stop), daemon=True)
    beat.start()
    try:
        yield True
    finally:
        stop.set()
        beat.join()
        _give_back(path, nonce)


def _take(path: Path, nonce: str) -> bool:
    make_folder(path.parent)
    try:
        with FileLock(path.with_suffix(".lock"), timeout=10):
            if holder(path) is not None:
                return False
            path.unlink(missing_ok=True)
            with path.open("x") as stream:
                json.dump({"process": process_name(), "nonce": nonce}, stream)
    except (FileExistsError, Timeout):
        return False
    return True


def _give_back(path: Path, nonce: str) -> None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        if json.loads(path.read_bytes())["nonce"] == nonce:
            path.unlink()


def _beat(path: Path, stop: threading.Event) -> None:
    while not stop.wait(BEAT_S):
        with contextlib.suppress(OSError):
            os.utime(path)


def _now(folder: Path) -> float:
    """The time by the clock that stamps files in `folder`."""
    probe = folder / f".now-{secrets.token_hex(6)}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


RESULT = "result.json"
SCHEMA = 1
PARTS = ("eval", "patch", "know")
"""Folders of a unit: one for each question."""
_SCRATCH = ("checkpoint", "registry.json", "eval/passes", "eval/retain")
"""What only the work needed."""


def finished(sweep: Sweep, unit: Unit) -> Mapping[str, Any] | None:
    """The result of a unit; None where it is not done. A damaged one is not done."""
    return keyed_document(sweep.unit(unit.id) / RESULT, unit.id)


@dataclass(frozen=True)
class UnitValue:
    """A metric of a unit: its value with limits, or the reason why there is none."""

    value: Number | None
    low: Number | None
    high: Number | None
    n_scored: Whole
    n_unscored: Whole
    reason: str | None
    high_means: str | None
    family: str


def check_values(unit: Unit, result: Mapping[str, Any]) -> None:
    """Refuse a value that no unit can have.

    Raises:
        InputError: it lies outside its own interval, or UDS outside 0 to 1.
    """
    for name, one in result["values"].items():
        where = f"{unit.label}: {name}"
        check_inside(Estimate.within(one["value"], (one["low"], one["high"])), where)
        check_share(name, one["value"], where)


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
    if record is not None:
        files = {path.relative_to(work).as_posix(): mark_of(path) for path in _kept(work)}
        identity = {"schema": SCHEMA, "key": unit.id, "unit": unit.id, "target": unit.target}
        write_keyed(work / RESULT, {**identity, "variant": unit.variant, **record, "files": files})
    for name in _SCRATCH:
        remove_below(work, work / name)
    try:
        sweep.published.mkdir(parents=True, exist_ok=True)
        if finished(sweep, unit) is not None:  # another worker was faster; both hold the same
            remove_below(sweep.root, work)
            return
        remove_below(sweep.published, done)
        os.rename(work, done)
        sync_folder(sweep.published)
    except OSError as error:
        raise os_error(error, done) from error
    if finished(sweep, unit) is None:
        raise WorkError(f"{unit.label}: its published result cannot be read back from {done}")


def _kept(work: Path) -> Iterator[Path]:
    for part in PARTS:
        for path in sorted((work / part).rglob("*")):
            below = path.relative_to(work).as_posix()
            if path.is_file() and not below.startswith(("eval/passes/", "eval/retain/")):
                yield path


StateName = Literal["done", "running", "failed", "to do"]


@dataclass(frozen=True)
class UnitState:
    """State of one unit at the moment, and what is known of its attempts."""

    unit: Unit
    name: StateName
    history: History
    worker: str | None = None
    """Who works on it."""
    result: Mapping[str, Any] | None = None

    @property
    def failure(self) -> AttemptFailure | None:
        """Why it failed for good, or what stopped its last attempt."""
        if self.name in ("done", "running"):
            return None
        return self.history.failed or self.history.last


def state_of(sweep: Sweep, unit: Unit, *, run: str = "") -> UnitState:
    """The state of a unit; transient failures count against it only within `run`."""
    result = finished(sweep, unit)
    if result is not None:
        return UnitState(unit, "done", history(sweep.attempts(unit.id), run=run), result=result)
    worker = holder(sweep.claim(unit.id))
    past = history(sweep.attempts(unit.id), run=run, is_claimed=worker is not None)
    if worker is not None:
        return UnitState(unit, "running", past, worker)
    return UnitState(unit, "failed" if past.failed else "to do", past)


def states_of(sweep: Sweep, *, run: str = "") -> list[UnitState]:
    """The state of every unit, in the order of the plan."""
    return [state_of(sweep, unit, run=run) for unit in sweep.units]


def strangers(sweep: Sweep) -> list[str]:
    """Results in the folder that are of no unit of the plan."""
    if not sweep.published.is_dir():
        return []
    return sorted(one.name for one in sweep.published.iterdir() if one.name not in sweep.by_id)
