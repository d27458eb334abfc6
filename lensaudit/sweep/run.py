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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.errors import PartialError, TryAgainError, WorkError
from lensaudit.files import printable
from lensaudit.progress import Progress
from lensaudit.sweep.attempts import Attempt, AttemptFailure, Preempted, StopSignals, claimed
from lensaudit.sweep.plan import Plan, SweepFolder, Unit, UnitConditions, read_plan
from lensaudit.sweep.results import UnitState, state_of, states_of
from lensaudit.sweep.settings import RunSettings

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


def _silent(line: str) -> None:
    pass


@dataclass(frozen=True)
class UnitRoom:
    """What a unit may take, and who is told how far it is."""

    activations: Path
    halvings: int = 0
    """Of batch and memory, because it ran out before."""
    report: Callable[[str], None] = lambda line: None
    """Called after each pass; may raise to stop between passes."""

    def tell(self, progress: Progress) -> None:
        """Report a finished piece."""
        self.report(progress.piece)

    def batch_size(self, conditions: UnitConditions) -> int | None:
        """The planned batch, halved as often as memory ran out."""
        if not self.halvings:
            return conditions.batch_size
        return max(1, (conditions.batch_size or 32) >> self.halvings)


@dataclass(frozen=True)
class Order:
    """What a worker is told; plain data, so that any engine can carry it."""

    root: str
    """The sweep's folder."""
    units: tuple[str, ...]
    """Ids, all of one checkpoint."""
    run: str
    """The run that ordered it."""
    engine: str
    until: float | None = None
    """Time of day (`time.time()`) after which no further pass is begun."""
    quota_bytes: int | None = None
    """Of the fetched weights; None is the planned default."""
    offline: bool = False
    runner: str = RUNNER
    """`module:function` that does a unit."""


Engine = Callable[[Sequence[Order]], None]
"""Does orders wherever it does them; returns when all were tried. Outcomes are on disk."""


def work(order: Order, report: Report = _silent) -> None:
    """Do the units that are not done, failed for good, or somebody else's.

    Every failure is in the unit's log when this returns; what it raises stopped the worker.

    Raises:
        Preempted: told to stop, or out of time.
    """
    layout = SweepFolder(Path(order.root))
    plan = read_plan(layout.root)
    with StopSignals(install=order.engine not in OWN_SIGNALS) as signals:
        for unit_id in order.units:
            _check_time(order, signals)
            attempt(layout, plan, plan.by_id[unit_id], order, signals, report)
    if not all(target.is_folder for target in plan.targets):
        target = plan.by_name[plan.by_id[order.units[0]].target]
        _weights(layout, plan, order).release(target)


def attempt(
    layout: SweepFolder,
    plan: Plan,
    unit: Unit,
    order: Order,
    signals: StopSignals,
    report: Report = _silent,
) -> AttemptFailure | None:
    """Try a unit once, if it is there to be tried; how it failed, if it did."""
    with claimed(layout.claim(unit.id)) as mine:
        if not mine:
            return None
        # the claim is ours, so a state of "running" would be our own
        path = layout.attempts(unit.id)
        past = state_of(layout, unit, run=order.run)
        if past.result is not None or past.history.failed:
            return past.history.failed
        report(f"{unit.label}: begins")
        with Attempt(path, run=order.run, engine=order.engine) as trying:
            signals.attempt = trying
            _run(layout, plan, unit, order, past.history.n_halvings, _stopping(order, signals))
        signals.attempt = None
        failure = trying.failure
        report(f"{unit.label}: {f'{failure.kind}: {failure.reason}' if failure else 'done'}")
        return failure


def _run(
    layout: SweepFolder, plan: Plan, unit: Unit, order: Order, halvings: int, report: Report
) -> None:
    # seconds to import; a worker that finds nothing to do needs none of it
    module, _, function = order.runner.partition(":")
    run_unit = getattr(importlib.import_module(module), function)
    _take_share()
    obtain = _weights(layout, plan, order).obtain
    run_unit(layout, plan, unit, obtain, UnitRoom(layout.activations, halvings, report))


def _weights(layout: SweepFolder, plan: Plan, order: Order) -> Any:
    from lensaudit.sweep.weights import Weights

    return Weights(layout, plan, order.quota_bytes, order.offline)


def _take_share() -> None:
    """Keep to this worker's part of a GPU: an over-large unit then fails alone."""
    share = os.environ.get(SHARE)
    if share is None:
        return
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(float(share))


def _stopping(order: Order, signals: StopSignals) -> Report:
    """A report that ends the unit between two passes when the worker has to end."""
    return lambda line: _check_time(order, signals)


def _check_time(order: Order, signals: StopSignals) -> None:
    if signals.asked:
        raise Preempted("told to stop; finished passes are kept, run the sweep again")
    if order.until is not None and time.time() > order.until:
        raise Preempted("out of time (--max-hours); run the sweep again to go on")


def groups(units: Sequence[Unit]) -> list[tuple[str, ...]]:
    """Ids of units by checkpoint, in order: one worker, one download."""
    found: dict[str, list[str]] = {}
    for unit in units:
        found.setdefault(unit.target, []).append(unit.id)
    return [tuple(ids) for ids in found.values()]


