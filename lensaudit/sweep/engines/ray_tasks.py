"""Ray core: tasks on one machine or many, with fractions of GPUs; Ray repeats what it loses."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lensaudit.errors import InputError, TryAgainError
from lensaudit.sweep.failures import MAX_KILLS, Preempted
from lensaudit.sweep.work import Order, Report, work


@dataclass(frozen=True)
class Cluster:
    """Which Ray, and how much of it a worker takes."""

    address: str | None
    """None: a new one on this machine, ended with the run."""
    workers: int | None
    """At once, on a new one."""
    gpu_share: float
    """Of a GPU, per worker; a figure for placement, Ray does not limit memory."""
    needs_gpu: bool = True
    """Without a GPU in the cluster: refused if true, done on CPUs if not."""


def run_ray(orders: Sequence[Order], *, cluster: Cluster, report: Report) -> None:
    """Do the orders as tasks; a task whose worker dies is begun again by Ray.

    Raises:
        InputError: no GPU in the cluster where one is needed, or it cannot be reached.
        Preempted: a worker was told to stop, or is out of time.
    """
    ray: Any = _connected(cluster)
    if cluster.gpu_share and ray.cluster_resources().get("GPU", 0) < cluster.gpu_share:
        if cluster.needs_gpu:
            raise InputError(
                "--engine ray: the plan needs a GPU and the cluster has none; a task would wait "
                "for ever"
            )
        cluster = replace(cluster, gpu_share=0.0)
    tasks = [_task(ray, order, cluster) for order in orders]
    # a new Ray stays for the next round, and ends with this process
    _finish(ray, tasks, report)


def _connected(cluster: Cluster) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray  # pyright: ignore[reportMissingImports]

    if ray.is_initialized():
        return ray
    try:
        ray.init(
            address=cluster.address,
            num_cpus=None if cluster.address else cluster.workers,
            include_dashboard=None if cluster.address else False,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"--engine ray: cannot connect ({reason}); check --address") from error
    return ray


def _task(ray: Any, order: Order, cluster: Cluster) -> Any:
    # every unit of the order may be killed as often as makes it poison
    tries = (MAX_KILLS + 1) * len(order.units)
    remote = ray.remote(
        num_cpus=1, num_gpus=cluster.gpu_share, max_retries=tries, retry_exceptions=False
    )
    return remote(work).remote(order)


def _finish(ray: Any, tasks: Sequence[Any], report: Report) -> None:
    waiting, stopped = list(tasks), None
    while waiting:
        (ended, *_), waiting = ray.wait(waiting, num_returns=1)
        try:
            ray.get(ended)
        except ray.exceptions.RayTaskError as error:
            cause = error.as_instanceof_cause()
            if not isinstance(cause, Preempted):
                raise
            stopped = cause
        except ray.exceptions.WorkerCrashedError:
            report("a worker died too often; its unit is not tried again in this run")
        report(f"{len(tasks) - len(waiting)} of {len(tasks)} checkpoints are through")
    if stopped is not None:
        raise TryAgainError(str(stopped))
