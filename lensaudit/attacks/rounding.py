"""One quantised model: from a checkpoint to a folder that every command reads."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from lensaudit.attacks.checkpoints import begin, check_fits, seal
from lensaudit.attacks.nf4 import BLOCK
from lensaudit.attacks.quantize import (
    Engine,
    MatrixError,
    Method,
    engine_of,
    overall,
    quantise_in_place,
)
from lensaudit.files import digest, write_csv
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.results import Manifest, manifest

HEADER = ("matrix", "n_weights", "relative_error", "largest_error")


@dataclass(frozen=True)
class Job:
    """Everything a quantised model is made of; two equal jobs give equal weights."""

    start: Checkpoint
    method: Method
    engine: Engine
    """Not part of the identity: the numbers are the same."""
    stored: torch.dtype
    """What weights are loaded, dequantised and saved in."""
    device: str

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this job from others."""
        return {
            "command": "quantize",
            "method": self.method,
            "block": BLOCK if self.method == "nf4" else None,
            "weights": self.start.weights,
            "tokenizer": self.start.tokenizer,
            "stored": str(self.stored),
        }

    @property
    def key(self) -> str:
        """Content hash of the job."""
        return digest(self.identity)


def check(job: Job) -> None:
    """Find what is missing before anything is loaded.

    Raises:
        InputError: bitsandbytes is absent, or memory is.
    """
    engine_of(job.engine)
    check_fits(job.start, bytes_per_weight=job.stored.itemsize, device=job.device)


def quantize(job: Job, out: Path) -> tuple[MatrixError, ...]:
    """Write the checkpoint, `errors.csv` and `manifest.json` into `out`; the errors by matrix.

    Raises:
        InputError: the model cannot be loaded or quantised.
        WorkError: a weight is not finite; nothing is written.
    """
    started = time.monotonic()
    begin(job, out)
    model = load_causal(job.start, dtype=job.stored, device=job.device)
    errors = quantise_in_place(model, job.method, engine=job.engine)
    write_csv(out / "errors.csv", HEADER, error_rows(errors))
    seal(model, job.start, out, dtype=job.stored, record=lambda: record(job, errors, started))
    return errors


def error_rows(errors: Sequence[MatrixError]) -> list[list[Any]]:
    """The rows of `errors.csv`."""
    return [[one.name, one.n_weights, one.relative, one.largest] for one in errors]


def record(job: Job, errors: Sequence[MatrixError], started: float) -> Manifest:
    """The manifest of a finished folder."""
    inputs = {**job.identity, "key": job.key, "start": job.start.spec.name}
    engine = engine_of(job.engine)
    options = {
        "engine": engine if engine == "torch" else f"{engine} {version(engine)}",
        "double_quantisation": False,
        "n_matrices": len(errors),
        "relative_error": overall(errors),
    }
    return manifest("quantize", options=options, inputs=inputs, device=job.device, started=started)
