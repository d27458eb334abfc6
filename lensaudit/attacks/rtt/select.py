"""Which (learning rate, epoch) speaks for a sweep? Pure functions of who answered what rightly.

Choosing on the items that are reported is optimistic: with 6 x 6 cells and two V runs of 157 items
pure noise gains 5 to 6 points per V and about 4 globally (`rtt.md` section 7). Every condition is
therefore selected alike, and compared with the control, never with chance.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

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
