"""What did `lensaudit eval` find? The metrics of one model, with directions and intervals."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.report.patch_runs import interval_of
from lensaudit.report.reading import Row, json_object, number
from lensaudit.scores.stats import Interval


@dataclass(frozen=True)
class MetricValue:
    """One metric of one model."""

    value: float | None
    interval: Interval | None
    n_scored: int
    n_unscored: int
    reason: str | None
    """Why there is no value."""


@dataclass(frozen=True)
class MetricKind:
    """What a metric is, whatever the model."""

    name: str
    family: str
    high_means: str | None
    """`knows`, `forgot`, or None where the log does not say."""
    source: str


@dataclass(frozen=True)
class EvalRun:
    """A finished evaluation of one model."""

    folder: Path
    model: str
    weights: str
    suite: str
    values: Mapping[str, MetricValue]
    kinds: Mapping[str, MetricKind]
    manifest: Row | None
    """None for a log of another tool, which has none."""


def read_eval(log_file: Path) -> EvalRun:
    """A log in open-unlearning's layout, with the manifest beside it where there is one.

    Raises:
        InputError: it is not a log.
    """
    content = json_object(log_file)
    if not content:
        raise InputError(f"{log_file}: holds no metric")
    manifest_file = log_file.parent / "manifest.json"
    manifest = json_object(manifest_file) if manifest_file.exists() else None
    model = _model(manifest)
    return EvalRun(
        folder=log_file.parent,
        model=str(model.get("name") or log_file.parent.name),
        weights=str(model.get("weights") or model.get("name") or log_file.parent.name),
        suite=log_file.name.partition("_")[0].lower(),
        values={name: _value(raw, f"{log_file}: {name}") for name, raw in content.items()},
        kinds=_kinds(content, manifest),
        manifest=manifest,
    )


def _model(manifest: Row | None) -> Row:
    inputs = (manifest or {}).get("inputs")
    model = inputs.get("model") if isinstance(inputs, Mapping) else None
    return model if isinstance(model, Mapping) else {}


def _value(raw: Any, where: str) -> MetricValue:
    if not isinstance(raw, Mapping) or "agg_value" not in raw:
        raise InputError(f"{where} has no agg_value; is this a log of open-unlearning?")
    parts = [raw[side] for side in ("forget", "holdout") if isinstance(raw.get(side), Mapping)]
    scored = missing = 0
    for part in parts or [raw]:
        rows, gaps = (part.get(name) or {} for name in ("value_by_index", "unscored"))
        scored += len(rows) - sum(key in gaps for key in rows)
        missing += len(gaps)
    return MetricValue(
        value=number(raw["agg_value"], where),
        interval=interval_of(raw.get("interval_95"), where),
        n_scored=scored,
        n_unscored=missing,
        reason=str(raw["reason"]) if raw.get("reason") else None,
    )


def _kinds(content: Row, manifest: Row | None) -> dict[str, MetricKind]:
    inputs = (manifest or {}).get("inputs")
    said = inputs.get("metrics") if isinstance(inputs, Mapping) else None
    known = said if isinstance(said, Mapping) else {}
    return {name: _kind(name, known.get(name)) for name in content}


def _kind(name: str, said: Any) -> MetricKind:
    told = said if isinstance(said, Mapping) else {}
    high = told.get("high_means")
    return MetricKind(
        name=name,
        family=str(told.get("family", "other")),
        high_means=high if high in ("knows", "forgot") else None,
        source=str(told.get("source", "")),
    )
