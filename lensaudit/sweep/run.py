"""A run: the anchors, then everything else, until nothing is left that another try could do.

Engines carry orders to workers, wherever these are; a worker does the units of one checkpoint.
"""

import importlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lensaudit.errors import PartialError, TryAgainError, WorkError, shortened
from lensaudit.groups import grouped
from lensaudit.progress import unheard
from lensaudit.sweep.attempts import (
    Attempt,
    AttemptFailure,
    Preempted,
    StopSignals,
    UnitState,
    claimed,
    state_of,
    states_of,
    why_missing,
)
from lensaudit.sweep.plan import Sweep, Target, Unit, read_plan
from lensaudit.sweep.removal import check_unlinked
from lensaudit.sweep.settings import RunSettings
from lensaudit.text import printable

RUNNER = "lensaudit.sweep.unit:run_unit"
SHARE = "LENSAUDIT_GPU_SHARE"
"""Environment variable: part of a GPU's memory that a worker may take."""
OWN_SIGNALS = ("slurm", "ray")
"""Engines that answer signals themselves: submitit puts the job back into the queue."""
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 300.0
_SHOWN = 5
Report = Callable[[str], None]


def said(line: str) -> None:
    """A worker's line on stderr, where it has no driver to tell."""
    print(f"lensaudit: {printable(line)}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Order:
    """A worker's order: which units to do; plain data, so that any engine can carry it."""

    root: str
    """The sweep's folder."""
    units: tuple[str, ...] = ()
    """Ids, all of one checkpoint."""
    run: str = field(default_factory=lambda: secrets.token_hex(6))
    """The run that ordered it."""
    settings: RunSettings = field(default_factory=RunSettings)
    until: float | None = None
    """Time of day (`time.time()`) after which no further pass is begun."""
    runner: str = RUNNER
    """`module:function` that does a unit."""

    def check_time(self, signals: StopSignals) -> None:
        """End a worker between two passes.

        Raises:
            Preempted: it was told to stop, or its time is up.
        """
        if signals.asked:
            raise Preempted("told to stop; finished passes are kept, run the sweep again")
        if self.until is not None and time.time() > self.until:
            raise Preempted("out of time (--max-hours); run the sweep again to go on")

    def __call__(self) -> None:
        """Do the order as a job of submitit; being told to stop is no error."""
        with suppress(Preempted):
            work(self, said)

    def checkpoint(self) -> Any:
        """Give submitit the same order again before a job is taken away: nothing is repeated."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


Engine = Callable[[Sequence[Order]], None]
"""Does orders wherever it does them; returns when all were tried. Outcomes are on disk."""


def work(order: Order, report: Report = unheard) -> None:
    """Do the units that are not done, have not failed for good, and are not another worker's.

    Every failure is in the unit's log when this returns; what it raises stopped the worker.

    Raises:
        Preempted: told to stop, or out of time.
    """
    sweep = read_plan(Path(order.root))
    with StopSignals(install=order.settings.engine not in OWN_SIGNALS) as signals:
        for unit_id in order.units:
            order.check_time(signals)
            attempt(sweep, sweep.by_id[unit_id], order, signals, report)
    if not all(target.is_folder for target in sweep.targets):
        target = sweep.by_name[sweep.by_id[order.units[0]].target]
        _weights(sweep, order.settings).release(target)


def attempt(
    sweep: Sweep,
    unit: Unit,
    order: Order,
    signals: StopSignals,
    report: Report = unheard,
) -> AttemptFailure | None:
    """Try a unit once, if it is there to be tried; how it failed, if it did."""
    with claimed(sweep.claim(unit.id)) as mine:
        if not mine:
            return None
        past = state_of(sweep, unit, run=order.run, mine=True)
        if past.name != "to do":
            return past.failure
        report(f"{unit.label}: begins")
        engine = order.settings.engine
        with Attempt(sweep.attempts(unit.id), run=order.run, engine=engine) as trying:
            signals.attempt = trying
            # seconds to import; a worker that finds nothing to do needs none of it
            module, _, function = order.runner.partition(":")
            run_unit = getattr(importlib.import_module(module), function)
            _take_share()
            obtain = _weights(sweep, order.settings).obtain
            run_unit(sweep, unit, obtain, past.n_halvings, lambda _: order.check_time(signals))
        signals.attempt = None
        failure = trying.failure
        report(f"{unit.label}: {f'{failure.kind}: {failure.reason}' if failure else 'done'}")
        return failure


def _weights(sweep: Sweep, settings: RunSettings) -> Any:
    from lensaudit.sweep.weights import Weights

    return Weights(sweep, settings.quota, settings.offline)


def _take_share() -> None:
    """Keep to this worker's part of a GPU: an over-large unit then fails alone."""
    share = os.environ.get(SHARE)
    if share is None:
        return
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(float(share))


def run_sweep(
    root: Path,
    engine: Engine,
    settings: RunSettings,
    report: Report,
    *,
    pause_s: float = FIRST_PAUSE_S,
    runner: str = RUNNER,
) -> list[UnitState]:
    """Do what is left of a sweep; the states of all units afterwards.

    Raises:
        WorkError: an anchor failed, so nothing else could begin.
        PartialError: units failed; names them.
        TryAgainError: units, or an anchor, are left that another try may do.
    """
    sweep = read_plan(root)
    until = None if settings.max_hours is None else time.time() + 3600 * settings.max_hours
    order = Order(str(root.resolve()), settings=settings, until=until, runner=runner)
    for unit in sweep.anchor_units():
        rounds(sweep, [unit], engine, order, report, pause_s)
        check_anchor(state_of(sweep, unit, run=order.run))
    rounds(sweep, sweep.units, engine, order, report, pause_s)
    for name in sweep.anchors.values() if sweep.weights.is_dir() else ():
        # the fetched anchors go, if no unit is left that reads them
        _weights(sweep, settings).release(sweep.by_name[name])
    states = states_of(sweep, run=order.run)
    named = [f"{one.unit.label}: {why_missing(one)}" for one in states if one.name == "failed"]
    if named:
        raise PartialError(
            f"{len(named)} of {len(states)} units failed: {shortened(named, _SHOWN)}\n"
            "all finished units are kept; `lensaudit sweep retry` lets failed ones be tried again"
        )
    if left := [one.name for one in states if one.name != "done"]:
        raise TryAgainError(
            f"{len(left)} of {len(states)} units are not done ({left.count('running')} running "
            "elsewhere); run the sweep again"
        )
    return states


def check_anchor(state: UnitState) -> None:
    """Refuse to go on without an anchor.

    Raises:
        TryAgainError: another process works on it, or what stopped it passes.
        WorkError: it failed.
    """
    if state.name == "running":
        raise TryAgainError(f"{state.unit.label} is worked on by {state.worker}; run again later")
    if state.name != "done":
        why = state.failure.reason if state.failure else "it was not done"
        # a full disk may have no room for the reason either
        if state.name == "to do" or (state.failure and state.failure.kind == "transient"):
            raise TryAgainError(
                f"the anchor {state.unit.label} is not done, all other units wait for it: {why}\n"
                "run the sweep again"
            )
        raise WorkError(
            f"the anchor {state.unit.label} failed, all other units wait for it: {why}\n"
            "`lensaudit sweep retry` lets it be tried again"
        )


def rounds(
    sweep: Sweep,
    units: Sequence[Unit],
    engine: Engine,
    order: Order,
    report: Report,
    pause_s: float,
) -> None:
    """Order what is left, again and again, until a round changes nothing.

    Raises:
        InputError: the sweep's folder holds a link where a run writes.
    """
    check_unlinked(sweep.root)
    before: list[UnitState] = []
    while True:
        states = [state_of(sweep, unit, run=order.run) for unit in units]
        todo = [one for one in states if one.name == "to do"]
        if not todo or before == states:
            return
        before = states
        passing = [one.failure.retry_after_s for one in todo if one.failure and one.n_transient]
        if passing:
            wait = max(pause_s, *passing)
            report(f"waits {wait:.0f} s before {len(todo)} units are tried again")
            time.sleep(min(wait, LONGEST_PAUSE_S))
            pause_s *= 2
        # one worker, one download a checkpoint
        ids = grouped((one.unit.target, one.unit.id) for one in todo)
        orders = [replace(order, units=tuple(own)) for own in ids.values()]
        with _fetching(sweep, [sweep.by_name[name] for name in ids], order):
            engine(orders)


@contextmanager
def _fetching(sweep: Sweep, targets: Sequence[Target], order: Order) -> Iterator[None]:
    """Fetch the next checkpoints while the engine works."""
    remote = [target for target in targets if not target.is_folder]
    if not remote or order.settings.offline or order.runner != RUNNER:
        yield
        return
    from lensaudit.sweep.weights import Weights, fetch_ahead

    stop = threading.Event()
    weights = Weights(sweep, order.settings.quota, pause=stop.wait)
    thread = threading.Thread(target=fetch_ahead, args=(weights, remote, stop.is_set), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=1)
