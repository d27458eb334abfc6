"""The files of meta-evaluation: written for people and the report, read for the one table.

    Robustness = HM(Q, R)          Overall = HM(AUC, Robustness)

Q and R of a row are means over the models that the row's own metric lets pass, so two rows speak
of different models; the columns named `common` are means over the models that all metrics have.

`docs/meta.md` says what each field means.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from lensaudit.errors import InputError
from lensaudit.files import make_folder, read_json, write_csv, write_json
from lensaudit.meta.aggregate import SCORES, Aggregate, Ranked, aggregated, ranking
from lensaudit.meta.catalogue import CATALOGUE, JudgedMetric
from lensaudit.meta.faithfulness import Faithfulness
from lensaudit.meta.reading import (
    N_USABLE,
    UDS_ROBUSTNESS,
    attack_aucs,
    checked_number,
    read_values,
    with_s_mia,
)
from lensaudit.meta.robustness import Stability, combined, on_common
from lensaudit.meta.settings import AggregateSettings, Attack, MetaTableSettings
from lensaudit.meta.values import Values
from lensaudit.models.registry import DEMO
from lensaudit.results.records import MANIFEST, MANIFESTS, claim, manifest
from lensaudit.results.schema import Number, Record, Share, Whole, checked
from lensaudit.scores.estimate import UNMEASURED, Estimate
from lensaudit.settings import plain

SCHEMA = 1
"""Raised when a field changes its meaning."""
COLUMNS = (
    "metric",
    "label",
    "category",
    "high_means",
    "faithfulness",
    "faithfulness_low",
    "faithfulness_high",
    "n_knows",
    "n_forgot",
    "quantization",
    "n_quantization",
    "relearning",
    "n_relearning",
    "robustness",
    "overall",
    "common_quantization",
    "common_relearning",
    "common_robustness",
    "n_common_quantization",
    "n_common_relearning",
    "notes",
)
Document = dict[str, Any]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Faith:
    """What the table needs of a faithfulness result."""

    auc: float
    interval: Estimate = UNMEASURED
    n_knows: int | None = None
    """None where the source does not say."""
    n_forgot: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Stable:
    """What the table needs of a robustness result under one attack."""

    value: float
    n: int | None = None
    n_candidates: int | None = None
    common: float = math.nan
    """Mean over the models that every metric of the run has."""
    n_common: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Sources:
    """Results by metric key, from one or several files."""

    faithfulness: Mapping[str, Faith] = field(default_factory=dict)
    robustness: Mapping[Attack, Mapping[str, Stable]] = field(default_factory=dict)
    forms: Mapping[Attack, str] = field(default_factory=dict)
    """The formula behind each attack's numbers."""
    filters: Mapping[Attack, str] = field(default_factory=dict)
    """Which filters picked the models of each."""


@dataclass(frozen=True)
class TableRow:
    """One metric; NaN where there is no number, and then a note says why."""

    metric: JudgedMetric
    faithfulness: Faith
    quantize: Stable
    relearn: Stable
    robustness: float
    overall: float
    common_robustness: float
    notes: tuple[str, ...]


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


def _named(metric: JudgedMetric) -> Document:
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


def run_aggregate(settings: AggregateSettings) -> dict[str, Any]:
    """Aggregates of every model and the ranking of methods; the files, where a folder is named.

    Raises:
        InputError: no model has results.
    """
    values = read_values(settings.results)
    anchors = {
        name: given or (f"{DEMO}{name}" if f"{DEMO}{name}" in values.models else name)
        for name, given in (("full", settings.full), ("retain", settings.retain))
    }
    values = with_s_mia(values, attack_aucs(values, anchors["retain"]))
    if not values.models:
        raise InputError(f"{', '.join(map(str, settings.results))}: no model has results")
    rows = aggregated(values, full=anchors["full"], fluency=not settings.no_fluency)
    document = aggregate_document(rows, ranking(rows))
    if settings.out is not None:
        sealing = _sealing(settings, settings.out, "aggregate")
        header = ["model", "method", "epoch", "uds", *SCORES, "reasons"]
        lines = [
            [
                *(_cell(getattr(one, name)) for name in header[:-1]),
                "; ".join(f"{key}: {why}" for key, why in one.reasons.items()),
            ]
            for one in rows
        ]
        write_csv(settings.out / "aggregate.csv", header, lines)
        write_json(settings.out / "aggregate.json", document)
        sealing()
    return document


