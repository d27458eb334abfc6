"""What attacks found: worst case, samples, retraining, relearning, effort; and curves by step."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Len
from pydantic import BeforeValidator

from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.results.reading import (
    AtLayer,
    JsonObject,
    Length,
    Number,
    Whole,
    brief,
    checked,
    checked_as,
    csv_rows,
    json_lines,
    json_object,
    need,
    part,
)
from lensaudit.scores.estimate import UNMEASURED, Estimate
from lensaudit.settings import COUNTERFACTUAL

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
    return {"kind": "effort", "folder": str(path.parent), **asdict(effort_run(path))}


@dataclass(frozen=True, kw_only=True)
class Shift:
    """The scores of one model before and after an attack, by what a table calls them."""

    model: str
    remark: str | None = None
    """That the attack did next to nothing; None where it did something."""
    before: Mapping[str, Number | None]
    """`uds`: high means forgotten; others: knows. None where nothing could be scored."""
    after: Mapping[str, Number | None]


def shifts_in(content: JsonObject, where: object) -> list[Shift]:
    """Of `audit.json` of a relearning: the model, then `retain`, which had nothing to recover.

    Raises:
        InputError: it holds no scores.
    """
    need(content, where, "shifts")
    return checked_as(Annotated[list[Shift], Len(1)], content["shifts"], f"{where}: shifts")


def read_relearn(path: Path) -> dict[str, Any]:
    """Scores of models before and after one pass over the forget answers.

    Raises:
        InputError: no scores.
    """
    rows = [
        {"model": shift.model, "score": name, "before": value, "after": shift.after.get(name)}
        for shift in shifts_in(json_object(path), path)
        for name, value in shift.before.items()
    ]
    return brief({"kind": "relearn", "folder": str(path.parent), "rows": rows})


def _with_interval(one: Any) -> Any:
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
    return {"value": one.get("value"), **ends, "why": why}


RttEstimate = Annotated[Estimate, BeforeValidator(_with_interval)]
"""An accuracy or a recovery of a study."""


def _accuracy(one: Any, where: str) -> dict[str, Any] | None:
    """As the page reads it; None where nothing was measured."""
    if one is None:
        return None
    found: Estimate = checked_as(RttEstimate, one, where)
    why, is_known = found.why or "", found.value is not None
    shown = {"value": found.value, "low": found.low, "high": found.high}
    return {**shown, "reason": "" if is_known else why, "why": why if is_known else ""}


def _cell(text: str | None, path: Path) -> float | None:
    if not text:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{path}: {text[:40]!r} is no number") from error


@dataclass(frozen=True)
class WorstAttack:
    """One attack of a worst case over all facts, on every model."""

    name: str
    tier: str
    about: str
    n_scored: Whole
    control: Number | None
    """Hit rate on `full`, which knows: the positive control. None: it scored no fact."""
    source: Number | None
    """Hit rate on the source."""
    retain: Number | None
    """Mean hit rate on the control arm."""
    counts: bool
    """It hits something on `full`; an attack that does not is left out of every maximum."""
    only: Whole
    """Facts of the source that no other attack breaks."""
    gain: Number | None
    """Excess of the list minus that of the list without it."""
    seconds: Length
    forwards: Whole
    tokens: Whole


@dataclass(frozen=True)
class WorstFact:
    """What a worst case says of one fact: a row of `facts.csv`."""

    idx: Whole
    group: Whole | str = ""
    entity: str = ""
    attacks: str = ""
    """Names joined by `;`."""
    statistic: str = ""
    p: str = ""
    q: str = ""
    """Below it the fact may be named as known."""
    unscored: str = ""
    question: str = ""


@dataclass(frozen=True, kw_only=True)
class WorstSummary:
    """`summary.json` of a worst case; of the gym's ledger what a verdict reads of one."""

    kind: str = "worst"
    source: str
    full: str = ""
    retain: Annotated[list[str], Len(1)]
    data: str = ""
    tier: str = ""
    attack_list: str = ""
    headline: str = ""
    n: Whole = 0
    n_scored: Whole
    unscored: Mapping[str, str] = field(default_factory=dict)
    """Idx -> why a fact was not asked."""
    authors: Whole = 0
    n_out: Whole
    """k: facts that some attack brings out of the source."""
    expected: Number
    """Facts that would come out of a model that never knew."""
    excess: Number
    ci95: tuple[Number, Number] | None
    no_interval: str | None = None
    excess_share: Number | None = None
    """Of the largest excess that there can be."""
    named: list[Whole]
    naming: Mapping[str, Any] = field(default_factory=dict)
    bound: Mapping[str, Any] = field(default_factory=dict)
    """Most a fact's rate per sample can be where so many samples of leak@k did not hit it."""
    attacks: Sequence[WorstAttack] = ()
    facts: Sequence[WorstFact]


