"""From the log to the arrays that statistics are made of."""

from collections.abc import Sequence

import numpy as np

from lensaudit.attacks.rtt.log import Finished, HeldSplit, Log, Opened, Place
from lensaudit.attacks.rtt.readings import Condition
from lensaudit.attacks.rtt.select import GridCell, Marks, VRun


def places_of(study: Opened, condition: Condition) -> list[Place]:
    """The jobs of a condition."""
    return [one for one in study.places if one.condition == condition]


def measured(
    study: Opened, log: Log, condition: Condition, readout: str, splits: Sequence[str]
) -> tuple[Marks, ...] | None:
    """Marks of a model as it is, per split; None where a job is not done yet."""
    jobs = {one.split: log.finished.get(one.job_id) for one in places_of(study, condition)}
    found = [(split, jobs.get(split.name)) for split in study.splits if split.name in splits]
    if not found or any(job is None for _, job in found):
        return None
    return tuple(_marks(split, job, 0, readout) for split, job in found if job)


def v_runs(study: Opened, log: Log, condition: Condition, readout: str) -> list[VRun]:
    """The sweeps of a condition, one per held-out split; cells of missing jobs are absent."""
    by_name = {split.name: split for split in study.splits}
    return [
        VRun(name, by_name[name].groups, _cells(study, log, condition, readout, by_name[name]))
        for name in study.held_out
    ]


def done(study: Opened, log: Log, condition: Condition) -> list[tuple[Place, Finished]]:
    """The finished jobs of a condition with their places."""
    return [
        (place, log.finished[place.job_id])
        for place in places_of(study, condition)
        if place.job_id in log.finished
    ]


def _cells(
    study: Opened, log: Log, condition: Condition, readout: str, split: HeldSplit
) -> dict[GridCell, Marks]:
    return {
        GridCell(place.lr, point.epoch): _marks(split, job, point.epoch, readout)
        for place, job in done(study, log, condition)
        if place.split == split.name and place.lr is not None
        for point in job.curve
    }


def _marks(split: HeldSplit, job: Finished, epoch: int, readout: str) -> Marks:
    point = next(one for one in job.curve if one.epoch == epoch)
    marks = np.zeros(len(split.idx), dtype=bool)
    marks[list(point.reading(readout).correct)] = True
    return marks
