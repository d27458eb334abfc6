"""What is read of which model, and when: all that a log holds and a summary is made from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lensaudit.attacks.rtt.settings import Readout
from lensaudit.results.schema import Number, Whole

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
    n: Whole
    correct: tuple[Whole, ...]
    """Places in the split, from 0, of the items answered rightly."""
    calibrated: Number | None = None
    """Accuracy after each letter's mean score over the split is taken off. It looks at the whole
    split, so it is reported and never selected on."""
    option_mass: Number | None = None
    """Mean probability of all letters together; near 0 the model says something else."""

    def __post_init__(self) -> None:
        if self.n < 1 or len(self.correct) > self.n or set(self.correct) - set(range(self.n)):
            raise ValueError(f"found places beyond its {self.n} items, wanted each right one once")

    @property
    def accuracy(self) -> float:
        """Share of the items answered rightly."""
        return len(self.correct) / self.n


@dataclass(frozen=True)
class Point:
    """V after an epoch; epoch 0 is the model as it was."""

    epoch: Whole
    """Passes over T; in the log of `effort`, which reads by steps, optimiser steps."""
    readings: tuple[Reading, ...]
    train_loss: Number | None = None
    """Mean over the steps since the point before, nats per token."""

    def reading(self, readout: str) -> Reading:
        """The one of that readout."""
        return next(one for one in self.readings if one.readout == readout)
