"""How does a model change by step? The training run that `watch` followed, or an attack."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import model_serializer, model_validator

from lensaudit.results.kinds.table import ResultKind
from lensaudit.results.reading import Number, Whole


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


KINDS = {"curve": ResultKind(record=list[CurveRow], files=("curve.json",), is_named=True)}
