"""Items that each model of a study answered rightly, by split, from the log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lensaudit.attacks.rtt.log import (
    Condition,
    Finished,
    HeldSplit,
    Log,
    Place,
    Point,
    StudyRecord,
)

Marks = NDArray[np.bool_] | NDArray[np.float64]
"""Per item of V: answered rightly. Of a run beside the log: the share of them, once."""


@dataclass(frozen=True, order=True)
class GridCell:
    """A model of the sweep."""

    lr: float
    epoch: int


Cells = Mapping[GridCell, Marks]
"""All models of one held-out split, on its items."""


def done(study: StudyRecord, log: Log, condition: Condition) -> list[tuple[Place, Finished]]:
    """The finished jobs of a condition with their places."""
    return [
        (place, log.finished[place.job_id])
        for place in study.places
        if place.condition == condition and place.job_id in log.finished
    ]


AS_IT_IS = GridCell(0.0, 0)
"""Of a model that was not retrained."""


def v_runs(
    study: StudyRecord, log: Log, condition: Condition, readout: str, splits: Sequence[str]
) -> dict[HeldSplit, Cells]:
    """All models of a condition by split; cells of missing jobs are absent."""
    jobs = done(study, log, condition)
    return {
        split: {
            GridCell(place.lr or 0.0, point.at): _marks(split, point, readout)
            for place, job in jobs
            if place.split == split.name
            for point in job.curve
        }
        for split in study.splits
        if split.name in splits
    }


def measured(
    study: StudyRecord, log: Log, condition: Condition, readout: str, splits: Sequence[str]
) -> tuple[Marks, ...] | None:
    """Marks of a model as it is, per split; None where a job is not done yet."""
    found = v_runs(study, log, condition, readout, splits).values()
    if not found or not all(AS_IT_IS in one for one in found):
        return None
    return tuple(one[AS_IT_IS] for one in found)


def _marks(split: HeldSplit, point: Point, readout: str) -> Marks:
    marks = np.zeros(len(split.idx), dtype=bool)
    marks[list(point.reading(readout).correct)] = True
    return marks


def mean_of(marks: tuple[Marks, ...]) -> float:
    """Accuracy per split, averaged over splits."""
    return float(np.mean([one.mean() for one in marks]))
