"""What is read of which model, and when: all that a log holds and a summary is made from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lensaudit.attacks.rtt.settings import Readout

Condition = Literal["0", "A", "N0", "B", "C", "N"]
MEANINGS: Mapping[Condition, str] = {
    "0": "original",
    "A": "unlearned",
    "N0": "control, never saw the facts",
    "B": "unlearned, retrained on T",
    "C": "original, retrained on T",
    "N": "control, retrained on T",
}
Role = Literal["original", "unlearned", "control"]
CONDITIONS: Mapping[Role, tuple[Condition, Condition]] = {
    "original": ("0", "C"),
    "unlearned": ("A", "B"),
    "control": ("N0", "N"),
}
"""Role of a model -> its condition as it is, and retrained."""


@dataclass(frozen=True)
class Reading:
    """One readout of one model on one split."""

    readout: Readout | Literal["said"]
    """`said` is the readout of `effort`."""
    n: int
    correct: tuple[int, ...]
    """Places in the split, from 0, of the items answered rightly."""
    calibrated: float | None = None
    """Accuracy after each letter's mean score over the split is taken off. It looks at the whole
    split, so it is reported and never selected on."""
    option_mass: float | None = None
    """Mean probability of all letters together; near 0 the model says something else."""

    @property
    def accuracy(self) -> float:
        """Share of the items answered rightly."""
        return len(self.correct) / self.n


@dataclass(frozen=True)
class Point:
    """V after an epoch; epoch 0 is the model as it was."""

    epoch: int
    """Passes over T; in the log of `effort`, which reads by steps, optimiser steps."""
    readings: tuple[Reading, ...]
    train_loss: float | None = None
    """Mean over the steps since the point before, nats per token."""

    def reading(self, readout: str) -> Reading:
        """The one of that readout."""
        return next(one for one in self.readings if one.readout == readout)
