"""One quantised model: from a checkpoint to a folder that every command reads."""

import csv
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.filesize import decimal as size

from lensaudit.attacks.settings import RoundSettings
from lensaudit.errors import InputError
from lensaudit.files import digest, read_json, read_text, write_csv
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, open_model
from lensaudit.models.device import free_bytes, resolve_device
from lensaudit.models.quantize import (
    BLOCK,
    Engine,
    MatrixError,
    Method,
    engine_of,
    overall,
    quantise_in_place,
)
from lensaudit.models.sizes import n_parameters
from lensaudit.results import keyed
from lensaudit.results.records import manifest
from lensaudit.unlearn.job import trained
from lensaudit.unlearn.trainee import seal_model, stored_dtype


@dataclass(frozen=True)
class RoundingJob:
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


def prepare(settings: RoundSettings) -> RoundingJob:
    """The job that the settings describe, checked; no weights are loaded.

    Raises:
        InputError: an unknown model, bitsandbytes is absent, or memory is.
    """
    start = open_model(settings.model, settings.registry)
    job = RoundingJob(
        start=start,
        method=settings.method,
        engine=settings.engine,
        stored=stored_dtype(start, settings.store),
        device=resolve_device(settings.device),
    )
    check(job)
    return job


def check(job: RoundingJob) -> None:
    """Find what is missing before anything is loaded.

    Raises:
        InputError: bitsandbytes is absent, or memory is.
    """
    engine_of(job.engine)
    n_weights, free = n_parameters(job.start.folder), free_bytes(job.device)
    needed = job.stored.itemsize * n_weights
    if free is not None and needed > free:
        raise InputError(
            f"{job.start.spec.name}: its weights take {size(needed)}, {size(free)} are "
            f"free on {job.device}; take a smaller model or another --device"
        )


def plan_of(job: RoundingJob, out: Path) -> str:
    """Plan of a rounding: method, weights, engine, type and folder."""
    return (
        f"{job.method} of {job.start.spec.name}, {n_parameters(job.start.folder):,} weights, by "
        f"{engine_of(job.engine)}, kept as {job.stored}; writes {out}"
    )


def make(job: RoundingJob, out: Path) -> bool:
    """Have the rounded model in `out`; False if it was there before.

    Raises:
        InputError: `out` holds something else.
    """
    return trained(job.key, out, lambda: quantize(job, out))


def rounded(job: RoundingJob, out: Path) -> dict[str, Any]:
    """How far off the weights of a finished folder are, as `quantize --json` tells it.

    Raises:
        InputError: its files are damaged.
    """
    made = read_json(out / "manifest.json")["options"]
    path = out / "errors.csv"
    rows = csv.DictReader(read_text(path).splitlines())
    try:
        errors = {row["matrix"]: float(row["relative_error"]) for row in rows}
        worst = max(errors, key=errors.__getitem__)
        return {
            "out": str(out),
            "method": job.method,
            "engine": made["engine"].split()[0],
            "matrices": len(errors),
            "relative_error": made["relative_error"],
            "worst": {"matrix": worst, "relative_error": errors[worst]},
        }
    except (KeyError, TypeError, ValueError) as reason:
        raise InputError(f"{path}: damaged ({reason}); make the model again elsewhere") from reason


def quantize(job: RoundingJob, out: Path) -> tuple[MatrixError, ...]:
    """Write the checkpoint, `errors.csv` and `manifest.json` into `out`; the errors by matrix.

    Raises:
        InputError: the model cannot be loaded or quantised.
        WorkError: a weight is not finite; nothing is written.
    """
    started = time.monotonic()
    keyed.begin(out, job.key)
    model = load_causal(job.start, dtype=job.stored, device=job.device)
    errors = quantise_in_place(model, job.method, engine=job.engine)
    rows = [[one.name, one.n_weights, one.relative, one.largest] for one in errors]
    header = ("matrix", "n_weights", "relative_error", "largest_error")
    write_csv(out / "errors.csv", header, rows)
    inputs = {**job.identity, "key": job.key, "start": job.start.spec.name}
    engine = engine_of(job.engine)
    options = {
        "engine": engine if engine == "torch" else f"{engine} {version(engine)}",
        "double_quantisation": False,
        "n_matrices": len(errors),
        "relative_error": overall(errors),
    }
    seal_model(
        model,
        job.start,
        out,
        dtype=job.stored,
        key=job.key,
        record=lambda: manifest(
            "quantize", options=options, inputs=inputs, device=job.device, started=started
        ),
    )
    return errors
