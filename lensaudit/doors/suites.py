"""Metrics and suites from outside the package: brought by name, computed where they are named."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lensaudit.data.suites import Suite
from lensaudit.metrics.registry import MetricFunction, metric
from lensaudit.own_code import enter


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
