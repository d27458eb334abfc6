"""How does a model change by step? The training run that `watch` followed, or an attack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import model_serializer, model_validator

from lensaudit.results.reading import Number, Whole

SERIES = ("uds", "model_utility")
"""Series of a training run that are drawn; all lie between 0 and 1."""


@dataclass(frozen=True)
class CurvePoint:
    """A value after so many optimiser steps."""

    source: str
    """The training run's folder, or the model under attack."""
    series: str
    """A metric, or `recovery` with the arm of the attack."""
    step: int
    value: float
    epoch: float | None = None
    """As the trainer counted them; None: it did not say."""


@dataclass(frozen=True)
class CurveRow:
    """A row of `curve.json`."""

    step: Whole
    epoch: Number | None = None
    metrics: Mapping[str, Number | None] = field(default_factory=dict)
    """By name; in the file beside the step."""
    failure: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, row: Any) -> Any:
        if not isinstance(row, Mapping):
            return row
        own = {name: row[name] for name in ("step", "epoch", "failure") if name in row}
        return {**own, "metrics": {name: one for name, one in row.items() if name not in own}}

    @model_serializer
    def _written(self) -> dict[str, Any]:
        epoch = {} if self.epoch is None else {"epoch": self.epoch}
        return {"step": self.step, **epoch, **self.metrics, "failure": self.failure}


def points_of(rows: Sequence[CurveRow], source: str) -> list[CurvePoint]:
    """What is drawn of a training run; gaps are left out."""
    return [
        CurvePoint(source, name, row.step, value, row.epoch)
        for row in rows
        for name in SERIES
        if (value := row.metrics.get(name)) is not None
    ]
