"""What a worker does, whichever engine started it: the units of one checkpoint, in sequence."""

import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.files import printable
from lensaudit.sweep.attempts import Attempt, StopSignals
from lensaudit.sweep.claims import claimed
from lensaudit.sweep.failures import Failure, Preempted
from lensaudit.sweep.layout import Layout
from lensaudit.sweep.plan import Plan, Unit, read_plan
from lensaudit.sweep.room import Room
from lensaudit.sweep.state import state_of

Report = Callable[[str], None]


RUNNER = "lensaudit.sweep.unit:run_unit"
SHARE = "LENSAUDIT_GPU_SHARE"
"""Environment variable: part of a GPU's memory that a worker may take."""


OWN_SIGNALS = ("slurm", "ray")
"""Engines that answer signals themselves: submitit puts the job back into the queue."""


def said(line: str) -> None:
    """A worker's line on stderr, where it has no driver to tell."""
    print(f"lensaudit: {printable(line)}", file=sys.stderr, flush=True)


def _silent(line: str) -> None:
    pass


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


def work(order: Order, report: Report = _silent) -> None:
    """Do the units that are not done, failed for good, or somebody else's.

    Every failure is in the unit's log when this returns; what it raises stopped the worker.

    Raises:
        Preempted: told to stop, or out of time.
    """
    layout = Layout(Path(order.root))
    plan = read_plan(layout.root)
    with StopSignals(install=order.engine not in OWN_SIGNALS) as signals:
        for unit_id in order.units:
            _check_time(order, signals)
            attempt(layout, plan, plan.by_id[unit_id], order, signals, report)
    if not all(target.is_folder for target in plan.targets):
        target = plan.by_name[plan.by_id[order.units[0]].target]
        _weights(layout, plan, order).release(target)


def attempt(
    layout: Layout,
    plan: Plan,
    unit: Unit,
    order: Order,
    signals: StopSignals,
    report: Report = _silent,
) -> Failure | None:
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
    layout: Layout, plan: Plan, unit: Unit, order: Order, halvings: int, report: Report
) -> None:
    # seconds to import; a worker that finds nothing to do needs none of it
    module, _, function = order.runner.partition(":")
    run_unit = getattr(importlib.import_module(module), function)
    _take_share()
    obtain = _weights(layout, plan, order).obtain
    run_unit(layout, plan, unit, obtain, Room(layout.activations, halvings, report))


def _weights(layout: Layout, plan: Plan, order: Order) -> Any:
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
