"""Metrics of an evaluation or of a judge: a row each, and what has no value."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lensaudit.metrics.registry import metric_of
from lensaudit.screen.cells import brief, interval, no_interval
from lensaudit.screen.membership import betrayals
from lensaudit.screen.tables import Part, table

if TYPE_CHECKING:
    from lensaudit.kinds.judge import JudgeRecord
    from lensaudit.results.kinds.eval import EvaluationResult, MetricResult

ARROWS = {"knows": "↑ knows", "forgot": "↑ forgot"}


def values(found: "EvaluationResult") -> Iterator[Part]:
    """The table, and why metrics have no value."""
    made = table(
        "↑ says what a high value means",
        ("metric", "value", "", "95 % interval", "scored"),
        (
            (
                name,
                f"{entry.value:.4g}",
                ARROWS[entry.high_means or metric_of(name).high_means],
                interval(entry.ends, entry.why or "", form=".4g"),
                _counts(entry),
            )
            for name, entry in sorted(found.entries.items())
            if entry.value is not None
        ),
        left=("metric", "", "95 % interval"),
    )
    made.columns[0].no_wrap = True
    yield made
    yield from betrayals(found)
    for reason, names in lacking(found).items():
        yield f"no value of {', '.join(names)}: {reason}"


def lacking(found: "EvaluationResult") -> dict[str, list[str]]:
    """Reason -> the metrics that have no value for it, whatever stands between them and it."""
    reasons: dict[str, list[str]] = {}
    for name, entry in sorted(found.entries.items()):
        if entry.value is None:
            reasons.setdefault(_root(found, name), []).append(name)
    return reasons


def _root(found: "EvaluationResult", name: str) -> str:
    """Why a metric has no value: the reason of what it needs, where that is what is missing."""
    for need in metric_of(name).local_needs:
        other = found.entries.get(need)
        if other is not None and other.value is None and not other.records:
            return _root(found, need)
    return found.entries[name].reason or "no value"


def _counts(entry: "MetricResult") -> str:
    """Rows scored of rows asked; both sides of a membership attack together."""
    n = entry.n_scored
    return f"{n}/{n + entry.n_unscored}" if n else ""


def of_judged(found: "JudgeRecord") -> Iterator[Part]:
    """Means with intervals, and the account."""
    scale = found.judge["scale"]
    of = f"{scale[0]} to {scale[1]}" if scale else "by own prompts"
    yield table(
        f"{found.judge['grader']}, {of}",
        ("context", "metric", "mean", "95 % interval", "median", "scored"),
        (
            (
                context,
                metric,
                brief(one.mean),
                interval(one.ci95, no_interval(vars(one)), form=".4g"),
                brief(one.median),
                f"{one.n}/{one.n + one.n_invalid}",
            )
            for context, metrics in found.contexts.items()
            for metric, one in metrics.items()
        ),
        left=("context", "metric", "95 % interval"),
    )
    yield _account(found)


def _account(found: "JudgeRecord") -> str:
    """What was asked, what it took, what has no score."""
    parts = [f"{n} {status}" for status, n in found.status.items() if status != "ok"]
    gaps = f"; without a score: {', '.join(parts)}" if parts else ""
    if found.n_cut:
        gaps += f"; {found.n_cut} with a text of which the judge saw the beginning alone"
    if (spent := found.spent) is None or found.calls is None:
        return f"nobody was asked{gaps}"
    cost = f", cost {spent['cost']:.4g}" if spent["cost"] else ""
    failed = f"{spent['n_failed']} of them failed, " if spent["n_failed"] else ""
    return (
        f"{spent['calls']} calls ({failed}{found.calls['cached']} answers from the cache), "
        f"{spent['tokens_in']} tokens in, {spent['tokens_out']} out{cost}{gaps}"
    )
