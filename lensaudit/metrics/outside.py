"""Metrics and suites from outside the package: brought by name, computed where they are named."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lensaudit.data.suites import Suite
from lensaudit.metrics.options import parsed, with_rest
from lensaudit.metrics.registry import (
    RETAIN,
    MetricFunction,
    all_metrics,
    metric,
)
from lensaudit.own_code import code_of, enter, is_outside, load_entries


@dataclass(frozen=True)
class OutsideSuite:
    """A suite from outside: whose questions, and what is asked of them."""

    name: str
    of: Suite
    """The suite whose splits its metrics read."""
    fn: MetricFunction
    asked: Mapping[str, Any]
    """Fields of `EvaluateSettings`: data, forget_split …"""


SUITES: dict[str, OutsideSuite] = {}
"""Those that were brought, by name."""


def suite(
    name: str,
    *,
    metrics: Iterable[str],
    high_means: Literal["knows", "forgot"],
    source: str,
    of: Suite = "tofu",
    **asked: Any,
) -> Callable[[MetricFunction], MetricFunction]:
    """Register a suite: which metrics, on which data, and the function that sums them up.

    The function is a metric of the suite's name that needs the others; they may have options.

    Args:
        name: of the suite.
        metrics: that it computes, also with options: `mia_min_k:k=0.2`.
        high_means: of the number that it reports.
        source: where it is defined.
        of: the suite whose questions are asked.
        **asked: settings of `eval` that nobody says otherwise: data, forget_split …

    Raises:
        ValueError: the name is taken, or it is none.
    """
    reads: Any = {of: ()}

    def register(fn: MetricFunction) -> MetricFunction:
        metric(name, high_means=high_means, source=source, needs=metrics, **reads)(fn)
        return enter(SUITES, "suite", OutsideSuite(name, of, fn, asked))

    return register


def bring(names: Iterable[str]) -> dict[str, str]:
    """Import what installed packages bring of these metrics, and of what they need.

    Returns:
        Metric from outside -> content hash of its code.

    Raises:
        InputError: an entry cannot be imported.
    """
    todo, code, seen = [*with_rest(names)], dict[str, str](), set[str]()
    while todo:
        name = parsed(todo.pop().removeprefix(RETAIN))[0]
        if name not in all_metrics():
            load_entries("metrics", [name])
        one = all_metrics().get(name)
        if one is not None and name not in seen:
            seen.add(name)
            todo += one.needs
            code |= {name: code_of(one.fn)} if is_outside(one.fn) else {}
    return code
