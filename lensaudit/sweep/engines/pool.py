"""Local processes: one per slot, started again when it dies.

Each slot has an executor of its own (concurrent.futures), because a broken executor takes all of
its workers with it.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from lensaudit.errors import InputError
from lensaudit.sweep.failures import MAX_KILLS
from lensaudit.sweep.work import RUNNER, SHARE, Order, Report, said, work

CORES_PER_WORKER = 4
GPU_PART = 0.95
"""Of a GPU that the workers on it share; the rest is the driver's."""

LAST_PASS_S = 60.0
"""What a worker without a driver has for the pass it is in."""
POLL_S = 0.2
_busy = threading.Event()


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
    modules = ["lensaudit.sweep.work"]
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
