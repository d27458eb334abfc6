"""The files of meta-evaluation: written for people and the report, read for the one table.

    Robustness = HM(Q, R)          Overall = HM(AUC, Robustness)

Q and R of a row are means over the models that the row's own metric lets pass, so two rows speak
of different models; the columns named `common` are means over the models that all metrics have.

`docs/meta.md` says what each field means.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from lensaudit.errors import InputError
from lensaudit.files import make_folder, read_json, write_csv, write_json
from lensaudit.meta.aggregate import SCORES, Aggregate, Ranked, aggregated, ranking
from lensaudit.meta.judging import Faithfulness, Stability, combined, on_common
from lensaudit.meta.reading import (
    CATALOGUE,
    N_USABLE,
    UDS_ROBUSTNESS,
    JudgedMetric,
    Values,
    attack_aucs,
    read_values,
    with_s_mia,
)
from lensaudit.meta.settings import AggregateSettings, Attack, MetaTableSettings
from lensaudit.models.registry import DEMO
from lensaudit.results.reading import Number, Record, Share, Whole, checked, checked_as, null
from lensaudit.results.records import MANIFEST, MANIFESTS, claim, manifest
from lensaudit.scores.estimate import Estimate
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
Lines = tuple[Sequence[str], list[list[Any]]]
"""Header and rows of a CSV file."""
ATTACKS: tuple[Attack, ...] = ("quantize", "relearn")


@dataclass(frozen=True)
class Faith:
    """What is read of a metric in `faithfulness.json`; None where the file does not say."""

    auc: Share | None = None
    interval_95: tuple[Share | None, Share | None] | None = None
    n_knows: Whole | None = None
    n_forgot: Whole | None = None
    reason: str | None = None
    threshold: Number | None = None

    @property
    def interval(self) -> Estimate:
        """AUC with its limits."""
        return Estimate.within(self.auc, self.interval_95)


@dataclass(frozen=True)
class Stable:
    """What is read of a metric in `robustness-….json`."""

    value: Share | None = None
    n: Whole | None = None
    n_candidates: Whole | None = None
    common_value: Share | None = None
    """Mean over the models that every metric of the run has."""
    n_common: Whole | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Sources:
    """Results by metric key, from one or several files; a later file counts."""

    faithfulness: dict[str, Faith] = field(default_factory=dict)
    robustness: dict[Attack, dict[str, Stable]] = field(default_factory=dict)
    forms: dict[Attack, str] = field(default_factory=dict)
    """The formula behind each attack's numbers."""
    filters: dict[Attack, str] = field(default_factory=dict)
    """Which filters picked the models of each."""

    def add(self, attack: Attack, rows: Mapping[str, Stable], form: str, by: str) -> None:
        """Add robustness to an attack."""
        self.robustness.setdefault(attack, {}).update(rows)
        self.forms[attack], self.filters[attack] = form, by


def faithfulness_document(
    results: Sequence[Faithfulness], knows: Sequence[str], forgot: Sequence[str], values: Values
) -> Document:
    """Content of `faithfulness.json`."""
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


