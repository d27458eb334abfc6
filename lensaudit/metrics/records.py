"""What do metrics do with the records of rows: join two of them, average one, tell the gaps?"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lensaudit.groups import Group, assumption, own_group, unit_of
from lensaudit.metrics.registry import (
    GroupsBySide,
    Metric,
    MetricContext,
    MetricResult,
    Record,
    RowValue,
    unscored,
)
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_mean

NO_CONTENT = "no content token: the answer is empty or a single token"


def one_or_list(values: Sequence[Any], listed: bool) -> Any:
    """A record's value: a list where the field holds lists, else the only value."""
    return list(values) if listed else values[0]


def alternatives(value: Any) -> list[Any]:
    """A record's value as a list.

    >>> alternatives(0.5), alternatives([0.5, 0.7])
    ([0.5], [0.5, 0.7])
    """
    return list(value) if isinstance(value, list | tuple) else [value]


def mean_of(field: str) -> RowValue:
    """A row's value is this field, averaged over its alternatives."""
    return lambda record: float(np.mean(alternatives(record[field])))


def across(
    context: MetricContext, join: Callable[[Mapping[str, Any], Mapping[str, Any]], Record]
) -> MetricResult:
    """A record for every row that both needs of a metric score; the others stay unscored."""
    first, second = context.done.values()
    records = {
        idx: join(record, second.records[idx])
        for idx, record in first.records.items()
        if idx in second.records
    }
    gaps = dict(first.unscored) | dict(second.unscored)
    for idx in first.records.keys() ^ second.records.keys():
        gaps.setdefault(idx, "scored in only one of the two metrics this one joins")
    return MetricResult(records=records, unscored=gaps)


def rows_inside(context: MetricContext, field: str) -> MetricResult:
    """The rows of a patched pass, the score of each under `field`."""
    found = context.passes.measured(context.reads[0])
    records = {idx: {field: value} for idx, (value,) in found.rows.items()}
    return MetricResult(records=records, unscored=found.unscored, details=found.details)


def number_inside(context: MetricContext, none: str) -> MetricResult:
    """A patched pass's one number for the whole set; `none`: why there is none, else unsaid."""
    found = dict(context.passes.measured(context.reads[0]).details)
    value, ends = found.pop("values")[context.name]
    if value is None:
        return unscored(found.get("why", {}).get(context.name) or none)
    if "layers" in found:
        found["per_layer"] = found.pop("layers")[context.name]
    low, high = ends or (None, None)
    return MetricResult(value, low, high, details=found)


def finished(metric: Metric, entry: MetricResult, groups: GroupsBySide = ()) -> MetricResult:
    """The entry with what follows from its rows: value, interval, and a reason for no value.

    A row whose record holds NaN or an infinity becomes unscored, it is not averaged and not
    dropped in silence.
    """
    if metric.combine is not None and entry.parts:
        return metric.combine(entry, groups)
    if metric.row_value is None:
        return entry
    gaps, per_example = dict(entry.unscored), {}
    for idx, record in entry.records.items():
        if not _finite(record):
            gaps[idx] = "the model's score is not finite"
            continue
        try:
            per_example[idx] = metric.row_value(record)
        except KeyError as missing:  # a row of somebody else's log
            gaps[idx] = f"its record has no {missing.args[0]}"
    records = {idx: entry.records[idx] for idx in per_example}
    entry = replace(entry, records=records, unscored=gaps, per_example=per_example)
    if not per_example:
        return replace(entry, value=None, why=entry.reason or no_rows(gaps))
    values, authors = list(per_example.values()), authors_of(per_example, groups, 0)
    # a row of somebody else's log may hold anything
    bounds = (0.0, 1.0) if min(values) >= -1e-6 and max(values) <= 1 + 1e-6 else None
    limits = clustered_mean(values, authors, bounds=bounds, unit=unit_of(authors))
    return with_limits(replace(entry, value=float(np.mean(values))), limits, authors)


def authors_of(rows: Iterable[int], groups: GroupsBySide, side: int) -> list[Group]:
    """The author of each row of a side; a row whose author nobody knows is its own."""
    known = groups[side] if side < len(groups) else {}
    return [known.get(idx, own_group(idx)) for idx in rows]


def with_limits(entry: MetricResult, limits: Estimate, authors: Sequence[Group]) -> MetricResult:
    """The entry with its interval, or why it has none, and what the interval assumes."""
    return replace(entry, **vars(limits.around(entry.value)), assumes=assumption(authors))


def no_rows(unscored: Mapping[int, str]) -> str:
    """Why an entry without a scored row has no value."""
    if not unscored:
        return "no row to score"
    first = min(unscored)
    return f"none of {len(unscored)} rows could be scored (row {first}: {unscored[first]})"


def no_retain(context: MetricContext, name: str) -> str:
    """Why a metric that compares with the retain model has no value."""
    lacking = "no retain reference; name one with --retain-log or --retain"
    return f"the retain log has no {name}" if context.retain else lacking


def _finite(record: Record) -> bool:
    numbers = [one for value in record.values() for one in alternatives(value)]
    return all(math.isfinite(one) for one in numbers if isinstance(one, int | float))
