"""One quantised model: from a checkpoint to a folder that every command reads."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from rich.filesize import decimal as size

from lensaudit.attacks.quantize import BLOCK, Engine, Method, engine_of, overall, quantise_in_place
from lensaudit.attacks.settings import RoundSettings
from lensaudit.errors import InputError
from lensaudit.files import write_csv
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import open_model
from lensaudit.models.device import resolve_device
from lensaudit.models.memory import free_bytes
from lensaudit.results.owner import check_free
from lensaudit.training.trainee import CheckpointJob, Report, n_parameters, stored_dtype


@dataclass(frozen=True, kw_only=True)
class RoundingJob(CheckpointJob):
    """Everything a quantised model is made of; weights are loaded in the dtype they are kept in."""

    command: ClassVar[str] = "quantize"
    beside: ClassVar[str] = "errors.csv"
    method: Method
    engine: Engine = "auto"
    """Not part of the identity: the numbers are the same."""

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

    def check(self) -> None:
        """Find what is missing before anything is loaded.

        Raises:
            InputError: bitsandbytes is absent, or memory is.
        """
        engine_of(self.engine)
        needed = self.stored.itemsize * n_parameters(self.start.folder)
        free = free_bytes(self.device)
        if free is not None and needed > free:
            raise InputError(
                f"{self.start.spec.name}: its weights take {size(needed)}, {size(free)} are "
                f"free on {self.device}; take a smaller model or another --device"
            )

    def plan(self, out: Path | None) -> list[str]:
        """What would be done."""
        return [
            f"{self.method} of {self.start.spec.name}, {n_parameters(self.start.folder):,} "
            f"weights, by {engine_of(self.engine)}, kept as {self.stored}; writes {out}"
        ]

    def made(self, out: Path, report: Report) -> tuple[Any, Any, dict[str, Any]]:
        """Round the model, and write `errors.csv`."""
        model = load_causal(self.start, dtype=self.stored, device=self.device)
        errors = quantise_in_place(model, self.method, engine=self.engine)
        rows = [[one.name, one.n_weights, one.relative, one.largest] for one in errors]
        header = ("matrix", "n_weights", "relative_error", "largest_error")
        write_csv(out / self.beside, header, rows)
        engine = engine_of(self.engine)
        return (
            model,
            None,
            {
                "engine": engine if engine == "torch" else f"{engine} {version(engine)}",
                "double_quantisation": False,
                "n_matrices": len(errors),
                "relative_error": overall(errors),
            },
        )


def prepare(settings: RoundSettings) -> RoundingJob:
    """The job that the settings describe, checked; no weights are loaded.

    Raises:
        InputError: an unknown model, bitsandbytes is absent, or memory is.
    """
    check_free(settings.out, RoundingJob.command)
    start = open_model(settings.model, settings.registry)
    job = RoundingJob(
        start=start,
        method=settings.method,
        engine=settings.engine,
        stored=stored_dtype(start, settings.store),
        device=resolve_device(settings.device),
    )
    job.check()
    return job