@dataclass(frozen=True)
class RunOptions:
    """How long a run goes on and what it may fetch; nothing here decides a number."""

    engine: str = RunSettings.engine
    max_hours: float | None = None
    quota_bytes: int | None = None
    offline: bool = False
    pause_s: float = FIRST_PAUSE_S
    runner: str = RUNNER


def run_sweep(root: Path, engine: Engine, options: RunOptions, report: Report) -> list[UnitState]:
    """Do what is left of a sweep; the states of all units afterwards.

    Raises:
        WorkError: an anchor failed, so nothing else could begin.
        PartialError: units failed; names them.
        TryAgainError: units are left that another try may do.
    """
    layout, plan = SweepFolder(root), read_plan(root)
    run = _Rounds(layout, plan, engine, options, report, run=secrets.token_hex(6))
    for unit in plan.anchor_units():
        run.rounds([unit])
        _check_anchor(state_of(layout, unit, run=run.run))
    run.rounds(plan.units)
    run.let_go()
    return concluded(states_of(layout, plan, run=run.run))


def _check_anchor(state: UnitState) -> None:
    if state.name == "done":
        return
    if state.name == "running":
        raise TryAgainError(f"{state.unit.label} is worked on by {state.worker}; run again later")
    reason = state.failure.reason if state.failure else "it was not done"
    raise WorkError(f"the anchor {state.unit.label} failed, all other units wait for it: {reason}")


def concluded(states: list[UnitState]) -> list[UnitState]:
    """The states, or the error that says what is missing.

    Raises:
        PartialError: units failed; names them.
        TryAgainError: units are left that another try may do.
    """
    failed = [one for one in states if one.name == "failed"]
    left = [one for one in states if one.name in ("to do", "running")]
    if failed:
        named = "; ".join(
            f"{one.unit.label}: {one.failure.kind}: {one.failure.reason}"
            for one in failed[:_SHOWN]
            if one.failure
        )
        more = f" (and {len(failed) - _SHOWN} more)" if len(failed) > _SHOWN else ""
        raise PartialError(
            f"{len(failed)} of {len(states)} units failed: {named}{more}\n"
            "all finished units are kept; `lensaudit sweep retry` lets failed ones be tried again"
        )
    if left:
        running = sum(one.name == "running" for one in left)
        raise TryAgainError(
            f"{len(left)} of {len(states)} units are not done ({running} running elsewhere); "
            "run the sweep again"
        )
    return states


@dataclass
class _Rounds:
    layout: SweepFolder
    plan: Plan
    engine: Engine
    options: RunOptions
    report: Report
    run: str

    def rounds(self, units: Sequence[Unit]) -> None:
        """Order what is left, again and again, until a round changes nothing."""
        pause, before = self.options.pause_s, None
        until = None
        if self.options.max_hours is not None:
            until = time.time() + 3600 * self.options.max_hours
        while True:
            states = [state_of(self.layout, unit, run=self.run) for unit in units]
            todo = [one for one in states if one.name == "to do"]
            if not todo or before == [one.history for one in states]:
                return
            before = [one.history for one in states]
            asked = [one.failure for one in todo if one.failure and one.history.n_transient]
            if asked:
                wait = max(pause, *(one.retry_after_s for one in asked))
                self.report(f"waits {wait:.0f} s before {len(todo)} units are tried again")
                time.sleep(min(wait, LONGEST_PAUSE_S))
                pause *= 2
            orders = self._orders([one.unit for one in todo], until)
            with self._fetching(orders):
                self.engine(orders)

    def let_go(self) -> None:
        """Remove the fetched anchors, if no unit is left that reads them."""
        remote = [self.plan.by_name[name] for name in self.plan.anchors.values()]
        remote = [target for target in remote if not target.is_folder]
        if remote and self.layout.weights.is_dir():
            from lensaudit.sweep.weights import Weights

            for target in remote:
                Weights(self.layout, self.plan).release(target)

    def _orders(self, units: Sequence[Unit], until: float | None) -> list[Order]:
        root, options = str(self.layout.root.resolve()), self.options
        return [
            Order(
                root,
                ids,
                self.run,
                options.engine,
                until,
                options.quota_bytes,
                options.offline,
                options.runner,
            )
            for ids in groups(units)
        ]

    @contextmanager
    def _fetching(self, orders: Sequence[Order]) -> Iterator[None]:
        """Fetch the next checkpoints while the engine works."""
        targets = [self.plan.by_name[self.plan.by_id[one.units[0]].target] for one in orders]
        remote = [target for target in targets if not target.is_folder]
        if not remote or self.options.offline or self.options.runner != RUNNER:
            yield
            return
        from lensaudit.sweep.weights import Weights, fetch_ahead

        stop = threading.Event()
        weights = Weights(self.layout, self.plan, self.options.quota_bytes, pause=stop.wait)
        thread = threading.Thread(
            target=fetch_ahead, args=(weights, remote, stop.is_set), daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=1)