@dataclass(frozen=True)
class LeakRow:
    """Leak@k under one setting of the sampler, over all facts."""

    temperature: Number
    top_p: Number
    k: Whole
    source: Number | None
    """Mean of the unbiased estimate; None where k is more than there are samples."""
    retain: Number | None
    """The same of the control arm, mean over its models."""
    excess: Number | None
    """Mean of the paired differences."""
    low: Number | None
    high: Number | None
    corrected: Number | None
    """Excess with the matcher's errors taken out of each rate per draw; None without labels."""
    false_leak: Number
    """Leak@k that the matcher's false hits alone would make."""
    reason: str | None
    """Why there is no value, or no interval."""


@dataclass(frozen=True, kw_only=True)
class SampleSummary:
    """`summary.json` of sampled answers."""

    source: str
    retain: list[str]
    n_scored: Whole
    samples: Whole
    authors: Whole = 0
    """Of the facts; 0 where a record of another version does not say."""
    leak: Annotated[list[LeakRow], Len(1)]


_SHOWN = {
    WorstSummary: ("source", "retain", "attack_list", "headline", "excess", "ci95", "named"),
    WorstAttack: ("name", "about", "control", "source", "retain", "counts", "only", "gain"),
    WorstFact: ("idx", "group", "entity", "attacks", "q", "unscored"),
    SampleSummary: ("source", "retain", "samples"),
    LeakRow: (
        *("temperature", "top_p", "k", "source", "retain", "excess", "low", "high"),
        *("false_leak", "reason"),
    ),
}
"""Record -> its fields that the page has beside lists of records."""


def worst_run(path: Path) -> WorstSummary:
    """A worst case, checked.

    Raises:
        InputError: a field is missing or of another kind.
    """
    return checked(WorstSummary, json_object(path), path)


def read_worst(path: Path) -> dict[str, Any]:
    """Facts, attacks and headline of a worst case, as the page reads them.

    Raises:
        InputError: a file holds something else.
    """
    found = worst_run(path)
    lists = {
        "attacks": _on_page(found.attacks),
        "facts": _on_page(found.facts),
        "said": _said_to(path.with_name("evidence.jsonl")),
    }
    return _page("worst", path, found, lists)


MOST_SAID = 3
"""Attacks of one fact whose words the page holds: the first that hit, in the order of the list."""
LONGEST_SAID = 200
"""Characters of them."""


def _said_to(path: Path) -> dict[str, list[tuple[str, str]]]:
    """By idx, the first attacks that hit, and what was said to them; empty without the file."""
    found: dict[str, list[tuple[str, str]]] = {}
    for row in json_lines(path) if path.exists() else ():
        need(row, path, "idx", "attack", "hit", "evidence")
        if row["hit"] and len(said := found.setdefault(str(row["idx"]), [])) < MOST_SAID:
            said.append((row["attack"], str(row["evidence"])[:LONGEST_SAID]))
    return found


def read_sample(path: Path) -> dict[str, Any]:
    """Leak@k of sampled answers, and facts that came out, as the page reads them.

    Raises:
        InputError: a file holds something else.
    """
    found = checked(SampleSummary, json_object(path), path)
    said: dict[str, list[tuple[int, int, str]]] = {}
    for row in _rows_beside(path, "idx", "n", "hits"):
        hits, n = (
            checked_as(int, row[name], f"{path.parent}/facts.csv: {name}") for name in ("hits", "n")
        )
        if hits:
            said.setdefault(row["idx"], []).append((hits, n, row.get("said", "")[:LONGEST_SAID]))
    return _page("sample", path, found, {"leak": _on_page(found.leak), "said": said})


def _rows_beside(path: Path, *columns: str) -> list[dict[str, str]]:
    """Rows of `facts.csv` beside a summary, which have these columns; none without the file."""
    table = path.with_name("facts.csv")
    rows = csv_rows(table) if table.exists() else []
    for row in rows:
        need(row, table, *columns)
    return rows


def _page(kind: str, path: Path, found: Any, lists: Mapping[str, Any]) -> dict[str, Any]:
    return brief({"kind": kind, "folder": str(path.parent), **_on_page([found])[0], **lists})


