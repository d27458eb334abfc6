"""Where units run: here one after another, in local processes, on Ray, on Slurm.

An engine takes orders and returns when each was tried; what came of it is on disk. Placement,
repetition after a lost worker and queues are the engine's. Local processes are those of
concurrent.futures, one an order, because a broken executor takes all of its workers with it;
another one is begun when it dies. submitit's local executor would import the package anew for every
order, does not start a killed worker again and knows no slots.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from lensaudit.errors import InputError, TryAgainError, need
from lensaudit.sweep.attempts import MAX_KILLS, Preempted
from lensaudit.sweep.plan import Sweep
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
JOB_POLL_S = 1.0
TIMEOUT_MIN = 240
"""Minutes a job may take where nobody says so; a checkpoint with its variants takes fewer."""


def engine_of(settings: RunSettings, sweep: Sweep, *, report: Report) -> Engine:
    """The engine that the settings name, checked to be usable here before anything is ordered.

    Raises:
        InputError: it is not installed, or has not what is asked for.
    """
    name, device = settings.engine, sweep.conditions.device
    options = ("workers", "gpus", "per_gpu", "address", "slurm", "cluster")
    changed = [one for one in options if getattr(settings, one) != getattr(RunSettings, one)]
    _check_options(name, [one.replace("_", "-") for one in changed])
    if name in _PACKAGES:
        package, extra = _PACKAGES[name]
        called = f"--engine {name}: the package {package}, which --engine pool does without,"
        need(package, called=called, extra=extra)
    if name in ("serial", "pool"):
        check_gpu(sweep, settings.gpus)
    if name == "pool":
        indices = [one.strip() for one in (settings.gpus or "").split(",") if one.strip()]
        slots = slots_for(workers=settings.workers, gpus=indices, per_gpu=settings.per_gpu)
        return partial(run_pool, slots=slots, report=report)
    if name == "ray":
        return partial(run_ray, settings=settings, device=device, report=report)
    if name == "slurm":
        parameters = parameters_of(settings.slurm, workers=settings.workers)
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


def check_gpu(sweep: Sweep, gpus: str | None = None) -> None:
    """Refuse a plan for CUDA, or workers on GPUs, where this machine has none.

    Raises:
        InputError: there is no CUDA device.
    """
    if gpus is None and not sweep.conditions.device.startswith("cuda"):
        return
    import torch

    if torch.cuda.is_available():
        return
    if gpus is not None:
        raise InputError(f"--gpus {gpus}: no CUDA device is available here; give --workers instead")
    raise InputError(
        f"the plan says --device {sweep.conditions.device}, and no CUDA device is available "
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
    free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
    for slot in slots:
        free.put(slot)
    stop = threading.Event()
    with ThreadPoolExecutor(len(slots)) as threads:
        ended = [threads.submit(_in_slot, order, free, stop, report) for order in orders]
        try:
            wait(ended, return_when=FIRST_EXCEPTION)
            # workers that go well end what they are at
            threads.shutdown(cancel_futures=True)
        except BaseException:
            stop.set()
            threads.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    for one in ended:
        if not one.cancelled():
            one.result()


def _in_slot(
    order: Order, free: SimpleQueue[Mapping[str, str]], stop: threading.Event, report: Report
) -> None:
    """Do an order in a process of its own, and in another one where that is killed.

    It is forked from a server process without threads that has imported what units need.
    """
    slot, context = free.get(), multiprocessing.get_context("forkserver")
    modules = ["lensaudit.sweep.run"]
    if order.runner == RUNNER:
        modules.append("lensaudit.sweep.unit")
    context.set_forkserver_preload(modules)
    # one try more than a poisoned unit takes: that one finds it poisoned and goes on
    tries = (MAX_KILLS + 1) * len(order.units)
    try:
        while tries and not stop.is_set():
            try:
                with ProcessPoolExecutor(1, context, _begin, (dict(slot),)) as executor:
                    return executor.submit(_work, order).result()
            except BrokenProcessPool:
                tries -= 1
                report(f"a worker died on {len(order.units)} units; they go on in another one")
    finally:
        free.put(slot)


def _begin(environment: dict[str, str]) -> None:
    os.environ.update(environment)
    # Ctrl-C reaches the driver, which asks its workers to stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _work(order: Order) -> None:
    """Do an order; nobody is left to wait for the next one where the driver was killed."""
    try:
        work(order, said)
    finally:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            os._exit(0)


def _end_with_parent() -> None:
    """A worker whose driver was killed stops after its pass, instead of waiting for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    parent.join()
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        # the second signal interrupts: a pass may take this long
        time.sleep(LAST_PASS_S)


def run_ray(orders: Sequence[Order], *, settings: RunSettings, device: str, report: Report) -> None:
    """Do the orders as tasks; a task whose worker dies is begun again by Ray.

    Args:
        orders: what is done.
        settings: which Ray, and how many workers a GPU has; a figure for placement, Ray does not
            limit memory.
        device: of the plan: one that needs a GPU is refused where the cluster has none.
        report: told how far it is.

    Raises:
        InputError: no GPU in the cluster where one is needed, or it cannot be reached.
        Preempted: a worker was told to stop, or is out of time.
    """
    ray: Any = _connected(settings)
    share = gpu_share(settings, device, ray.cluster_resources().get("GPU", 0))
    tasks = [_task(ray, order, share) for order in orders]
    # a new Ray stays for the next round, and ends with this process
    _finish(ray, tasks, report)


def gpu_share(settings: RunSettings, device: str, n_gpus: float) -> float:
    """Part of a GPU that a worker asks for; of none where a plan may do without.

    Raises:
        InputError: the plan needs one, and there is none.
    """
    if not device.startswith(("cuda", "auto")):
        return 0.0
    share = 1 / settings.per_gpu
    if n_gpus >= share:
        # Ray hides all GPUs from a task that asks for none: `auto` asks where there are some
        return share
    if device.startswith("cuda"):
        raise InputError(
            "--engine ray: the plan needs a GPU and the cluster has none; a task would wait "
            "for ever"
        )
    return 0.0


def _connected(settings: RunSettings) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray  # pyright: ignore[reportMissingImports]

    if ray.is_initialized():
        return ray
    try:
        ray.init(
            address=settings.address,
            num_cpus=None if settings.address else settings.workers,
            include_dashboard=None if settings.address else False,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"--engine ray: cannot connect ({reason}); check --address") from error
    return ray


def _task(ray: Any, order: Order, share: float) -> Any:
    # every unit of the order may be killed as often as makes it poison
    tries = (MAX_KILLS + 1) * len(order.units)
    remote = ray.remote(num_cpus=1, num_gpus=share, max_retries=tries, retry_exceptions=False)
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
    if cluster == "slurm":
        with executor.batch():
            jobs = [executor.submit(order) for order in orders]
        for job in jobs:
            _wait(job, report)
        return
    # without Slurm there is no queue: at most so many jobs at once
    limit = parameters.get("slurm_array_parallelism") or len(orders)
    with ThreadPoolExecutor(limit) as threads:
        list(threads.map(lambda order: _wait(executor.submit(order), report), orders))


def _wait(job: Any, report: Report) -> None:
    """Until a job ended; what failed in it is in the units' logs."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    while not job.done():
        time.sleep(JOB_POLL_S)
    try:
        job.result()
    except (FailedJobError, UncompletedJobError) as error:
        report(f"job {job.job_id}: {(str(error).splitlines() or ['ended'])[0][:200]}")
