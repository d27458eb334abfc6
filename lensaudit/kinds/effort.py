"""How many steps of retraining bring the facts back? A finished run of `lensaudit effort`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Len

from lensaudit.results.kinds.table import ResultKind
from lensaudit.results.reading import Number, Whole
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import exact_excess
from lensaudit.verdict.views import Calibration, View, over_arm, rows_each, strongest


@dataclass(frozen=True)
class EffortPoint:
    """All models after an attack of `c` steps."""

    c: Whole
    steps: Whole
    tokens: Whole
    flop: Whole
    source: Number | None
    """Share of the held-out facts answered rightly."""
    full: Number | None
    retain: Number | None
    """The control arm's a mean over its models; None of any model whose attack diverged before."""
    rho: Number | None
    low: Number | None
    """Lower limits of a curve hold together."""
    reason: str = ""
    """Why there is no rho, or no limit."""


@dataclass(frozen=True, order=True)
class TrainingRate:
    """What the attacker may turn: the learning rate, and the rank of what is trained."""

    lr: Number
    rank: Whole = 0
    """Of the adapter; 0: all weights."""


@dataclass(frozen=True, kw_only=True)
class EffortArm:
    """How long an attack on one kind of rows takes."""

    e50: Whole | None
    """Steps until half is back, and until most of it."""
    e80: Whole | None
    censored: Mapping[str, bool]
    by: str = ""
    lr: Number
    """Of the attack on the source that recovers most."""
    rank: Whole | None = None
    rates: list[TrainingRate] = field(default_factory=list)
    """Those that speak, each chosen on the half of the facts that it does not speak for."""
    cost: Mapping[str, Mapping[str, Whole] | None] = field(default_factory=dict)
    reason: str
    """Why longer attacks have no rho, where one of these was not reached before."""
    trained_on: str
    n_rows: Whole = 0
    likeness: Number | None = None
    curve: Annotated[list[EffortPoint], Len(1)]


@dataclass(frozen=True, kw_only=True)
class EffortRecord:
    """`summary.json` of a run of `effort`."""

    schema: str = "effort/1"
    model: str
    full: str = ""
    retain: list[str] = field(default_factory=list)
    data: str
    readout: str
    n_facts: Whole = 0
    n_authors: Whole = 0
    per_author: Number | None = None
    """Facts of the author that a fact is of, in the mean; None where another version wrote it."""
    n_choices: Whole = 0
    n_left_out: Whole = 0
    rows_left_out: Whole = 0
    steps: list[Whole] = field(default_factory=list)
    by: str
    """`interval` or `estimate`: what E is read from."""
    rates: list[TrainingRate] = field(default_factory=list)
    arms: Mapping[str, EffortArm]
    notes: list[str]

    @property
    def source(self) -> str:
        """The model that is attacked."""
        return self.model


def _effort(one: EffortRecord, nulls: Calibration) -> list[View]:
    """The strongest reading; chances of counts are taken as often as there are readings."""
    points = [at for arm in one.arms.values() for at in arm.curve if at.rho is not None]
    views = [
        _reading(at, one, len(points), nulls) for at in points if at.low is not None or one.n_facts
    ]
    return [strongest(views or [View("effort", None, why="no reading has a rho")])]


def _reading(at: EffortPoint, run: EffortRecord, n_readings: int, nulls: Calibration) -> View:
    """View of the models after so many steps: by the lower limit, without one by counts."""
    rho, low, own, never, n = at.rho or 0.0, at.low, at.source or 0.0, at.retain or 0.0, run.n_facts
    shown, blind = f"share recovered after {at.c} steps {rho:.2f}", "a longer attack may find more"
    if low is not None:
        # the limit is one-sided: what the other end is was not asked
        held = Estimate(max(rho, low), low, 1.0)
        return over_arm("effort", held, f"{shown}, lower limit {low:.2f}", nulls, None, blind=blind)
    each = rows_each(n, run.n_authors, run.per_author)
    chance = min(1.0, n_readings * exact_excess(own * n, never * n, n, each)[1])
    return View("effort", Estimate(rho, why=at.reason), shown, chance, blind=blind)


VIEWS = {"effort": _effort}
KINDS = {"effort": ResultKind(record=EffortRecord)}