def _on_page(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return [{name: getattr(one, name) for name in _SHOWN[type(one)]} for one in rows]


SERIES = ("uds", "model_utility")
"""What is drawn of a training run; all of them stand in zero to one."""


@dataclass(frozen=True)
class KnownRelation:
    """One relation of a run of `know`."""

    relation: str
    n: Whole
    trace: Number
    z: Number
    p: Number


@dataclass(frozen=True)
class KnowControl:
    """What must hold before anything is said."""

    name: str
    passed: bool
    said: str
    """With the number."""


@dataclass(frozen=True)
class KnowPower:
    """What the test would have found."""

    bits: Number | None
    """Least mean familiarity, bits a fact, that is found with a chance of `share`; None: none."""
    share: Number
    why: str = ""
    """Why it is not known, where that is no matter of the subjects' number."""


@dataclass(frozen=True, kw_only=True)
class KnowRun:
    """Who has what, as `summary.json` of a run of `know` says it."""

    source: str
    headline: str
    finds: bool
    """It binds values to subjects, beyond chance and beyond what names give away."""
    p: Number
    z: Number
    reader: str = ""
    """Whose trace is the largest."""
    exact: bool = False
    n_permutations: Whole = 0
    gamma: Number = 0.0
    """Largest tilt by cues that p survives."""
    gamma_controls: Number = 1.0
    """Tilt that names alone show in models that never knew; 1 where none is seen."""
    bits: Estimate | None
    """Mean bits a fact."""
    bits_familiar: Estimate = UNMEASURED
    power: KnowPower = field(default_factory=lambda: KnowPower(None, 0.0))
    named: list[Whole] = field(default_factory=list)
    naming: dict[str, Any] = field(default_factory=dict)
    controls: list[KnowControl]
    priors: list[str] = field(default_factory=list)
    """Of which the largest counts."""
    readers: list[str] = field(default_factory=list)
    n: Whole = 0
    """Facts."""
    n_subjects: Whole
    relations: list[KnownRelation]
    max_bits: Number
    """Of a reader that is sure of every fact."""
    unscored: dict[AtLayer, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def failed(self) -> KnowControl | None:
        """The first control that did not pass, of those that a finding needs."""
        return next((one for one in self.controls if not one.passed and one.name != "kept"), None)

    def document(self) -> dict[str, Any]:
        """The content of summary.json."""
        told = {"kind": "know", **asdict(self)}
        for name in ("bits", "bits_familiar"):
            if told[name]:
                told[name] = {key: told[name][key] for key in ("value", "low", "high", "n", "why")}
        return told


@dataclass(frozen=True, kw_only=True)
class KnowMatrix:
    """Subjects by values: what a reader says of one relation, probabilities."""

    relation: str
    reader: str = ""
    subjects: list[str]
    values: list[str]
    truth: list[Whole]
    p: list[list[Number]]


def read_know(path: Path) -> dict[str, Any]:
    """Headline, relations, the matrix of one relation, and bits by fact, or why there are none.

    Raises:
        InputError: a file holds something else.
    """
    found = asdict(checked(KnowRun, json_object(path), path))
    place = path.parent / "matrix.json"
    matrix = asdict(checked(KnowMatrix, json_object(place), place))
    del matrix["reader"]
    facts = {
        row["idx"]: (_cell(row["bits_associated"], path), row["unscored"])
        for row in _rows_beside(path, "idx", "bits_associated", "unscored")
    }
    shown = ("source", "headline", "finds", "p", "z", "n_subjects", "max_bits", "bits")
    lists = {name: found[name] for name in (*shown, "relations", "controls")}
    lists |= {"matrix": matrix, "facts": facts}
    return brief({"kind": "know", "folder": str(path.parent), **lists})


def read_counterfactual(path: Path) -> dict[str, Any]:
    """What a run of `patch` without a retain model says, and what led to it.

    Raises:
        InputError: a file holds something else.
    """
    found = json_object(path)
    said = found["verdict"]
    named = {"kind": COUNTERFACTUAL, "folder": str(path.parent), "source": found["source"]}
    return {**named, "headline": said["sentence"], "because": said["because"]}


@dataclass(frozen=True)
class CurvePoint:
    """A value after so many optimiser steps."""

    source: str
    """The training run's folder, or the model under attack."""
    series: str
    """A metric, or `recovery` with the arm of the attack."""
    step: int
    value: float
    epoch: float | None = None
    """As the trainer counted them; None: it did not say."""


@dataclass(frozen=True)
class CurveRow:
    """A row of `curve.json`, beside its metrics."""

    step: Whole
    epoch: Number | None = None


def training_curve(path: Path, series: tuple[str, ...] = SERIES) -> list[CurvePoint]:
    """The points of `curve.json`, which `lensaudit watch` writes; gaps are left out.

    Raises:
        InputError: the file holds no such rows.
    """
    content = read_json(path)
    return [
        CurvePoint(path.parent.name, name, row.step, value, row.epoch)
        for row, values in zip(checked_as(list[CurveRow], content, path), content, strict=True)
        for name in series
        if (value := checked_as(Number | None, values.get(name), f"{path}: {name}")) is not None
    ]


def recovery_curve(path: Path) -> list[CurvePoint]:
    """Recovery rho by step of every arm of `lensaudit effort`.

    Raises:
        InputError: as `effort_run`.
    """
    run = effort_run(path)
    return [
        CurvePoint(run.model, f"recovery {arm}", one.c, one.rho)
        for arm, found in run.arms.items()
        for one in found.curve
        if one.rho is not None
    ]


def read_curve(path: Path) -> dict[str, Any]:
    """The curve of a training run as the page reads it.

    Raises:
        InputError: as `training_curve`.
    """
    points = [vars(one) for one in training_curve(path)]
    if not points:
        raise InputError(f"{path}: holds neither {' nor '.join(SERIES)}")
    return {"folder": str(path.parent), "points": points}
