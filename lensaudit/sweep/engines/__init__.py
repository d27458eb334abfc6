"""Where units run: here one after another, in local processes, on Ray, on Slurm.

An engine takes orders and returns when each was tried; what came of it is on disk. Placement,
repetition after a lost worker and queues are the engine's.
"""

import importlib.util
from collections.abc import Sequence
from functools import partial

from lensaudit.errors import InputError
from lensaudit.sweep.engines.pool import run_pool, slots_for
from lensaudit.sweep.engines.serial import run_serial
from lensaudit.sweep.plan import Plan
from lensaudit.sweep.run import Engine
from lensaudit.sweep.settings import RunSettings
from lensaudit.sweep.work import Report

__all__ = ["engine_of"]

_PACKAGES = {"ray": ("ray", "ray"), "slurm": ("submitit", "slurm")}
"""Engine -> its package, and the extra that installs it."""
_TAKES = {
    "serial": (),
    "pool": ("workers", "gpus", "per-gpu"),
    "ray": ("workers", "address", "per-gpu"),
    "slurm": ("workers", "slurm", "cluster"),
}
"""Engine -> the options that mean something to it."""


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
        from lensaudit.sweep.engines.ray_tasks import Cluster, run_ray

        # Ray hides all GPUs from a task that asks for none: `auto` asks where there are some
        share = 1 / per_gpu if device.startswith(("cuda", "auto")) else 0.0
        placed = Cluster(settings.address, workers, share, needs_gpu=device.startswith("cuda"))
        return partial(run_ray, cluster=placed, report=report)
    if name == "slurm":
        from lensaudit.sweep.engines.slurm import parameters_of, run_slurm

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
