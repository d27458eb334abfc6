"""What does training on the answers bring back? A finished run of `lensaudit relearn --audit`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Len

from lensaudit.results.kinds.table import ResultKind
from lensaudit.results.reading import Number
from lensaudit.scores.estimate import Estimate
from lensaudit.verdict.views import Calibration, View

AUDIT = "audit.json"
"""Scores before and after relearning."""


@dataclass(frozen=True, kw_only=True)
class ScoreChange:
    """The scores of one model before and after an attack, by what a table calls them."""

    model: str
    remark: str | None = None
    """That the attack did next to nothing; None where it did something."""
    before: Mapping[str, Number | None]
    """`uds`: high means forgotten; others: knows. None where nothing could be scored."""
    after: Mapping[str, Number | None]


@dataclass(frozen=True, kw_only=True)
class RelearnRecord:
    """`audit.json` of a relearning."""

    key: str = ""
    """Of the models, the training and what is asked."""
    shifts: Annotated[list[ScoreChange], Len(1)]
    """Of the model, then of `retain`, which had nothing to recover."""

    @property
    def source(self) -> str:
        """The model that is attacked."""
        return self.shifts[0].model


def _relearn(one: RelearnRecord, nulls: Calibration) -> list[View]:
    """What relearning adds to the answers' probability, beyond what it adds to `retain`."""
    shifts = one.shifts
    ends = [(of.before.get("prob"), of.after.get("prob")) for of in (shifts[0], shifts[-1])]
    added = [after - before for before, after in ends if before is not None and after is not None]
    if len(shifts) < 2 or len(added) < 2:
        return [View("relearn_gain", None, why="what it adds to retain is not known")]
    gain = Estimate(added[0] - added[1], why="one run of each model: no interval")
    shown = f"adds {added[0]:+.2f}, to retain {added[1]:+.2f}"
    return [View("relearn_gain", None, shown, why=gain.why, number=gain)]


VIEWS = {"relearn": _relearn}
KINDS = {"relearn": ResultKind(record=RelearnRecord, files=(AUDIT,), is_named=True, is_closed=True)}
