"""Metrics of an evaluation or of a judge: a row each, and what has no value."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from lensaudit.metrics.registry import all_metrics
from lensaudit.screen.cells import brief, interval
from lensaudit.screen.tables import Part, row, table

if TYPE_CHECKING:
    from lensaudit.auditing.result import EvaluationResult
    from lensaudit.judge.findings import Findings
    from lensaudit.metrics.registry import Metric, MetricResult

ARROWS = {"knows": "↑ knows", "forgot": "↑ forgot"}


def values(found: "EvaluationResult") -> Iterator[Part]:
    """The table, and why metrics have no value."""
    yield metric_table(found)
    for reason, names in lacking(found).items():
        yield f"no value of {', '.join(names)}: {reason}"


def metric_table(found: "EvaluationResult") -> Table:
    """One row per metric that has a value: what a high one means, interval, rows scored."""
    table = Table(title="↑ says what a high value means")
    for name in ("metric", "value", "", "95 % interval", "scored"):
        justify = "right" if name in ("value", "scored") else "left"
        table.add_column(name, justify=justify, no_wrap=name == "metric")
    for name, entry in sorted(found.entries.items()):
        if entry.value is not None:
            table.add_row(*_cells(all_metrics()[name], entry))
    return table


def lacking(found: "EvaluationResult") -> dict[str, list[str]]:
    """Reason -> the metrics that have no value for it, whatever stands between them and it."""
    reasons: dict[str, list[str]] = {}
    for name, entry in sorted(found.entries.items()):
        if entry.value is None:
            reasons.setdefault(_root(found, name), []).append(name)
    return reasons


def _root(found: "EvaluationResult", name: str) -> str:
    """Why a metric has no value: the reason of what it needs, where that is what is missing."""
    for need in all_metrics()[name].local_needs:
        other = found.entries.get(need)
        if other is not None and other.value is None and not other.records:
            return _root(found, need)
    return found.entries[name].reason or "no value"


def _cells(metric: "Metric", entry: "MetricResult") -> tuple[str, ...]:
    ends = entry.ends
    shown = f"{ends[0]:.4g} to {ends[1]:.4g}" if ends else entry.why or ""
    return metric.name, f"{entry.value:.4g}", ARROWS[metric.high_means], shown, _counts(entry)


def _counts(entry: "MetricResult") -> str:
    """Rows scored of rows asked; both sides of a membership attack together."""
    entries = list(entry.parts.values()) or [entry]
    scored = sum(len(one.records) for one in entries)
    gaps = sum(len(one.unscored) for one in entries)
    return f"{scored}/{scored + gaps}" if scored else ""


def findings_of(findings: "Findings") -> Iterator[Part]:
    """Means with intervals, and the account."""
    yield _scores(findings)
    yield _account(findings)


def _scores(findings: "Findings") -> Table:
    from lensaudit.judge.findings import columns

    low, high = findings.grader.identity["scale"]
    made = table(
        f"{findings.grader.identity['grader']}, {low} to {high}",
        ("context", "metric", "mean", "95 % interval", "median", "scored"),
        left=("context", "metric", "95 % interval"),
    )
    for context, metrics in columns(findings).items():
        for metric, column in metrics.items():
            row(
                made,
                context,
                metric,
                brief(column.mean),
                interval(column.ci95, column.ci95_why or "–", form=".4g"),
                brief(column.median),
                f"{column.n}/{column.n + column.n_invalid}",
            )
    return made


def _account(findings: "Findings") -> str:
    """What was asked, what it took, what has no score."""
    parts = [f"{n} {status}" for status, n in findings.status.items() if status != "ok"]
    gaps = f"; without a score: {', '.join(parts)}" if parts else ""
    if findings.n_cut:
        gaps += f"; {findings.n_cut} with a text of which the judge saw the beginning alone"
    if findings.client is None:
        return f"nobody was asked{gaps}"
    spent = findings.client.budget.spent
    cost = f", cost {spent.cost:.4g}" if spent.cost else ""
    failed = f"{spent.n_failed} of them failed, " if spent.n_failed else ""
    return (
        f"{spent.calls} calls ({failed}{findings.client.n_cached} answers from the cache), "
        f"{spent.tokens_in} tokens in, {spent.tokens_out} out{cost}{gaps}"
    )
