"""Results of attacks, read from their folders; no model library is imported."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lensaudit.association.result import NamingResult
from lensaudit.files import read_json, read_text
from lensaudit.models.blocks import block_of
from lensaudit.models.weight_files import header_of, weight_files
from lensaudit.results.manifest import MANIFEST
from lensaudit.results.owner import folders_for
from lensaudit.results.run import RunResult
from lensaudit.settings import results_folder
from lensaudit.text import slug
from lensaudit.training.record import kept_losses

TAUGHT = 0.1
"""Share by which the loss of the taught rows must fall, or the attack did next to nothing."""

MOST = 0.5
"""Share of the weights in blocks from which rounding is that of a model."""
WORST, SAMPLE = "worst", "sample"


class WorstResult(NamingResult):
    """The facts that come out of one model, and the folder of this result."""

    @property
    def excess(self) -> float:
        """Share of facts that come out, in excess of the control arm's."""
        return self.record.excess


class EffortResult(RunResult):
    """Steps of training that bring the facts back in one model, and the folder of this result."""

    @property
    def arms(self) -> Mapping[str, Mapping[str, Any]]:
        """Arm -> e50, e80, censored, lr, curve and more."""
        return self.summary["arms"]


def effort_folders(names: Sequence[str], out: Path | None) -> dict[str, Path]:
    """Result folders of `effort`, by source."""
    folders = folders_for(names, out or (results_folder() / "effort" if len(names) > 1 else None))
    if out is None and len(names) == 1:
        return {name: one.with_name(f"{one.name}-effort") for name, one in folders.items()}
    return folders


def study_folder(out: Path | None) -> Path:
    """Folder of the log and the summaries of `rtt run`."""
    return out or results_folder() / "rtt"


def scored_in(model: str, out: Path | None) -> Path:
    """Folder of the scores before and after relearning."""
    return out / "audit" if out else results_folder() / f"{slug(model)}-relearn"


def taught_nothing(out: Path) -> str | None:
    """A warning about a finished folder whose training hardly changed the loss; else None."""
    losses = kept_losses(out)
    return rows_relearned(losses.steps[0], losses.after, len(losses.steps))


def rounded(method: str, out: Path) -> dict[str, Any]:
    """How far off the weights of a finished folder are, as `quantize --json` tells it."""
    options = read_json(out / MANIFEST)["options"]
    rows = list(csv.DictReader(read_text(out / "errors.csv").splitlines()))
    errors = {row["matrix"]: float(row["relative_error"]) for row in rows}
    worst = max(errors, key=errors.__getitem__)
    headers = (header_of(file).items() for file in weight_files(out))
    in_blocks = (
        one["shape"] for told in headers for name, one in told if block_of(name) is not None
    )
    n_all = sum(math.prod(shape) for shape in in_blocks if len(shape) > 1)
    return {
        "out": str(out),
        "method": method,
        "engine": options["engine"].split()[0],
        "matrices": len(errors),
        "share": sum(int(row["n_weights"]) for row in rows) / n_all,
        "relative_error": options["relative_error"],
        "worst": {"matrix": worst, "relative_error": errors[worst]},
    }


def rows_relearned(before: float, after: float | None, n_steps: int) -> str | None:
    """A warning about an attack that taught nothing; None where it taught something.

    Args:
        before: loss of the rows of its first step, nats per token.
        after: of the same rows, once it ended; None where nobody looked.
        n_steps: it took.

    >>> rows_relearned(0.5314, 0.5241, 8)
    'The attack did next to nothing: the loss of its first rows went from 0.5314 to 0.5241 in 8 steps; raise --lr or --epochs.'
    >>> rows_relearned(1.2, 0.3, 8)
    """  # noqa: E501
    if after is None or after < (1 - TAUGHT) * before:
        return None
    steps = "1 step" if n_steps == 1 else f"{n_steps} steps"
    return (
        f"The attack did next to nothing: the loss of its first rows went from {before:.4f} to "
        f"{after:.4f} in {steps}; raise --lr or --epochs."
    )
