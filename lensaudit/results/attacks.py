"""Attacks on the page: what retraining and relearning brought back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Len

from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.results.reading import JsonObject, brief, csv_rows, json_object, part
from lensaudit.results.schema import Number, Whole, checked, checked_as

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


def read_rtt(path: Path) -> list[dict[str, Any]]:
    """Retraining studies, from `summary.json` or the summary table of another tool.

    Raises:
        InputError: a row is not a study.
    """
    if path.suffix == ".csv":
        return [_from_table(row, path) for row in csv_rows(path)]
    studies = checked_as(list[dict[str, Any]], read_json(path), path)
    return [_from_summary(study, path) for study in studies]


def _from_summary(study: JsonObject, path: Path) -> dict[str, Any]:
    main, gate = part(study, "main"), part(study, "gate")
    said = study.get("reading") if gate.get("passed", True) else None
    measured = part(study, "as_they_are") | part(main, "accuracies")
    return _study(
        path,
        model=str(part(study, "models").get("unlearned", "?")),
        data=str(study.get("data", "")),
        accuracies={name: _accuracy(measured.get(name), f"{path}: {name}") for name in CONDITIONS},
        ratios={name: _accuracy(main.get(name), f"{path}: {name}") for name in RATIOS},
        gate="" if gate.get("passed", True) else str(gate.get("reason", "")),
        notes=[str(note) for note in (said, *(study.get("notes") or ())) if note],
        chance=study.get("chance"),
        how=f"{main.get('selection', '?')}, {main.get('acc_selection_rule', '?')}",
    )


def _from_table(row: Mapping[str, str], path: Path) -> dict[str, Any]:
    def ends(name: str) -> dict[str, Any] | None:
        value = _cell(row.get(name), path)
        if value is None:
            return None
        low, high = (_cell(row.get(f"{name}_{end}"), path) for end in ("low", "high"))
        return {"value": value, "low": low, "high": high, "reason": ""}

    return _study(
        path,
        model=row.get("model_id") or row.get("model_path") or "?",
        data=row.get("dataset", ""),
        accuracies={name: ends(column) for name, (_, column) in CONDITIONS.items()},
        ratios={name: ends(name) for name in RATIOS},
        gate="unlearning is not shown to have worked" if row.get("gate") == "failed" else "",
        notes=[],
        chance=None,
        how=row.get("acc_selection_rule", ""),
    )


def _study(
    path: Path,
    *,
    accuracies: Mapping[str, dict[str, Any] | None],
    ratios: Mapping[str, dict[str, Any] | None],
    **rest: Any,
) -> dict[str, Any]:
    """A study as the page reads it; what was not measured is not listed."""
    return brief(
        {
            "kind": "rtt",
            "folder": str(path.parent),
            "accuracies": [
                {"condition": name, "name": CONDITIONS[name][0], **one}
                for name, one in accuracies.items()
                if one and one["value"] is not None
            ],
            "ratios": [
                {"name": name, "formula": RATIOS[name], **one}
                for name, one in ratios.items()
                if one
            ],
            **rest,
        }
    )


@dataclass(frozen=True)
class EffortPoint:
    """All models after an attack of `c` steps."""

    c: Whole
    tokens: Whole
    flop: Whole
    source: Number | None
    """Share of the held-out facts answered rightly."""
    full: Number | None
    retain: Number | None
    rho: Number | None
    low: Number | None


@dataclass(frozen=True)
class EffortArm:
    """How long an attack on one kind of rows takes."""

    e50: Whole | None
    e80: Whole | None
    censored: dict[str, bool]
    lr: Number
    trained_on: str
    reason: str
    curve: Annotated[list[EffortPoint], Len(1)]


@dataclass(frozen=True)
class EffortRun:
    """What `summary.json` of `lensaudit effort` must hold."""

    model: str
    data: str
    readout: str
    by: str
    arms: dict[str, EffortArm]
    notes: list[str]


def effort_run(path: Path) -> EffortRun:
    """A recovery-effort curve, checked.

    Raises:
        InputError: a field is missing or of another kind.
    """
    return checked(EffortRun, json_object(path), path)


def read_effort(path: Path) -> dict[str, Any]:
    """Recovery by the length of an attack, as the page reads it.

    Raises:
        InputError: as `effort_run`.
    """
    found = effort_run(path)
    return {"kind": "effort", "folder": str(path.parent), **asdict(found)}


@dataclass(frozen=True)
class _Shift:
    """Scores of one model."""

    model: str
    before: dict[str, Any]
    after: dict[str, Any]


@dataclass(frozen=True)
class _Relearned:
    """What `audit.json` must hold."""

    shifts: Annotated[list[_Shift], Len(1)]


def read_relearn(path: Path) -> dict[str, Any]:
    """Scores of models before and after one pass over the forget answers.

    Raises:
        InputError: no scores.
    """
    rows = [
        {"model": shift.model, "score": name, "before": value, "after": shift.after.get(name)}
        for shift in checked(_Relearned, json_object(path), path).shifts
        for name, value in shift.before.items()
    ]
    return brief({"kind": "relearn", "folder": str(path.parent), "rows": rows})


@dataclass(frozen=True)
class _Ends:
    low: Number
    high: Number


@dataclass(frozen=True)
class _Accuracy:
    """A value with its interval, or the reason why there is none."""

    value: Number | None = None
    interval: _Ends | None = None
    reason: str = ""
    interval_why: str | None = None


def _accuracy(one: Any, where: str) -> dict[str, Any] | None:
    """As the page reads it; None where nothing was measured."""
    if one is None:
        return None
    said = checked(_Accuracy, one, where)
    low, high = (said.interval.low, said.interval.high) if said.interval else (None, None)
    why = said.interval_why or ""
    return {"value": said.value, "low": low, "high": high, "reason": said.reason, "why": why}


def _cell(text: str | None, path: Path) -> float | None:
    if not text:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{path}: {text[:40]!r} is no number") from error
