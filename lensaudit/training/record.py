"""What a training run left beside its weights, read without a model library."""

import csv
from dataclasses import dataclass
from pathlib import Path

from lensaudit.files import read_text

STATE_FOLDER = "training"
"""Below a folder that is being trained: what a killed run goes on from."""


LOSSES = "losses.csv"
"""Beside the weights: the loss of each step, and of the first step's rows once training ended."""
AFTER = "after"
"""In place of a step: of the last line."""


@dataclass(frozen=True)
class Losses:
    """The losses of a finished training run."""

    steps: tuple[float, ...]
    """As each step began."""
    after: float | None
    """Of the first step's rows under the trained weights; None where an earlier version trained."""


def kept_losses(out: Path) -> Losses:
    """The losses of a finished folder."""
    rows = csv.DictReader(read_text(out / LOSSES).splitlines())
    losses = {row["step"]: float(row["loss"]) for row in rows}
    after = losses.pop(AFTER, None)
    return Losses(tuple(losses.values()), after)
