"""Are the rows of a log numbers? Wrong ones are refused, and what has a gap is unscored."""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lensaudit.errors import InputError
from lensaudit.metrics.registry import Record, all_metrics, alternatives
from lensaudit.results.kinds.eval import MetricResult

_NUMBERS = re.compile(r"prob|avg_loss|score|rouge\w+|uds|udr|(retain_)?leak_\d+")
"""Fields of a record that a metric here averages, ranks or compares."""
_TEXTS = ("input", "ground_truth", "generation")


def with_sound_rows(name: str, entry: MetricResult, where: object) -> MetricResult:
    """The entry of a log, its rows with a gap unscored; that of no metric here as it is.

    Args:
        name: of the metric.
        entry: as it was read.
        where: the file.

    Raises:
        InputError: a field holds something else than numbers or texts; names metric and row.
    """
    if name.partition(":")[0] not in all_metrics():
        return entry
    parts = {
        side: _sound(one, f"{where}: {name}.{side}", ("score",))
        for side, one in entry.parts.items()
    }
    found = replace(_sound(entry, f"{where}: {name}"), parts=parts)
    return replace(found, n=found.n_scored)


def _sound(entry: MetricResult, where: str, wanted: Iterable[str] = ()) -> MetricResult:
    gaps = dict[int, str]()
    for idx, record in entry.records.items():
        _check(record, f"{where} row {idx}")
        if why := _gap(record, wanted):
            gaps[idx] = why
    kept = {idx: one for idx, one in entry.records.items() if idx not in gaps}
    return replace(entry, records=kept, unscored={**entry.unscored, **gaps})


def _check(record: Record, where: str) -> None:
    for field, value in record.items():
        is_number = _NUMBERS.fullmatch(field) is not None
        kinds: Any = (int, float) if is_number else str
        if not is_number and field not in _TEXTS:
            continue
        # what a ratio is made of; a row has one
        every = [value] if field == "score" else alternatives(value)
        for one in every:
            if one is not None and (not isinstance(one, kinds) or isinstance(one, bool)):
                wanted = "a number" if is_number else "a text"
                raise InputError(f"{where}: {field}: found {one!r:.40}, wanted {wanted}")


def _gap(record: Record, wanted: Iterable[str]) -> str | None:
    """Why a row has no score; None where all its numbers are there, and the wanted ones."""
    if lacking := [field for field in wanted if field not in record]:
        return f"its record has no {lacking[0]}"
    known = {field: alternatives(value) for field, value in record.items()}
    if any(one is None for values in known.values() for one in values):
        return "null in the log"
    numbers = {field: one for field, one in known.items() if _NUMBERS.fullmatch(field)}
    if empty := [field for field, one in numbers.items() if not one]:
        return f"its record has no number in {empty[0]}"
    finite = all(math.isfinite(one) for values in numbers.values() for one in values)
    return None if finite else "not finite in the log"
