"""What did retraining bring back? Studies of `lensaudit rtt`, or rows of another tool's table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, model_serializer, model_validator

from lensaudit.results.kinds.table import ResultKind
from lensaudit.results.reading import Number, Whole
from lensaudit.scores.estimate import UNMEASURED, Estimate
from lensaudit.scores.intervals import exact_excess
from lensaudit.verdict.views import Calibration, View, rows_each

CONDITIONS: Mapping[str, tuple[str, str]] = {
    "0": ("original", "forget_acc_baseline"),
    "A": ("unlearned", "forget_acc_unlearn"),
    "B": ("unlearned, retrained", "forget_acc_unlearn_rtt"),
    "C": ("original, retrained: the ceiling", "forget_acc_baseline_rtt"),
    "N0": ("never knew", "forget_acc_control"),
    "N": ("never knew, retrained: the floor", "forget_acc_control_rtt"),
}
"""Condition -> its name, and its column in `summary.csv`."""
RATIOS = {
    "recovery_adjusted": "(B − N) / (C − N)",
    "gap_closed": "(B − A) / (C − A)",
    "recovery_rate": "B / C",
}


def _estimate_in(one: Any) -> Any:
    """The fields of an estimate whose limits are an object, and whose reason has one of two names.

    Raises:
        ValueError: limits that are none.
    """
    if not isinstance(one, Mapping):
        return one
    ends = one.get("interval") or {}
    if not isinstance(ends, Mapping) or set(ends) not in ({*()}, {"low", "high"}):
        raise ValueError(f"interval: found {ends!r:.40}, wanted low and high")
    why = one.get("interval_why") or one.get("reason") or None
    return {"value": one.get("value"), **ends, "n": one.get("n"), "why": why}


def _limits(one: Estimate) -> dict[str, Any]:
    ends = one.ends and dict(zip(("low", "high"), one.ends, strict=True))
    return {"value": one.value, "interval": ends}


def _ratio(one: Estimate) -> dict[str, Any]:
    known = one.value is not None
    why = {"reason": "" if known else one.why, "interval_why": one.why if known else None}
    return _limits(one) | why


Ratio = Annotated[Estimate, BeforeValidator(_estimate_in), PlainSerializer(_ratio)]


@dataclass(frozen=True, kw_only=True)
class Accuracy(Estimate):
    """Share of the items of some splits that are answered rightly."""

    n_splits: Whole = 0

    @model_validator(mode="before")
    @classmethod
    def _read(cls, one: Any) -> Any:
        splits = {"n_splits": one.get("n_splits", 0)} if isinstance(one, Mapping) else {}
        return _estimate_in(one) | splits if splits else one

    @model_serializer
    def _written(self) -> dict[str, Any]:
        counted = {"interval_why": self.why, "n": self.n, "n_splits": self.n_splits}
        return _limits(self) | counted


@dataclass(frozen=True, kw_only=True)
class RttOutcome:
    """The retrained conditions under one way of selecting, and what follows from them."""

    selection: str = "?"
    acc_selection_rule: str = "?"
    accuracies: Mapping[str, Accuracy] = field(default_factory=dict)
    """Of B, C and N, those that there are."""
    chosen: Mapping[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    """Condition -> split, lr and epoch of what speaks."""
    recovery_rate: Ratio | None = None
    recovery_adjusted: Ratio | None = None
    gap_closed: Ratio | None = None


@dataclass(frozen=True)
class Gate:
    """Whether the original knew, and unlearning lowered what it knows."""

    min_baseline: Number = 0.0
    min_drop: Number = 0.0
    passed: bool = True
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RttRecord:
    """A study in `summary.json`."""

    study_id: str = ""
    rtt_signature: str = ""
    data: str = ""
    data_digest: str = ""
    defects: Mapping[str, Whole] = field(default_factory=dict)
    n_left_out: Whole = 0
    models: Mapping[str, str] = field(default_factory=dict)
    """By role: `original`, `unlearned`, `control`."""
    method: str | None = None
    held_out: list[str] = field(default_factory=list)
    n_groups: Whole = 0
    """Authors of these splits."""
    per_author: Number | None = None
    """Rows of the author that a row is of, in the mean; None: not said."""
    sweep: Mapping[str, Any] = field(default_factory=dict)
    chance: Number | None = None
    readout: str = ""
    gate: Gate = Gate()
    conditions: Mapping[str, str] = field(default_factory=dict)
    as_they_are: Mapping[str, Accuracy] = field(default_factory=dict)
    """0, A and N0 on the held-out splits."""
    all_splits: Mapping[str, Accuracy] = field(default_factory=dict)
    checks: Mapping[str, Mapping[str, Number | None]] = field(default_factory=dict)
    main: RttOutcome = RttOutcome()
    others: list[RttOutcome] = field(default_factory=list)
    reading: str | None = None
    notes: list[str] = field(default_factory=list)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The unlearned model."""
        return self.models.get("unlearned", "?")


def in_table(row: Mapping[str, str]) -> dict[str, Any]:
    """A row of another tool's table as a study is written."""

    def ends(name: str) -> dict[str, Any] | None:
        if not row.get(name):
            return None
        low, high = (_number(row.get(f"{name}_{end}")) for end in ("low", "high"))
        interval = None if low is None or high is None else {"low": low, "high": high}
        return {"value": _number(row[name]), "interval": interval}

    found = {name: ends(column) for name, (_, column) in CONDITIONS.items()}
    failed = {"passed": False, "reason": "unlearning is not shown to have worked"}
    return {
        "models": {"unlearned": row.get("model_id") or row.get("model_path") or "?"},
        "data": row.get("dataset", ""),
        "as_they_are": {name: one for name, one in found.items() if one},
        "gate": failed if row.get("gate") == "failed" else {},
        "main": {
            "selection": row.get("selection") or "",
            "acc_selection_rule": row.get("acc_selection_rule") or "",
            **{name: one for name in RATIOS if (one := ends(name))},
        },
    }


def _number(text: str | None) -> float | str | None:
    """A number as a record reads it; other text is refused there."""
    try:
        return float(text) if text else None
    except ValueError:
        return text


def _rtt(one: RttRecord, nulls: Calibration) -> list[View]:
    held = one.main.recovery_adjusted or UNMEASURED
    if held.value is None:
        return [View("rtt", None, why=held.why or "no model that never knew was retrained")]
    gate, null = one.gate, nulls.get("rtt")
    chance = null and null.chance(held)
    return [
        View(
            "rtt",
            held,
            f"recovery {held.value:.2f}",
            # without an interval by counts: of those answered rightly as of those of the floor
            _answered(one.main, one.n_groups, one.per_author) if held.ends is None else chance,
            one.n_groups,
            None if gate.passed else gate.reason or "the gate failed",
        )
    ]


def _answered(main: RttOutcome, authors: int | None, per_author: float | None) -> float | None:
    """Chance that so many more of the held-out rows are answered rightly than without the facts."""
    own, floor = (main.accuracies.get(name) for name in ("B", "N"))
    if own is None or floor is None or not (own.n and floor.n):
        return None
    each = rows_each(own.n, authors, per_author)
    return exact_excess(own.point * own.n, floor.point * own.n, own.n, each)[1]


VIEWS = {"rtt": _rtt}
KINDS = {
    "rtt": ResultKind(
        record=list[RttRecord],
        field="study_id",
        column=CONDITIONS["B"][1],
        of_row=in_table,
    )
}