def table_document(sources: Sources) -> Document:
    """`meta_table.json`, what the report shows."""
    return {
        "kind": "meta_table",
        "schema": SCHEMA,
        "forms": dict(sources.forms),
        "filters": dict(sources.filters),
        "metrics": table_rows(sources),
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
    found = Sources()
    for path in _documents(paths):
        _read_into(found, path)
    return found


def _documents(paths: Sequence[Path]) -> list[Path]:
    """Files named, and those of ours in the folders named."""
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
class _Metric:
    """Name that a row of a document must have."""

    metric: str


def _read_into(found: Sources, path: Path) -> None:
    content = read_json(path)
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind == "faithfulness":
        found.faithfulness.update(_rows(Faith, checked(_Rows, content, path), path))
    elif kind == "robustness":
        attack = cast(Attack, content.get("attack"))
        if attack not in ATTACKS:
            raise InputError(f"{path}: attack is {attack!r}, wanted quantize or relearn")
        said = checked(_Rows, content, path)
        found.add(attack, _rows(Stable, said, path), str(said.form), str(said.filter))
    elif isinstance(content, dict) and {"faithfulness", "robustness"} <= content.keys():
        _published_into(found, content, path)
    else:
        raise InputError(
            f"{path}: wanted faithfulness.json, robustness-….json (`lensaudit meta`) or "
            "meta_eval.json"
        )


def _rows(kind: type[Record], said: _Rows, path: Path) -> dict[str, Record]:
    found = {}
    for at, row in enumerate(said.metrics):
        metric = checked(_Metric, row, f"{path}: metrics.{at}").metric
        found[metric] = checked(kind, row, f"{path}: {metric}")
    return found


def _published_into(found: Sources, content: Mapping[str, Any], path: Path) -> None:
    """`meta_eval.json`: four-digit Q and R, from which the aggregates follow."""

    def read(part: str, key: str) -> dict[str, float | None]:
        rows = checked_as(dict[str, dict[str, Any]], content[part], f"{path}: {part}")
        values = {name: row.get(key) for name, row in rows.items()}
        return checked_as(dict[str, Share | None], values, path)

    published = {"quantize": "quantization", "relearn": "relearning"}
    values = {attack: read("robustness", key) for attack, key in published.items()}
    ours = tuple(one.get("uds") for one in values.values()) == UDS_ROBUSTNESS
    for attack in ATTACKS:
        rows = {
            name: Stable(value, n=N_USABLE.get(name) if ours else None)
            for name, value in values[attack].items()
        }
        found.add(attack, rows, "symmetric", "both")
    areas = read("faithfulness", "auc_roc")
    found.faithfulness.update({name: Faith(value) for name, value in areas.items()})


def read_thresholds(path: Path) -> dict[str, float]:
    """The raw thresholds of a `faithfulness.json`; a metric without one is absent.

    Raises:
        InputError: another kind of file.
    """
    path = path / "faithfulness.json" if path.is_dir() else path
    content = read_json(path)
    if not isinstance(content, dict) or content.get("kind") != "faithfulness":
        raise InputError(f"{path}: wanted a faithfulness.json of `lensaudit meta faithfulness`")
    rows = _rows(Faith, checked(_Rows, content, path), path)
    return {key: row.threshold for key, row in rows.items() if row.threshold is not None}


def run_aggregate(settings: AggregateSettings) -> dict[str, Any]:
    """Aggregates of every model and the ranking of methods; the files, where a folder is named.

    Raises:
        InputError: no model has results.
    """
    started, values = time.monotonic(), read_values(settings.results)
    anchors = {
        name: given or (f"{DEMO}{name}" if f"{DEMO}{name}" in values.models else name)
        for name, given in (("full", settings.full), ("retain", settings.retain))
    }
    values = with_s_mia(values, attack_aucs(values, anchors["retain"]))
    if not values.models:
        raise InputError(f"{', '.join(map(str, settings.results))}: no model has results")
    rows = aggregated(values, full=anchors["full"], fluency=not settings.no_fluency)
    document = {
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
        "ranking": [_ranked(one) for one in ranking(rows)],
    }
    header = ["model", "method", "epoch", "uds", *SCORES, "reasons"]
    whys = ["; ".join(f"{key}: {why}" for key, why in one.reasons.items()) for one in rows]
    lines = [
        [*(null(getattr(one, name)) for name in header[:-1]), why]
        for one, why in zip(rows, whys, strict=True)
    ]
    _kept(settings, "aggregate", document, (header, lines), started)
    return document


def run_table(settings: MetaTableSettings) -> dict[str, Any]:
    """The table of tables; its files, where a folder is named."""
    started, sources = time.monotonic(), read_sources(settings.results)
    document = table_document(sources)
    _kept(settings, "meta_table", document, (COLUMNS, csv_rows(document["metrics"])), started)
    return document


def _kept(
    settings: AggregateSettings | MetaTableSettings,
    name: str,
    document: Document,
    table: Lines,
    started: float,
) -> None:
    """The files of `name`, where a folder is named."""
    if settings.out is not None:
        options = plain(settings, without=("out", "results"))
        inputs = {"results": [str(one) for one in settings.results]}
        write_document(
            settings.out, name, document, table, options=options, inputs=inputs, started=started
        )


def write_document(
    out: Path,
    name: str,
    document: Mapping[str, Any],
    table: Lines,
    *,
    options: Mapping[str, Any],
    inputs: Mapping[str, Any],
    started: float,
    device: str = "none",
) -> Path:
    """Write a document and its table into a folder, and a manifest of both; where the document is.

    Raises:
        InputError: the folder holds files of this name that are another run's.
    """
    files, record = (f"{name}.csv", f"{name}.json"), f"{MANIFESTS}/{name}/{MANIFEST}"
    claim(out, f"meta {name}", files, record)
    make_folder((out / record).parent)
    header, lines = table
    write_csv(out / files[0], header, [["" if v is None else v for v in line] for line in lines])
    path = write_json(out / files[1], document)
    made = manifest(f"meta {name}", options=options, inputs=inputs, device=device, started=started)
    made.write(out, files, record)
    return path


def faithfulness_table(document: Document) -> Lines:
    """`faithfulness.csv`."""
    header = (
        *("metric", "label", "category", "high_means", "auc", "low", "high", "n_knows"),
        *("n_forgot", "knows_mean", "forgot_mean", "threshold", "accuracy"),
        *("excluded", "to_do", "reason"),
    )
    lines = []
    for row in document["metrics"]:
        low, high = row["interval_95"] or (None, None)
        own = {"low": low, "high": high, "accuracy": row["threshold_accuracy"]}
        names = {key: " ".join(row[key]) for key in ("excluded", "to_do")}
        lines.append([{**row, **own, **names}[name] for name in header])
    return header, lines


def robustness_table(document: Document) -> Lines:
    """`robustness-quantize.csv` or `robustness-relearn.csv`."""
    header = (
        *("metric", "label", "category", "value", "n", "n_utility", "n_candidates"),
        *("common_value", "n_common", "threshold", "retain_shift", "reason"),
    )
    return header, [[row[name] for name in header] for row in document["metrics"]]


def table_rows(sources: Sources) -> list[Document]:
    """Every metric of any source, the best Overall first, those without one last.

    A row has `COLUMNS`; null where there is no number, and then a note says why.
    """
    keys = dict.fromkeys(
        [
            *sources.faithfulness,
            *(key for results in sources.robustness.values() for key in results),
        ]
    )
    rows = [_row(key, sources) for key in keys]
    return sorted(rows, key=lambda row: math.inf if row["overall"] is None else -row["overall"])


def _row(key: str, sources: Sources) -> Document:
    metric = CATALOGUE.get(key, JudgedMetric(key, key, "other", key, "knows"))
    faith = sources.faithfulness.get(key, Faith(reason="no faithfulness result"))
    quantize, relearn = (
        sources.robustness.get(attack, {}).get(key, Stable(reason=f"no {attack} result"))
        for attack in ATTACKS
    )
    robustness = combined(quantize.value, relearn.value)
    found = {"faithfulness": faith, "quantize": quantize, "relearn": relearn}
    values = (
        *_named(metric).values(),
        faith.auc,
        *(faith.interval.ends or (None, None)),
        faith.n_knows,
        faith.n_forgot,
        quantize.value,
        quantize.n,
        relearn.value,
        relearn.n,
        robustness,
        combined(faith.auc, robustness),
        quantize.common_value,
        relearn.common_value,
        combined(quantize.common_value, relearn.common_value),
        quantize.n_common,
        relearn.n_common,
        [f"{name}: {one.reason}" for name, one in found.items() if one.reason],
    )
    return dict(zip(COLUMNS, map(null, values), strict=True))


def csv_rows(rows: Sequence[Document]) -> list[list[Any]]:
    """Rows of `meta_table.csv`, in the order of `COLUMNS`."""
    return [list((row | {"notes": "; ".join(row["notes"])}).values()) for row in rows]
