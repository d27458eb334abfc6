"""What a training run left beside its weights, read without a model library."""

import csv
from pathlib import Path

from lensaudit.files import read_text

STATE_FOLDER = "training"
"""Below a folder that is being trained: what a killed run goes on from."""


LOSSES = "losses.csv"
"""Beside the weights: the loss of each step."""


def kept_losses(out: Path) -> tuple[float, ...]:
    """The losses of a finished folder, by step."""
    rows = csv.DictReader(read_text(out / LOSSES).splitlines())
    return tuple(float(row["loss"]) for row in rows)
