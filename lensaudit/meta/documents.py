"""The JSON files of meta-evaluation: written for people and the report, read for the table.

`docs/meta.md` says what each field means.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.meta.aggregate import SCORES, Aggregate, Ranked
from lensaudit.meta.catalogue import Judged
from lensaudit.meta.faithfulness import Faithfulness
from lensaudit.meta.published import N_USABLE, UDS_ROBUSTNESS, checked_number
from lensaudit.meta.robustness import Attack, Stability, on_common
from lensaudit.meta.table import Faith, Sources, Stable, TableRow, cells, null
from lensaudit.meta.values import Values
from lensaudit.results.schema import Number, Record, Share, Whole, checked
from lensaudit.scores.estimate import Estimate

SCHEMA = 1
"""Raised when a field changes its meaning."""
Document = dict[str, Any]


def faithfulness_document(
    results: Sequence[Faithfulness], knows: Sequence[str], forgot: Sequence[str], values: Values
) -> Document:
    """`faithfulness.json`."""
    keys = [one.metric.key for one in results]
    return {
        "kind": "faithfulness",
        "schema": SCHEMA,
        "pools": {"knows": list(knows), "forgot": list(forgot)},
        "to_do": {m: values.why_not(m, "") for m in (*knows, *forgot) if values.is_to_do(m)},
        "metrics": [_faithfulness(one) for one in results],
        "values": {
            model: {key: null(values.value(model, key)) for key in keys}
            for model in (*knows, *forgot)
        },
    }


def _faithfulness(one: Faithfulness) -> Document:
    threshold = one.threshold
    return _named(one.metric) | {
        "auc": null(one.auc),
        **one.interval.limits("interval_95"),
        "preliminary_auc": null(one.preliminary),
        "n_knows": one.n_knows,
        "n_forgot": one.n_forgot,
        "knows_mean": null(one.knows_mean),
        "forgot_mean": null(one.forgot_mean),
        "threshold": null(one.raw_threshold),
        "threshold_accuracy": threshold.accuracy if threshold else None,
        "histogram": asdict(one.histogram) if one.histogram else None,
        "excluded": dict(one.excluded),
        "to_do": dict(one.to_do),
        "reason": one.reason,
    }


def robustness_document(
    results: Sequence[Stability],
    *,
    models: Sequence[str],
    thresholds: Mapping[str, float],
    conditions: Mapping[str, Any],
) -> Document:
    """`robustness-quantize.json` or `robustness-relearn.json`."""
    common, means = on_common(results)
    return {
        "kind": "robustness",
        "schema": SCHEMA,
        "attack": results[0].attack,
        "form": results[0].form,
        **conditions,
        "models": list(models),
        "common": list(common),
        "metrics": [
            _robustness(one, mean, thresholds, len(common))
            for one, mean in zip(results, means, strict=True)
        ],
    }


def _robustness(
    one: Stability, common: float, thresholds: Mapping[str, float], n_common: int
) -> Document:
    key = one.metric.usable_as or one.metric.key
    return _named(one.metric) | {
        "value": null(one.value),
        "n": one.n,
        "n_candidates": one.usable.n_candidates,
        "n_utility": one.usable.n_utility,
        "preliminary": null(one.preliminary),
        "common_value": null(common),
        "n_common": n_common,
        "threshold": null(thresholds.get(key, math.nan)),
        "threshold_of": key,
        "retain_shift": one.retain_shift,
        "per_model": dict(one.per_model),
        "filtered_out": dict(one.usable.out),
        "excluded": dict(one.excluded),
        "to_do": dict(one.to_do),
        "reason": one.reason,
    }


def aggregate_document(rows: Sequence[Aggregate], ranked: Sequence[Ranked]) -> Document:
    """`aggregate.json`."""
    return {
        "kind": "aggregate",
        "schema": SCHEMA,
        "models": [
            {
                "model": row.model,
                "method": row.method,
                "epoch": row.epoch,
                "uds": null(row.uds),
                **{name: null(getattr(row, name)) for name in SCORES},
                "reasons": dict(row.reasons),
            }
            for row in rows
        ],
        "ranking": [_ranked(one) for one in ranked],
    }


def _ranked(one: Ranked) -> Document:
    def best(row: Aggregate | None) -> Document | None:
        if row is None:
            return None
        kept = ("overall_without_uds", "overall", "uds")
        return {"model": row.model} | {name: null(getattr(row, name)) for name in kept}

    return {
        "method": one.method,
        "n_models": one.n_models,
        "best_without_uds": best(one.best_without_uds),
        "best_with_uds": best(one.best_with_uds),
        "uds_mean": null(one.uds_mean),
        "uds_low": null(one.uds_low),
        "uds_high": null(one.uds_high),
    }


def table_document(rows: Sequence[TableRow], sources: Sources) -> Document:
    """`meta_table.json`, what the report shows."""
    return {
        "kind": "meta_table",
        "schema": SCHEMA,
        "forms": dict(sources.forms),
        "filters": dict(sources.filters),
        "metrics": [cells(row) | {"notes": list(row.notes)} for row in rows],
    }


def _named(metric: Judged) -> Document:
    return {
        "metric": metric.key,
        "label": metric.label,
        "category": metric.category,
        "high_means": metric.high_means,
    }


def read_sources(paths: Sequence[Path]) -> Sources:
    """Faithfulness and robustness results; of two that say the same, the later one counts.

    Raises:
        InputError: a file is none of these.
    """
    faith: dict[str, Faith] = {}
    robust: dict[Attack, dict[str, Stable]] = {}
    forms: dict[Attack, str] = {}
    filters: dict[Attack, str] = {}
    for path in _documents(paths):
        found = _sources(path)
        faith |= found.faithfulness
        forms |= found.forms
        filters |= found.filters
        for attack, results in found.robustness.items():
            robust.setdefault(attack, {}).update(results)
    return Sources(faith, robust, forms, filters)


def _documents(paths: Sequence[Path]) -> list[Path]:
    """The files, and those in the folders."""
    files: list[Path] = []
    for path in paths:
        inside = [*path.glob("faithfulness.json"), *sorted(path.glob("robustness-*.json"))]
        if path.is_dir() and not inside:
            raise InputError(f"{path}: holds no faithfulness.json and no robustness-….json")
        files += inside if path.is_dir() else [path]
    return files


@dataclass(frozen=True)
class _Rows:
    """A document of `lensaudit meta`, of which its rows are read one by one."""

    metrics: tuple[dict[str, Any], ...]
    form: str | None = None
    filter: str | None = None


@dataclass(frozen=True)
class _FaithRow:
    """What is read of a metric in `faithfulness.json`."""

    auc: Share | None = None
    interval_95: tuple[Share | None, Share | None] | None = None
    n_knows: Whole | None = None
    n_forgot: Whole | None = None
    reason: str | None = None
    threshold: Number | None = None

    def faith(self) -> Faith:
        """As the table needs it."""
        area = Estimate.within(self.auc, self.interval_95)
        return Faith(_or_nan(self.auc), area, self.n_knows, self.n_forgot, self.reason)


@dataclass(frozen=True)
class _StableRow:
    """What is read of a metric in `robustness-….json`."""

    value: Share | None = None
    n: Whole | None = None
    n_candidates: Whole | None = None
    common_value: Share | None = None
    n_common: Whole | None = None
    reason: str | None = None

    def stable(self) -> Stable:
        """As the table needs it."""
        common = _or_nan(self.common_value), self.n_common
        return Stable(_or_nan(self.value), self.n, self.n_candidates, *common, self.reason)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _sources(path: Path) -> Sources:
    content = read_json(path)
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind == "faithfulness":
        rows = _rows(_FaithRow, checked(_Rows, content, path), path)
        return Sources({metric: row.faith() for metric, row in rows})
    if kind == "robustness":
        attack = cast(Attack, content.get("attack"))
        if attack not in ("quantize", "relearn"):
            raise InputError(f"{path}: attack is {attack!r}, wanted quantize or relearn")
        said = checked(_Rows, content, path)
        found = {metric: row.stable() for metric, row in _rows(_StableRow, said, path)}
        return Sources({}, {attack: found}, {attack: str(said.form)}, {attack: str(said.filter)})
    if isinstance(content, dict) and {"faithfulness", "robustness"} <= content.keys():
        return _published(content, path)
    raise InputError(
        f"{path}: wanted faithfulness.json, robustness-….json (`lensaudit meta`) or meta_eval.json"
    )


def _rows(kind: type[Record], said: _Rows, path: Path) -> Iterator[tuple[str, Record]]:
    for at, row in enumerate(said.metrics):
        metric = checked(_Metric, row, f"{path}: metrics.{at}").metric
        yield metric, checked(kind, row, f"{path}: {metric}")


@dataclass(frozen=True)
class _Metric:
    """The name that a row must have."""

    metric: str


def _published(content: Mapping[str, Any], path: Path) -> Sources:
    """`meta_eval.json`: four-digit Q and R, from which the aggregates follow."""

    def read(part: str, key: str) -> dict[str, float]:
        rows = content[part]
        if not isinstance(rows, dict) or not all(isinstance(r, dict) for r in rows.values()):
            raise InputError(f"{path}: {part} is not an object of metrics")
        return {name: _number(row.get(key), f"{path}: {name}") for name, row in rows.items()}

    attacks = {"quantize": "quantization", "relearn": "relearning"}
    found = {attack: read("robustness", key) for attack, key in attacks.items()}
    ours = tuple(one.get("uds") for one in found.values()) == UDS_ROBUSTNESS
    stable = {
        attack: {
            name: Stable(value, n=N_USABLE.get(name) if ours else None)
            for name, value in one.items()
        }
        for attack, one in found.items()
    }
    faith = {name: Faith(value) for name, value in read("faithfulness", "auc_roc").items()}
    published: dict[Attack, str] = {"quantize": "symmetric", "relearn": "symmetric"}
    return Sources(faith, cast(Any, stable), published, dict.fromkeys(published, "both"))


def _number(value: Any, where: str) -> float:
    """A share between 0 and 1, as all that is read here; NaN for null."""
    number = math.nan if value is None else checked_number(value, where)
    if not (math.isnan(number) or 0 <= number <= 1):
        raise InputError(f"{where} is {number:g}, wanted a number from 0 to 1")
    return number


def read_thresholds(path: Path) -> dict[str, float]:
    """The raw thresholds of a `faithfulness.json`; a metric without one is absent.

    Raises:
        InputError: another kind of file.
    """
    path = path / "faithfulness.json" if path.is_dir() else path
    content = read_json(path)
    if not isinstance(content, dict) or content.get("kind") != "faithfulness":
        raise InputError(f"{path}: wanted a faithfulness.json of `lensaudit meta faithfulness`")
    rows = _rows(_FaithRow, checked(_Rows, content, path), path)
    return {metric: row.threshold for metric, row in rows if row.threshold is not None}
