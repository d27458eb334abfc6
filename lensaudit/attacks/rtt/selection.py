"""The (learning rate, epoch) that is reported for a sweep.

Choosing on the items that are reported is optimistic: with 6 x 6 cells and two V runs of 157 items
pure noise gains 5 to 6 points per V and about 4 globally (`rtt.md` section 7). Every condition is
therefore selected alike, and compared with the control, never with chance.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from lensaudit.attacks.rtt.log import Condition, HeldSplit
from lensaudit.attacks.rtt.marks import Cells, GridCell, Marks, mean_of
from lensaudit.attacks.settings import EpochRule, Selection

RULE_NAMES: Mapping[EpochRule, str] = {"max": "max_epoch", "final": "final_epoch"}
"""As the upstream fork calls them."""


@dataclass(frozen=True)
class Selected:
    """What a sweep comes to."""

    marks: tuple[Marks, ...]
    """Per V run, of the chosen cells."""
    choices: tuple[tuple[str, GridCell], ...]
    """The cell that speaks for a V run; nested: for half of it, one per half."""
    n_cells: int = 1
    """Of which the best on the reported items was taken; 1: chosen on other items, or no choice."""

    @property
    def accuracy(self) -> float:
        """Mean over V runs."""
        return mean_of(self.marks)


def select(
    runs: Mapping[HeldSplit, Cells],
    *,
    selection: Selection,
    rule: EpochRule,
    n_epochs: int,
) -> Selected | None:
    """The accuracy of a sweep; None where no cell can speak for some V.

    Epoch 0 takes no part: the model as it was is another condition. Of equal cells the lowest
    learning rate and the earliest epoch is taken.
    """
    kept = {
        split: {
            cell: marks
            for cell, marks in sorted(cells.items())
            if cell.epoch > 0 and (rule == "max" or cell.epoch == n_epochs)
        }
        for split, cells in runs.items()
    }
    if not kept or not all(kept.values()):
        return None
    if selection == "nested":
        return _nested(kept)
    if selection == "per_v":
        n_cells = max(map(len, kept.values()))
        chosen = {split: _best(cells) for split, cells in kept.items()}
    else:
        # among the cells that every V has; a mean over fewer would not compare
        common = sorted(set.intersection(*(set(cells) for cells in kept.values())))
        if not common:
            return None
        n_cells = len(common)
        means = [np.mean([cells[cell].mean() for cells in kept.values()]) for cell in common]
        chosen = {split: common[int(np.argmax(means))] for split in kept}
    marks = tuple(kept[split][cell] for split, cell in chosen.items())
    choices = tuple((split.name, cell) for split, cell in chosen.items())
    return Selected(marks, choices, n_cells)


def unequal(read: Mapping[Condition, Mapping[HeldSplit, Collection[GridCell]]]) -> str:
    """Why the best of these conditions do not compare; empty where all have the same cells.

    A run that diverged or is not done yet leaves its condition the best of fewer models.
    """
    held = {
        name: {(split.name, cell) for split, cells in runs.items() for cell in cells}
        for name, runs in read.items()
    }
    every = set[tuple[str, GridCell]]().union(*held.values())
    lacking = {name: sorted({cell.lr for _, cell in every - own}) for name, own in held.items()}
    listed = " and ".join(
        f"{name} lacks epochs at lr {', '.join(f'{lr:g}' for lr in lrs)}"
        for name, lrs in lacking.items()
        if lrs
    )
    return listed and f"{listed} that others have: the best of each do not compare"


def _best(cells: Cells, among: NDArray[np.bool_] | slice = slice(None)) -> GridCell:
    """`max` keeps the first of equals, and cells come in ascending order."""
    return max(cells, key=lambda cell: float(cells[cell][among].mean()))


def _nested(runs: Mapping[HeldSplit, Cells]) -> Selected:
    marks, choices = [], []
    for split, cells in runs.items():
        first = halves(split.groups, split.name)
        scored = np.zeros(len(first), dtype=bool)
        for half in (first, ~first):
            cell = _best(cells, half)
            scored[~half] = cells[cell][~half]
            choices.append((split.name, cell))
        marks.append(scored)
    return Selected(tuple(marks), tuple(choices))


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
