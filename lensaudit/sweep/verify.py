"""Are the numbers those that another machine would find? Random units are computed again."""

import math
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, VerificationError
from lensaudit.sweep.plan import Plan, SweepFolder, Unit
from lensaudit.sweep.results import UnitState, states_of
from lensaudit.sweep.run import Report, UnitRoom
from lensaudit.sweep.unit import measure, stage
from lensaudit.sweep.weights import Weights

TOLERANCES = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 2e-2}
"""Of a value, absolute and relative: other kernels and batches move metrics by less than this; a
generation may change a word, so that a mean over few texts moves more."""


@dataclass(frozen=True)
class Compared:
    """One unit computed twice."""

    unit: str
    n_values: int
    worst: float
    """Largest difference over tolerance's scale, max(1, |value|)."""
    metric: str
    """Where that is; empty where nothing differs."""
    tolerance: float

    @property
    def is_within(self) -> bool:
        """Nothing differs by more than the tolerance."""
        return self.worst <= self.tolerance


def verify_sweep(
    layout: SweepFolder,
    plan: Plan,
    *,
    sample: int,
    seed: int,
    tolerance: float | None,
    report: Report,
) -> list[Compared]:
    """Compute `sample` random finished units again, with caches of their own.

    Raises:
        InputError: nothing is finished.
    """
    done = [one for one in states_of(layout, plan) if one.result is not None]
    if not done:
        raise InputError(f"{layout.root}: no unit is finished; run the sweep first")
    # the seed chooses among units by id, so that the order of a plan does not matter
    done.sort(key=lambda one: one.unit.id)
    chosen = random.Random(seed).sample(done, min(sample, len(done)))
    found = []
    for state in chosen:
        report(f"{state.unit.label}: computed again")
        found.append(_compared(layout, plan, state, tolerance))
    return found


def _compared(
    layout: SweepFolder, plan: Plan, state: UnitState, tolerance: float | None
) -> Compared:
    result: Mapping[str, Any] = state.result or {}
    weights = Weights(layout, plan)
    # beside the sweep: an attacked checkpoint may be too large for a folder in memory
    with tempfile.TemporaryDirectory(prefix="verify-", dir=layout.root) as folder:
        work = Path(folder)
        subject = stage(layout, plan, state.unit, work, weights.obtain)
        room = UnitRoom(work / "activations", halvings=int(result["halvings"]))
        again = measure(subject, plan.conditions, work, room)
    allowed = TOLERANCES[result["dtype"]] if tolerance is None else tolerance
    return compare(state.unit, result["values"], again, allowed)


def compare(
    unit: Unit, before: Mapping[str, Any], again: Mapping[str, Any], tolerance: float
) -> Compared:
    """The largest difference of two measurements; a value on one side only is infinite."""
    gaps = {name: _gap(before.get(name), again.get(name)) for name in {*before, *again}}
    worst = max(gaps, key=lambda name: gaps[name]) if gaps else ""
    value = gaps.get(worst, 0.0)
    return Compared(unit.label, len(gaps), value, worst if value else "", tolerance)


def _gap(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> float:
    a, b = ((one or {}).get("value") for one in (first, second))
    if a is None or b is None:
        return 0.0 if a is b else math.inf
    return abs(a - b) / max(1.0, abs(a))


def refuse(found: Sequence[Compared]) -> None:
    """Nothing, if all units are within their tolerance.

    Raises:
        VerificationError: names those that are not.
    """
    bad = [one for one in found if not one.is_within]
    if bad:
        named = "; ".join(f"{one.unit}: {one.metric} by {one.worst:.3g}" for one in bad[:5])
        raise VerificationError(
            f"{len(bad)} of {len(found)} units differ by more than {bad[0].tolerance:g}: {named}\n"
            "compute them again with `lensaudit sweep retry --redo`, and mind the machine"
        )
