"""How far is a sweep? One line for people, one object for scripts."""

import contextlib
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.filesize import decimal as size

from lensaudit.sweep.plan import Plan, SweepFolder
from lensaudit.sweep.results import UnitState, states_of, strangers


def status_of(layout: SweepFolder, plan: Plan) -> dict[str, Any]:
    """Everything worth knowing now, as plain JSON."""
    states = states_of(layout, plan)
    names = [one.name for one in states]
    seconds = [float(one.result["seconds"]) for one in states if one.result]
    running = [one for one in states if one.name == "running"]
    typical = statistics.median(seconds) if seconds else None
    left = names.count("to do") + len(running)
    eta = typical * left / max(1, len(running)) if typical is not None and left else None
    return {
        "schema": 1,
        "plan": plan.hash,
        "n_units": len(states),
        "done": names.count("done"),
        "running": len(running),
        "failed": names.count("failed"),
        "to_do": names.count("to do"),
        "seconds_per_unit": typical,
        "eta_s": eta,
        "weights_bytes": folder_bytes(layout, "weights"),
        "activations_bytes": folder_bytes(layout, "activations"),
        "other_results": len(strangers(layout, plan)),
        "units": [_row(one) for one in states],
    }


def _row(state: UnitState) -> dict[str, Any]:
    return {
        "id": state.unit.id,
        "model": state.unit.target,
        "variant": state.unit.variant,
        "state": state.name,
        "n_attempts": state.history.n_attempts,
        "n_killed": state.history.n_killed,
        "worker": state.worker,
        "failure": asdict(state.failure) if state.failure else None,
        "seconds": state.result["seconds"] if state.result else None,
    }


def folder_bytes(layout: SweepFolder, name: str) -> int:
    """Bytes of the files under a folder of the sweep; what vanishes meanwhile counts as nothing."""
    total = 0
    for folder, _, names in os.walk(layout.root / name):
        for file in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, file)).st_size
    return total


def line_of(status: dict[str, Any]) -> str:
    """`done 112/150 · running 4 · failed 2 (1 permanent) · 37 s/unit · ETA 6 min …`."""
    parts = [f"done {status['done']}/{status['n_units']}", f"running {status['running']}"]
    kinds = [row["failure"]["kind"] for row in status["units"] if row["state"] == "failed"]
    if kinds:
        counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
        parts.append(f"failed {len(kinds)} ({counted})")
    if status["seconds_per_unit"] is not None:
        parts.append(f"{status['seconds_per_unit']:.0f} s/unit")
    if status["eta_s"] is not None:
        parts.append(f"ETA {_duration(status['eta_s'])}")
    parts.append(f"weights {size(status['weights_bytes'])}")
    parts.append(f"caches {size(status['activations_bytes'])}")
    return " · ".join(parts)


def _duration(seconds: float) -> str:
    """The largest unit that says enough.

    >>> _duration(50.0), _duration(400.0), _duration(9000.0)
    ('50 s', '7 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def problem_lines(status: dict[str, Any], limit: int | None = None) -> list[str]:
    """One line per unit that failed, and per unit that will be tried again after a failure."""
    rows: Sequence[dict[str, Any]] = [row for row in status["units"] if row["failure"]]
    return [
        f"{row['state']}: {row['model']} {row['variant']}: {row['failure']['kind']}: "
        f"{row['failure']['reason']}"
        for row in rows[:limit]
    ]
