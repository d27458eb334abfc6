"""How is each unit? Read from what lies in the folder; nothing else is trusted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lensaudit.sweep.attempts import History, history
from lensaudit.sweep.claims import holder
from lensaudit.sweep.failures import Failure
from lensaudit.sweep.layout import Layout
from lensaudit.sweep.plan import Plan, Unit
from lensaudit.sweep.results import finished

Name = Literal["done", "running", "failed", "to do"]


@dataclass(frozen=True)
class State:
    """One unit, now."""

    unit: Unit
    name: Name
    history: History
    worker: str | None = None
    """Who works on it."""
    result: Mapping[str, Any] | None = None

    @property
    def failure(self) -> Failure | None:
        """Why it failed for good, or what stopped its last attempt."""
        if self.name in ("done", "running"):
            return None
        return self.history.failed or self.history.last


def state_of(layout: Layout, unit: Unit, *, run: str = "") -> State:
    """The state of a unit; transient failures count against it only within `run`."""
    result = finished(layout, unit)
    if result is not None:
        return State(unit, "done", history(layout.attempts(unit.id), run=run), result=result)
    worker = holder(layout.claim(unit.id))
    past = history(layout.attempts(unit.id), run=run, is_claimed=worker is not None)
    if worker is not None:
        return State(unit, "running", past, worker)
    return State(unit, "failed" if past.failed else "to do", past)


def states_of(layout: Layout, plan: Plan, *, run: str = "") -> list[State]:
    """The state of every unit, in the order of the plan."""
    return [state_of(layout, unit, run=run) for unit in plan.units]


def strangers(layout: Layout, plan: Plan) -> list[str]:
    """Results in the folder that are of no unit of the plan."""
    if not layout.units.is_dir():
        return []
    return sorted(one.name for one in layout.units.iterdir() if one.name not in plan.by_id)
