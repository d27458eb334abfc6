"""A relearning attack: every score before and after."""

from collections.abc import Iterator

from lensaudit.attacks.recovery import Recovered
from lensaudit.screen.cells import number
from lensaudit.screen.tables import Part, row, table


def of_recovery(found: Recovered) -> Iterator[Part]:
    """A line a model."""
    names = list(found.shifts[0].before)
    title = "before -> after relearning; uds: 1 forgotten, the others: high knows"
    made = table(title, ["model", *names], left=("model",))
    for one in found.shifts:
        cells = (f"{number(one.before[name])} -> {number(one.after[name])}" for name in names)
        row(made, one.model, *cells)
    yield made
