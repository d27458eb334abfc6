"""Engines that run units: here one after another, local processes, Ray, Slurm.

An engine takes orders and returns when each was tried; what came of it is on disk. Placement,
repetition after a lost worker and queues are the engine's. Local processes are those of
concurrent.futures, one an order, because a broken executor takes all of its workers with it;
another one is begun when it dies. submitit's local executor would import the package anew for every
order, does not start a killed worker again and knows no slots.
"""

import contextlib
import multiprocessing
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from lensaudit.choices import in_commas
from lensaudit.errors import InputError, TryAgainError, need, told_by
from lensaudit.files import os_errors
from lensaudit.orphans import n_cores, when_orphaned
from lensaudit.sweep.attempts import MAX_KILLS, Preempted, UnitState, state_of
from lensaudit.sweep.plan import Sweep, Unit, read_plan
from lensaudit.sweep.run import (
    FIRST_PAUSE_S,
    RUNNER,
    SHARE,
    Engine,
    Order,
    Report,
    rounds,
    said,
    work,
)
from lensaudit.sweep.settings import RunSettings
from lensaudit.sweep.upkeep import duration

_PACKAGES = {"ray": ("ray", "ray"), "slurm": ("submitit", "slurm")}
"""Engine -> its package, and the extra that installs it."""
CORES_PER_WORKER = 4
GPU_PART = 0.95
"""Of a GPU that the workers on it share; the rest is the driver's."""
LAST_PASS_S = 60.0
"""What a worker without a driver has for the pass it is in."""
JOB_POLL_S = 1.0
TIMEOUT_MIN = 240
"""Default limit of a job, minutes; a checkpoint with its variants takes fewer."""


def engine_of(settings: RunSettings, sweep: Sweep, *, report: Report) -> Engine:
    """The engine that the settings name, checked to be usable here before anything is ordered.

    Raises:
        InputError: it is not installed, or has not what is asked for.
    """
    name = settings.engine
    if name in _PACKAGES:
        package, extra = _PACKAGES[name]
        called = f"--engine {name}: the package {package}, which --engine pool does without,"
        need(package, called=called, extra=extra)
    if name in ("serial", "pool"):
        check_gpu(sweep, settings.gpus)
    if name == "pool":
        settings = replace(settings, gpus=settings.gpus or own_gpus(sweep))
    # read here for what is wrong with it, and once more where it is needed
    if name in _READ:
        _READ[name](settings)
    return partial(_RUN[name], settings=settings, report=report)


def own_gpus(sweep: Sweep) -> str | None:
    """The GPUs of a plan that names none; None where it runs elsewhere, or on a certain one."""
    if sweep.conditions.device not in ("auto", "cuda"):
        return None
    return ",".join(_visible()) or None


