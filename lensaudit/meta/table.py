"""One row per metric: faithfulness, quantisation, relearning, robustness, overall.

    Robustness = HM(Q, R)          Overall = HM(AUC, Robustness)

Q and R of a row are means over the models that the row's own metric lets pass, so two rows speak
of different models; the columns named `common` are means over the models that all metrics have.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from lensaudit.meta.catalogue import CATALOGUE, Judged
from lensaudit.meta.robustness import Attack, combined
from lensaudit.scores.estimate import UNMEASURED, Estimate

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

    metric: Judged
    faithfulness: Faith
    quantize: Stable
    relearn: Stable
    robustness: float
    overall: float
    common_robustness: float
    notes: tuple[str, ...]


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
        metric=CATALOGUE.get(key, Judged(key, key, "other", key, "knows")),
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
