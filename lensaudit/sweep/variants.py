"""What is done to a checkpoint before it is measured: nothing, quantisation or relearning."""

import shutil
from pathlib import Path
from typing import Any

import torch

from lensaudit.attacks import relearn, rounding
from lensaudit.attacks.checkpoints import stored_dtype
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.device import resolve_device
from lensaudit.models.quantize import Method
from lensaudit.results import keyed
from lensaudit.sweep.plan import Conditions, Variant
from lensaudit.sweep.planning import relearned_rows, relearning_of
from lensaudit.unlearn.rows import load_rows


def made(start: Checkpoint, variant: Variant, conditions: Conditions, out: Path) -> Path:
    """The folder of `start` in a variant: its own, or `out` with the attacked model.

    An attack that was finished before is not repeated; a relearning that was interrupted resumes.

    Raises:
        InputError: the model cannot be attacked.
        WorkError: a weight is not finite, or the loss diverged.
    """
    if variant == "base":
        return start.folder
    job: Any = (
        _relearning(start, conditions)
        if variant == "relearn-1ep"
        else _rounding(start, variant, conditions)
    )
    if keyed.finished(out, job.key):
        return out
    if isinstance(job, relearn.RelearnJob):
        relearn.check(job)
        relearn.relearn(job, out, report=lambda _: None)
    else:
        shutil.rmtree(out, ignore_errors=True)
        rounding.check(job)
        rounding.quantize(job, out)
    return out


def _rounding(start: Checkpoint, method: Method, conditions: Conditions) -> rounding.RoundingJob:
    return rounding.RoundingJob(
        start, method, "auto", stored(start), resolve_device(conditions.device)
    )


def _relearning(start: Checkpoint, conditions: Conditions) -> relearn.RelearnJob:
    rows = load_rows(relearned_rows(conditions), part="forget")
    device = resolve_device(conditions.device)
    return relearn.RelearnJob(start, rows, relearning_of(conditions), stored(start), device)


def stored(start: Checkpoint) -> torch.dtype:
    """Attacked weights are kept as precisely as the checkpoint's own."""
    return stored_dtype(start, "same")
