"""A run: the anchors, then everything else, until nothing is left that another try could do."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lensaudit.errors import PartialError, TryAgainError, WorkError
from lensaudit.sweep.layout import Layout
from lensaudit.sweep.plan import Plan, Unit, read_plan
from lensaudit.sweep.settings import RunSettings
from lensaudit.sweep.state import State, state_of, states_of
from lensaudit.sweep.work import RUNNER, Order, Report, groups

Engine = Callable[[Sequence[Order]], None]
"""Does orders wherever it does them; returns when all were tried. Outcomes are on disk."""
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 300.0
_SHOWN = 5


@dataclass(frozen=True)
class RunOptions:
    """How long a run goes on and what it may fetch; nothing here decides a number."""

    engine: str = RunSettings.engine
    max_hours: float | None = None
    quota_bytes: int | None = None
    offline: bool = False
    pause_s: float = FIRST_PAUSE_S
    runner: str = RUNNER


def run_sweep(root: Path, engine: Engine, options: RunOptions, report: Report) -> list[State]:
    """Do what is left of a sweep; the states of all units afterwards.

    Raises:
        WorkError: an anchor failed, so nothing else could begin.
        PartialError: units failed; names them.
        TryAgainError: units are left that another try may do.
    """
    layout, plan = Layout(root), read_plan(root)
    run = _Run(layout, plan, engine, options, report, run=secrets.token_hex(6))
    for unit in plan.anchor_units():
        run.rounds([unit])
        _check_anchor(state_of(layout, unit, run=run.run))
    run.rounds(plan.units)
    run.let_go()
    return concluded(states_of(layout, plan, run=run.run))


def _check_anchor(state: State) -> None:
    if state.name == "done":
        return
    if state.name == "running":
        raise TryAgainError(f"{state.unit.label} is worked on by {state.worker}; run again later")
    reason = state.failure.reason if state.failure else "it was not done"
    raise WorkError(f"the anchor {state.unit.label} failed, all other units wait for it: {reason}")


def concluded(states: list[State]) -> list[State]:
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
class _Run:
    layout: Layout
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
