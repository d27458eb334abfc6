"""Where units run: here one after another, in local processes, on Ray, on Slurm.

An engine takes orders and returns when each was tried; what came of it is on disk. Placement,
repetition after a lost worker and queues are the engine's. Each slot of local processes has an
executor of its own (concurrent.futures), because a broken executor takes all of its workers with
it; it starts again when its process dies. submitit's local executor would import the package anew
for every order, does not start a killed worker again and knows no slots.
"""

import contextlib
import importlib.util
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, TryAgainError
from lensaudit.sweep.attempts import MAX_KILLS, Preempted
from lensaudit.sweep.plan import Plan
from lensaudit.sweep.run import RUNNER, SHARE, Engine, Order, Report, said, work
from lensaudit.sweep.settings import RunSettings

_PACKAGES = {"ray": ("ray", "ray"), "slurm": ("submitit", "slurm")}
"""Engine -> its package, and the extra that installs it."""
_TAKES = {
    "serial": (),
    "pool": ("workers", "gpus", "per-gpu"),
    "ray": ("workers", "address", "per-gpu"),
    "slurm": ("workers", "slurm", "cluster"),
}
"""Engine -> the options that mean something to it."""
CORES_PER_WORKER = 4
GPU_PART = 0.95
"""Of a GPU that the workers on it share; the rest is the driver's."""
LAST_PASS_S = 60.0
"""What a worker without a driver has for the pass it is in."""
POLL_S = 0.2
JOB_POLL_S = 1.0
TIMEOUT_MIN = 240
"""Minutes a job may take where nobody says so; a checkpoint with its variants takes fewer."""
_busy = threading.Event()


def engine_of(settings: RunSettings, plan: Plan, *, report: Report) -> Engine:
    """The engine that the settings name, checked to be usable here before anything is ordered.

    Raises:
        InputError: it is not installed, or has not what is asked for.
    """
    name, workers, gpus, per_gpu = (
        settings.engine,
        settings.workers,
        settings.gpus,
        settings.per_gpu,
    )
    options = ("workers", "gpus", "per_gpu", "address", "slurm", "cluster")
    changed = [one for one in options if getattr(settings, one) != getattr(RunSettings, one)]
    _check_options(name, [one.replace("_", "-") for one in changed])
    _check_installed(name)
    device = plan.conditions.device
    if name in ("serial", "pool"):
        check_gpu(plan, gpus)
    if name == "pool":
        indices = [one.strip() for one in (gpus or "").split(",") if one.strip()]
        slots = slots_for(workers=workers, gpus=indices, per_gpu=per_gpu)
        return partial(run_pool, slots=slots, report=report)
    if name == "ray":
        # Ray hides all GPUs from a task that asks for none: `auto` asks where there are some
        share = 1 / per_gpu if device.startswith(("cuda", "auto")) else 0.0
        placed = RayCluster(settings.address, workers, share, needs_gpu=device.startswith("cuda"))
        return partial(run_ray, cluster=placed, report=report)
    if name == "slurm":
        parameters = parameters_of(settings.slurm, workers=workers)
        return partial(run_slurm, cluster=settings.cluster, parameters=parameters, report=report)
    return partial(run_serial, report=report)


def _check_options(name: str, given: Sequence[str]) -> None:
    """Refuse what the engine would not look at."""
    if unused := [option for option in given if option not in _TAKES[name]]:
        engines = [engine for engine, takes in _TAKES.items() if unused[0] in takes]
        raise InputError(
            f"--{unused[0]} means nothing to --engine {name}; leave it out, or take --engine "
            f"{' or '.join(engines)}"
        )


def _check_installed(name: str) -> None:
    if name not in _PACKAGES:
        return
    package, extra = _PACKAGES[name]
    if importlib.util.find_spec(package) is None:
        raise InputError(
            f"--engine {name}: the package {package} is not installed; pip install "
            f"'lensaudit[{extra}]', or take --engine pool"
        )


def check_gpu(plan: Plan, gpus: str | None = None) -> None:
    """Refuse a plan for CUDA, or workers on GPUs, where this machine has none.

    Raises:
        InputError: there is no CUDA device.
    """
    if gpus is None and not plan.conditions.device.startswith("cuda"):
        return
    import torch

    if torch.cuda.is_available():
        return
    if gpus is not None:
        raise InputError(f"--gpus {gpus}: no CUDA device is available here; give --workers instead")
    raise InputError(
        f"the plan says --device {plan.conditions.device}, and no CUDA device is available "
        "here; run it where there is one, or plan again with --device cpu"
    )


def run_serial(orders: Sequence[Order], *, report: Report) -> None:
    """Do the orders in turn, in this process."""
    for order in orders:
        work(order, report)