def _visible() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` of its workers names them."""
    import torch

    n = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(n)))
    return [one.strip() for one in named.split(",")][:n]


def check_gpu(sweep: Sweep, gpus: str | None = None) -> None:
    """Refuse a plan for CUDA, or workers on GPUs, where this machine has none.

    Raises:
        InputError: there is no CUDA device, or not the one that is named.
    """
    device = sweep.conditions.device
    if gpus is None and not device.startswith("cuda"):
        return
    import torch

    if not torch.cuda.is_available():
        asked = f"the plan says --device {device}" if gpus is None else f"--gpus {gpus}"
        raise InputError(
            f"{asked}: no CUDA device is available here; run it where there is one, or plan again "
            "with --device cpu and give --workers"
        )
    here = _visible()
    odd = [one for one in in_commas(gpus or "") if one.isdigit() and one not in here]
    if odd:
        raise InputError(f"--gpus {gpus}: there is no GPU {odd[0]}; here are {here}")


def run_serial(orders: Sequence[Order], *, settings: RunSettings, report: Report) -> None:
    """Do the orders in turn, in this process."""
    through = pace(orders, report)
    for order in orders:
        work(order, report)
        through(order)


def run_here(sweep: Sweep, units: Sequence[Unit], report: Report) -> list[UnitState]:
    """Do what is left of some units in turn, in this process; their states afterwards."""
    order = Order(str(sweep.root.resolve()))
    engine = partial(run_serial, settings=order.settings, report=report)
    rounds(sweep, units, engine, order, report, FIRST_PAUSE_S)
    return [state_of(sweep, unit, run=order.run) for unit in units]


def pace(orders: Sequence[Order], report: Report) -> Callable[[Order], None]:
    """Says, after each order that has ended, how many units are through, and the time left."""
    n_all, began, ended = sum(len(one.units) for one in orders), time.monotonic(), list[int]()

    def through(order: Order) -> None:
        ended.append(len(order.units))
        n, left = sum(ended), n_all - sum(ended)
        rest = (time.monotonic() - began) / n * left
        time_left = f", about {duration(rest)} left" if left else ""
        report(f"{n} of {n_all} units to do are through{time_left}")

    return through


def slots_for(settings: RunSettings) -> list[Mapping[str, str]]:
    """The environment of each worker.

    Raises:
        InputError: more workers than slots on the GPUs.
    """
    workers, per_gpu = settings.workers, settings.per_gpu
    gpus = in_commas(settings.gpus or "")
    if not gpus:
        return [{}] * (workers or max(1, n_cores() // CORES_PER_WORKER))
    share = {SHARE: f"{GPU_PART / per_gpu:.4f}"} if per_gpu > 1 else {}
    slots = [{"CUDA_VISIBLE_DEVICES": gpu, **share} for _ in range(per_gpu) for gpu in gpus]
    if workers is not None and workers > len(slots):
        raise InputError(
            f"--workers {workers}: {len(gpus)} GPUs with {per_gpu} each are fewer; --per-gpu says "
            "how many share one"
        )
    return list(slots[:workers])


def run_pool(orders: Sequence[Order], *, settings: RunSettings, report: Report) -> None:
    """Do the orders, at most one per slot at a time.

    Raises:
        InputError: more workers than slots on the named GPUs.
        Preempted: a worker was told to stop, or is out of time.
    """
    slots = slots_for(settings)
    free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
    for slot in slots:
        free.put(slot)
    stop, through = threading.Event(), pace(orders, report)

    def done(order: Order) -> None:
        _in_slot(order, free, stop, report)
        through(order)

    with ThreadPoolExecutor(len(slots)) as threads:
        ended = [threads.submit(done, order) for order in orders]
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
    when_orphaned(_stop)


def _work(order: Order) -> None:
    """Do an order; end where the driver was killed, as no next one will come."""
    try:
        work(order, said)
    finally:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            os._exit(0)


def _stop() -> None:
    """Stop after this pass, as nobody has an order for this worker any more."""
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        # the second signal interrupts: a pass may take this long
        time.sleep(LAST_PASS_S)


def run_ray(orders: Sequence[Order], *, settings: RunSettings, report: Report) -> None:
    """Do the orders as tasks; a task whose worker dies is begun again by Ray.

    Raises:
        InputError: no GPU in the cluster where one is needed, or it cannot be reached.
        TryAgainError: a worker was told to stop, or is out of time.
    """
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints what its workers died of
        ray: Any = _connected(settings)
        device = read_plan(Path(orders[0].root)).conditions.device
        # a figure for placement: Ray does not limit memory
        share = gpu_share(settings, device, float(ray.cluster_resources().get("GPU", 0)))
        waiting, stopped = [], None
        for order in orders:
            # every unit of the order may be killed as often as makes it poison
            tries = (MAX_KILLS + 1) * len(order.units)
            more = {"num_gpus": share, "max_retries": tries, "retry_exceptions": False}
            waiting.append(ray.remote(num_cpus=1, **more)(work).remote(order))
        while waiting:
            (ended, *_), waiting = ray.wait(waiting, num_returns=1)
            try:
                ray.get(ended)
            except ray.exceptions.RayTaskError as error:
                stopped = error.as_instanceof_cause()
                if not isinstance(stopped, Preempted):
                    raise
            except ray.exceptions.WorkerCrashedError:
                report("a worker died too often; its unit is not tried again in this run")
            report(f"{len(orders) - len(waiting)} of {len(orders)} checkpoints are through")
    # a new Ray stays for the next round, and ends with this process
    if stopped is not None:
        raise TryAgainError(str(stopped))


def gpu_share(settings: RunSettings, device: str, n_gpus: float) -> float:
    """Part of a GPU that a worker asks for; of none where a plan may do without.

    Raises:
        InputError: the plan needs one, and there is none.
    """
    share = 1 / settings.per_gpu
    if device.startswith("cuda") and n_gpus < share:
        raise InputError(
            "--engine ray: the plan needs a GPU and the cluster has none; a task would wait "
            "for ever"
        )
    # Ray hides all GPUs from a task that asks for none: `auto` asks where there are some
    return share if device.startswith(("cuda", "auto")) and n_gpus >= share else 0.0


def _connected(settings: RunSettings) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # repeated lines would be held back until the process ends, and follow the output
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    import ray  # pyright: ignore[reportMissingImports]

    own = {} if settings.address else {"num_cpus": settings.workers, "include_dashboard": False}
    try:
        if not ray.is_initialized():
            ray.init(settings.address, log_to_driver=False, configure_logging=False, **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(
            f"--engine ray: cannot connect ({told_by(error)}); check --address"
        ) from error
    return ray


def parameters_of(settings: RunSettings) -> dict[str, Any]:
    """Parameters for submitit.

    Raises:
        InputError: a text is not of the form KEY=VALUE.
    """
    found: dict[str, Any] = {"timeout_min": TIMEOUT_MIN}
    for text in settings.slurm:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise InputError(f"--slurm {text}: wanted KEY=VALUE, e.g. slurm_partition=a100")
        found[key] = int(value) if value.isdigit() else value
    if settings.workers is not None:
        found["slurm_array_parallelism"] = settings.workers
    return found


def run_slurm(orders: Sequence[Order], *, settings: RunSettings, report: Report) -> None:
    """Submit one job per order and wait for all.

    Raises:
        InputError: there is no Slurm here, or a parameter it does not know.
    """
    parameters = parameters_of(settings)
    # its import would log to stdout, which holds results alone; NOCONFIG leaves logging as it is
    os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")
    import submitit

    # a new one each time: what submitit finds as the result of a job is unpickled
    folder = Path(orders[0].root) / "slurm" / secrets.token_hex(8)
    with os_errors(folder):
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir(mode=0o700)
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=settings.cluster)
        executor.update_parameters(**parameters)
    except (RuntimeError, NameError, TypeError, ValueError) as error:
        folder.rmdir()
        raise InputError(f"--engine slurm: {told_by(error)}") from error
    if settings.cluster == "slurm":
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
        report(f"job {job.job_id}: {told_by(error)}")


_READ: Mapping[str, Callable[[RunSettings], object]] = {
    "pool": slots_for,
    "slurm": parameters_of,
}
_RUN = {"serial": run_serial, "pool": run_pool, "ray": run_ray, "slurm": run_slurm}
