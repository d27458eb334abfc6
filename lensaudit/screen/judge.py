"""What a judge found: a table of metrics, and what was asked for it."""

from collections.abc import Iterator

from rich.table import Table

from lensaudit.judge.findings import Findings, columns
from lensaudit.screen.cells import brief, interval
from lensaudit.screen.tables import Part, row, table


def findings_of(findings: Findings) -> Iterator[Part]:
    """Means with intervals, and the account."""
    yield _scores(findings)
    yield _account(findings)


def _scores(findings: Findings) -> Table:
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


def _account(findings: Findings) -> str:
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