def run_table(settings: MetaTableSettings) -> dict[str, Any]:
    """The table of tables; its files, where a folder is named."""
    sources = read_sources(settings.results)
    rows = table_rows(sources)
    document = table_document(rows, sources)
    if settings.out is not None:
        sealing = _sealing(settings, settings.out, "meta_table")
        write_csv(settings.out / "meta_table.csv", COLUMNS, csv_rows(rows))
        write_json(settings.out / "meta_table.json", document)
        sealing()
    return document


def _sealing(
    settings: AggregateSettings | MetaTableSettings, out: Path, name: str
) -> Callable[[], Path]:
    """Take the folder for the files of `name`; what is returned writes their manifest."""
    started = time.monotonic()
    files, record = (f"{name}.csv", f"{name}.json"), f"{MANIFESTS}/{name}/{MANIFEST}"
    claim(out, f"meta {name}", files, record)
    make_folder((out / record).parent)
    options = plain(settings, without=("out", "results"))
    inputs = {"results": [str(one) for one in settings.results]}

    def seal() -> Path:
        made = manifest(
            f"meta {name}", options=options, inputs=inputs, device="none", started=started
        )
        return made.write(out, files, record)

    return seal


def _cell(value: Any) -> Any:
    return "" if null(value) is None else value


def table_rows(sources: Sources) -> list[TableRow]:
    """Every metric of any source, the best Overall first, those without one last."""
    keys = dict.fromkeys(
        [
            *sources.faithfulness,
            *(key for results in sources.robustness.values() for key in results),
        ]
    )
    rows = [_row(key, sources) for key in keys]
    return sorted(rows, key=lambda row: _rank(row.overall))


def _rank(overall: float) -> float:
    return math.inf if math.isnan(overall) else -overall


def _row(key: str, sources: Sources) -> TableRow:
    faith = sources.faithfulness.get(key, Faith(math.nan, reason="no faithfulness result"))
    stable = {attack: _stable(key, attack, sources) for attack in ("quantize", "relearn")}
    robustness = combined(stable["quantize"].value, stable["relearn"].value)
    return TableRow(
        metric=CATALOGUE.get(key, JudgedMetric(key, key, "other", key, "knows")),
        faithfulness=faith,
        quantize=stable["quantize"],
        relearn=stable["relearn"],
        robustness=robustness,
        overall=combined(faith.auc, robustness),
        common_robustness=combined(stable["quantize"].common, stable["relearn"].common),
        notes=_notes(faith, stable),
    )


def _stable(key: str, attack: Attack, sources: Sources) -> Stable:
    missing = Stable(math.nan, reason=f"no {attack} result")
    return sources.robustness.get(attack, {}).get(key, missing)


def _notes(faith: Faith, stable: Mapping[str, Stable]) -> tuple[str, ...]:
    found = [("faithfulness", faith.reason), *((name, one.reason) for name, one in stable.items())]
    return tuple(f"{name}: {reason}" for name, reason in found if reason)


def cells(row: TableRow) -> dict[str, str | float | int | None]:
    """A row as plain values, under `COLUMNS`; null where there is no number."""
    faith, quantize, relearn = row.faithfulness, row.quantize, row.relearn
    values = (
        row.metric.key,
        row.metric.label,
        row.metric.category,
        row.metric.high_means,
        faith.auc,
        *(faith.interval.ends or (None, None)),
        faith.n_knows,
        faith.n_forgot,
        quantize.value,
        quantize.n,
        relearn.value,
        relearn.n,
        row.robustness,
        row.overall,
        quantize.common,
        relearn.common,
        row.common_robustness,
        quantize.n_common,
        relearn.n_common,
        "; ".join(row.notes),
    )
    return dict(zip(COLUMNS, map(null, values), strict=True))


def null(value: Value) -> Value | None:
    """NaN as None: JSON has none, and an empty CSV cell says it better."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def csv_rows(rows: Sequence[TableRow]) -> list[list[str | float | int]]:
    """Rows for `write_csv`, in the order of `COLUMNS`."""
    return [["" if v is None else v for v in cells(row).values()] for row in rows]
