"""Which (learning rate, epoch) speaks for a sweep? From the log to who answered what rightly.

Choosing on the items that are reported is optimistic: with 6 x 6 cells and two V runs of 157 items
pure noise gains 5 to 6 points per V and about 4 globally (`rtt.md` section 7). Every condition is
therefore selected alike, and compared with the control, never with chance.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from lensaudit.attacks.rtt.log import Condition, Finished, HeldSplit, Log, Place, StudyRecord
from lensaudit.attacks.rtt.settings import EpochRule, Selection

Marks = NDArray[np.bool_]
"""Per item of V: answered rightly."""


@dataclass(frozen=True, order=True)
class GridCell:
    """A model of the sweep."""

    lr: float
    epoch: int


@dataclass(frozen=True)
class VRun:
    """All models of one held-out split, on its items."""

    split: str
    groups: tuple[Hashable, ...]
    """Per item."""
    cells: Mapping[GridCell, Marks]


@dataclass(frozen=True)
class Choice:
    """The cell that speaks for a V run, or for half of it."""

    split: str
    cell: GridCell


@dataclass(frozen=True)
class Selected:
    """What a sweep comes to."""

    accuracy: float
    """Mean over V runs."""
    marks: tuple[Marks, ...]
    """Per V run, of the chosen cells."""
    choices: tuple[Choice, ...]
    """One per V run; nested: one per half."""


def select(
    runs: Sequence[VRun],
    *,
    selection: Selection,
    rule: EpochRule,
    n_epochs: int,
) -> Selected | None:
    """The accuracy of a sweep; None where no cell can speak for some V.

    Epoch 0 takes no part: the model as it was is another condition. Of equal cells the lowest
    learning rate and the earliest epoch is taken.
    """
    kept = [_ruled(run, rule, n_epochs) for run in runs]
    if not kept or not all(run.cells for run in kept):
        return None
    match selection:
        case "per_v":
            return _joined(kept, [(_best(run),) for run in kept])
        case "global":
            cell = _best_everywhere(kept)
            return None if cell is None else _joined(kept, [(cell,) for _ in kept])
        case "nested":
            return _nested(kept)


def _ruled(run: VRun, rule: EpochRule, n_epochs: int) -> VRun:
    """The cells that the rule admits."""
    admitted = {
        cell: marks
        for cell, marks in sorted(run.cells.items())
        if cell.epoch > 0 and (rule == "max" or cell.epoch == n_epochs)
    }
    return VRun(run.split, run.groups, admitted)


def _best(run: VRun, mean: Callable[[Marks], float] = lambda marks: float(marks.mean())):
    """`max` keeps the first of equals, and cells come in ascending order."""
    return max(run.cells, key=lambda cell: mean(run.cells[cell]))


def _best_everywhere(runs: Sequence[VRun]) -> GridCell | None:
    """The best mean among the cells that every V has; a mean over fewer would not compare."""
    common = [cell for cell in runs[0].cells if all(cell in run.cells for run in runs)]
    if not common:
        return None
    return max(common, key=lambda cell: np.mean([run.cells[cell].mean() for run in runs]))


def _joined(runs: Sequence[VRun], cells: Sequence[tuple[GridCell, ...]]) -> Selected:
    marks = tuple(run.cells[chosen[0]] for run, chosen in zip(runs, cells, strict=True))
    choices = (Choice(run.split, chosen[0]) for run, chosen in zip(runs, cells, strict=True))
    return Selected(float(np.mean([one.mean() for one in marks])), marks, tuple(choices))


def _nested(runs: Sequence[VRun]) -> Selected:
    marks, choices = [], []
    for run in runs:
        first = halves(run.groups, run.split)
        scored = np.zeros(len(first), dtype=bool)
        for half in (first, ~first):
            cell = _best(run, lambda one, half=half: float(one[half].mean()))
            scored[~half] = run.cells[cell][~half]
            choices.append(Choice(run.split, cell))
        marks.append(scored)
    return Selected(float(np.mean([one.mean() for one in marks])), tuple(marks), tuple(choices))


def halves(groups: Sequence[Hashable], name: str) -> NDArray[np.bool_]:
    """A random half of the items, the same for a name; whole groups where there are several.

    Raises:
        ValueError: fewer than two items.
    """
    if len(groups) < 2:
        raise ValueError("nested selection: wanted two items or more in every split")
    several = len(set(groups)) > 1
    labels = list(groups) if several else list(range(len(groups)))
    order = list(dict.fromkeys(labels))
    Random(f"halves-{name}").shuffle(order)
    first = set(order[: len(order) // 2])
    return np.array([label in first for label in labels])


def places_of(study: StudyRecord, condition: Condition) -> list[Place]:
    """The jobs of a condition."""
    return [one for one in study.places if one.condition == condition]


def measured(
    study: StudyRecord, log: Log, condition: Condition, readout: str, splits: Sequence[str]
) -> tuple[Marks, ...] | None:
    """Marks of a model as it is, per split; None where a job is not done yet."""
    jobs = {one.split: log.finished.get(one.job_id) for one in places_of(study, condition)}
    found = [(split, jobs.get(split.name)) for split in study.splits if split.name in splits]
    if not found or any(job is None for _, job in found):
        return None
    return tuple(_marks(split, job, 0, readout) for split, job in found if job)


def v_runs(study: StudyRecord, log: Log, condition: Condition, readout: str) -> list[VRun]:
    """The sweeps of a condition, one per held-out split; cells of missing jobs are absent."""
    by_name = {split.name: split for split in study.splits}
    return [
        VRun(name, by_name[name].groups, _cells(study, log, condition, readout, by_name[name]))
        for name in study.held_out
    ]


def done(study: StudyRecord, log: Log, condition: Condition) -> list[tuple[Place, Finished]]:
    """The finished jobs of a condition with their places."""
    return [
        (place, log.finished[place.job_id])
        for place in places_of(study, condition)
        if place.job_id in log.finished
    ]


def _cells(
    study: StudyRecord, log: Log, condition: Condition, readout: str, split: HeldSplit
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
