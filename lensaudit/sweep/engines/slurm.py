"""Slurm through submitit: one array of jobs, put back into the queue when preempted."""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.sweep.failures import Preempted
from lensaudit.sweep.work import Order, Report, said, work

POLL_S = 1.0
TIMEOUT_MIN = 240
"""Minutes a job may take where nobody says so; a checkpoint with its variants takes fewer."""


@dataclass(frozen=True)
class Work:
    """An order as submitit carries it: `checkpoint` is what it calls before a job is taken away."""

    order: Order

    def __call__(self) -> None:
        """Do the order. Being told to stop is not an error: the run sees what is left."""
        with contextlib.suppress(Preempted):
            work(self.order, said)

    def checkpoint(self) -> Any:
        """The same order again: finished units and passes are not repeated."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def parameters_of(given: Sequence[str], *, workers: int | None) -> dict[str, Any]:
    """Parameters for submitit from `key=value` texts.

    Raises:
        InputError: a text is not of this form.
    """
    found: dict[str, Any] = {"timeout_min": TIMEOUT_MIN}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise InputError(f"--slurm {text}: wanted KEY=VALUE, e.g. slurm_partition=a100")
        found[key] = int(value) if value.isdigit() else value
    if workers is not None:
        found["slurm_array_parallelism"] = workers
    return found


def run_slurm(
    orders: Sequence[Order], *, cluster: str, parameters: Mapping[str, Any], report: Report
) -> None:
    """Submit one job per order and wait for all.

    Raises:
        InputError: there is no Slurm here, or a parameter it does not know.
    """
    # its import would log to stdout, which holds results alone; NOCONFIG leaves logging as it is
    os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")
    import submitit

    folder = Path(orders[0].root) / "slurm"
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(**parameters)
    except (RuntimeError, NameError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"--engine slurm: {reason}") from error
    limit = parameters.get("slurm_array_parallelism") or len(orders)
    if cluster == "slurm":
        with executor.batch():
            jobs = [executor.submit(Work(order)) for order in orders]
        _wait(jobs, report)
    else:
        _in_turn(executor, orders, limit, report)


def _in_turn(executor: Any, orders: Sequence[Order], limit: int, report: Report) -> None:
    """Without Slurm there is no queue: at most `limit` jobs at once."""
    waiting, jobs = list(orders), []
    while waiting or jobs:
        while waiting and len(jobs) < limit:
            order = waiting.pop(0)
            jobs.append(executor.submit(Work(order)))
        if any(job.done() for job in jobs):
            _wait([job for job in jobs if job.done()], report)
            jobs = [job for job in jobs if not job.done()]
        time.sleep(POLL_S / 5)


def _wait(jobs: Sequence[Any], report: Report) -> None:
    """Until all jobs ended; what failed in them is in the units' logs."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    for job in jobs:
        while not job.done():
            time.sleep(POLL_S)
        try:
            job.result()
        except (FailedJobError, UncompletedJobError) as error:
            report(f"job {job.job_id}: {(str(error).splitlines() or ['ended'])[0][:200]}")