def slots_for(*, workers: int | None, gpus: Sequence[str], per_gpu: int) -> list[Mapping[str, str]]:
    """The environment of each worker.

    Raises:
        InputError: more workers than slots on the named GPUs.
    """
    if not gpus:
        return [{} for _ in range(workers or max(1, (os.cpu_count() or 1) // CORES_PER_WORKER))]
    share = {SHARE: f"{GPU_PART / per_gpu:.4f}"} if per_gpu > 1 else {}
    slots = [{"CUDA_VISIBLE_DEVICES": gpu, **share} for _ in range(per_gpu) for gpu in gpus]
    if workers is not None and workers > len(slots):
        raise InputError(f"--workers {workers}: {len(gpus)} GPUs with {per_gpu} each are fewer")
    return list(slots[:workers])


def run_pool(
    orders: Sequence[Order], *, slots: Sequence[Mapping[str, str]], report: Report
) -> None:
    """Do the orders, at most one per slot at a time.

    Raises:
        Preempted: a worker was told to stop, or is out of time.
    """
    pool = _Pool(deque(orders), report)
    threads = [
        threading.Thread(target=pool.serve, args=(slot,), daemon=True)
        for slot in slots[: len(orders)]
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        pool.waiting.clear()
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    if pool.errors:
        raise pool.errors[0]


@dataclass
class _Pool:
    waiting: deque[Order]
    report: Report
    errors: list[BaseException] = field(default_factory=list)

    def serve(self, slot: Mapping[str, str]) -> None:
        """Do waiting orders in one slot until there are none."""
        executor: ProcessPoolExecutor | None = None
        while self.waiting and not self.errors:
            order = self.waiting.popleft()
            # one try more than a poisoned unit takes: that one finds it poisoned and goes on
            for _ in range((MAX_KILLS + 1) * len(order.units)):
                executor = executor or _executor(slot, order)
                if not self._died(_submitted(executor, order), order):
                    break
                executor.shutdown(wait=False)
                executor = None
        if executor is not None:
            executor.shutdown()

    def _died(self, ended: Future[None], order: Order) -> bool:
        """Was the worker killed? Any other error ends the run."""
        error = ended.exception()
        if isinstance(error, BrokenProcessPool):
            self.report(f"a worker died on {len(order.units)} units; they go on in another one")
            return True
        if error is not None:
            self.errors.append(error)
            self.waiting.clear()
        return False


def _submitted(executor: ProcessPoolExecutor, order: Order) -> Future[None]:
    """The order's future; of a worker that died while it waited, one that says so."""
    try:
        return executor.submit(_work, order)
    except BrokenProcessPool as error:
        ended: Future[None] = Future()
        ended.set_exception(error)
        return ended


def _executor(slot: Mapping[str, str], order: Order) -> ProcessPoolExecutor:
    """A worker process that has imported what units need; a fork of it costs little.

    Forks come from a server process without threads, never from this one.
    """
    context = multiprocessing.get_context("forkserver")
    modules = ["lensaudit.sweep.run"]
    if order.runner == RUNNER:
        modules.append("lensaudit.sweep.unit")
    context.set_forkserver_preload(modules)
    return ProcessPoolExecutor(
        max_workers=1, mp_context=context, initializer=_begin, initargs=(dict(slot),)
    )


def _begin(environment: dict[str, str]) -> None:
    os.environ.update(environment)
    # Ctrl-C reaches the driver, which asks its workers to stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _work(order: Order) -> None:
    _busy.set()
    try:
        work(order, said)
    finally:
        _busy.clear()


def _end_with_parent() -> None:
    """A worker whose driver was killed stops after its pass, instead of waiting for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    parent.join()
    while _busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
        # the second signal interrupts: a pass may take this long
        for _ in range(int(LAST_PASS_S / POLL_S)):
            time.sleep(POLL_S)
            if not _busy.is_set():
                break
    os._exit(0)


@dataclass(frozen=True)
class RayCluster:
    """Which Ray, and how much of it a worker takes."""

    address: str | None
    """None: a new one on this machine, ended with the run."""
    workers: int | None
    """At once, on a new one."""
    gpu_share: float
    """Of a GPU, per worker; a figure for placement, Ray does not limit memory."""
    needs_gpu: bool = True
    """Without a GPU in the cluster: refused if true, done on CPUs if not."""


def run_ray(orders: Sequence[Order], *, cluster: RayCluster, report: Report) -> None:
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


def _connected(cluster: RayCluster) -> Any:
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


def _task(ray: Any, order: Order, cluster: RayCluster) -> Any:
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


@dataclass(frozen=True)
class SlurmOrder:
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
            jobs = [executor.submit(SlurmOrder(order)) for order in orders]
        _wait(jobs, report)
    else:
        _in_turn(executor, orders, limit, report)


def _in_turn(executor: Any, orders: Sequence[Order], limit: int, report: Report) -> None:
    """Without Slurm there is no queue: at most `limit` jobs at once."""
    waiting, jobs = list(orders), []
    while waiting or jobs:
        while waiting and len(jobs) < limit:
            order = waiting.pop(0)
            jobs.append(executor.submit(SlurmOrder(order)))
        if any(job.done() for job in jobs):
            _wait([job for job in jobs if job.done()], report)
            jobs = [job for job in jobs if not job.done()]
        time.sleep(JOB_POLL_S / 5)


def _wait(jobs: Sequence[Any], report: Report) -> None:
    """Until all jobs ended; what failed in them is in the units' logs."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    for job in jobs:
        while not job.done():
            time.sleep(JOB_POLL_S)
        try:
            job.result()
        except (FailedJobError, UncompletedJobError) as error:
            report(f"job {job.job_id}: {(str(error).splitlines() or ['ended'])[0][:200]}")
