"""What a metric from outside gives, held to what a result is.

A metric of somebody else's is called as one of ours. What it raises, and what is no result, is the
reason why it has no value, and the others have theirs. It may return the document's
`{"agg_value": …, "value_by_index": {idx: {…}}}`, or a number, in the place of a `MetricResult`. It
is computed where it is named.
"""

import functools
import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from numbers import Real
from typing import Any, get_args

from lensaudit.errors import InputError
from lensaudit.metrics.registry import Kind, Metric, MetricContext, finished, unscored
from lensaudit.own_code import calling_own
from lensaudit.results.kinds.eval import MetricResult
from lensaudit.results.reading import checked, document


def sound(one: Metric) -> Metric:
    """A metric from outside that gives a result, whatever its function does.

    Raises:
        ValueError: it reads by a kind of pass that there is none of.
    """
    kinds = [read.kind for reads in one.reads.values() for read in reads]
    if unknown := [kind for kind in kinds if kind not in get_args(Kind)]:
        raise ValueError(f"metric {one.name}: no pass {unknown[0]!r}")

    @functools.wraps(one.fn)
    def called(context: MetricContext) -> MetricResult:
        try:
            with calling_own(f"metric {one.name} raised"):
                # it may edit what it is handed: ours are read again, and written
                done, theirs = deepcopy((context.done, context.retain))
                return _checked(one, one.fn(replace(context, done=done, retain=theirs)))
        except InputError as error:
            return unscored(str(error), "work")

    return replace(one, fn=called, on_request=True)


def _checked(one: Metric, found: Any) -> MetricResult:
    """What a metric gave, as a result.

    Raises:
        InputError: it is none, or its value is no finite number.
    """
    where = f"metric {one.name} gave"
    if isinstance(found, Real) and not isinstance(found, bool):
        found = MetricResult(float(found))
    if not isinstance(found, MetricResult | Mapping):
        wanted = "a MetricResult, or agg_value and value_by_index"
        raise InputError(f"{where} {found!r:.60}, wanted {wanted}")
    said = found["agg_value"] if isinstance(found, Mapping) and "agg_value" in found else None
    value = found.value if isinstance(found, MetricResult) else said
    if isinstance(value, Real) and not math.isfinite(value):
        raise InputError(f"{where} {value}, wanted a finite number, or None and why")
    read = checked(MetricResult, found if isinstance(found, Mapping) else document(found), where)
    entry = found if isinstance(found, MetricResult) else read
    last = finished(one, entry)  # its rows must be rows
    if last.value is None and last.why is None:
        raise InputError(f"{where} no value, and no reason for that")
    return entry if last.ends or last.why else replace(entry, why="the metric gives no interval")
