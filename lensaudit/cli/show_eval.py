"""What a person reads of an evaluation: one row per metric."""

import math

from rich.table import Table

from lensaudit.auditing.evaluate import EvaluationResult
from lensaudit.cli.terminal import emit, notice, show, written
from lensaudit.files import printable
from lensaudit.metrics.registry import Entry, Metric

WIDTH = 110
ARROWS = {"knows": "↑ knows", "forgot": "↑ forgot"}


def report(found: EvaluationResult, *, as_json: bool) -> None:
    """Print the table or the summary, and where the files are."""
    for note in found.notes:
        notice(note)
    if as_json:
        emit(dict(found.summary))
        return
    show(metric_table(found))
    if found.folder:
        written(found.folder)


def metric_table(found: EvaluationResult) -> Table:
    """One row per metric: value, what a high one means, interval, and what is missing."""
    table = Table(title="↑ says what a high value means")
    for name in ("metric", "value", "", "95 % interval", "scored"):
        justify = "right" if name in ("value", "scored") else "left"
        table.add_column(name, justify=justify, no_wrap=name == "metric")
    for name, entry in sorted(found.entries.items()):
        table.add_row(*_cells(found.metrics[name], entry))
    return table


def _cells(metric: Metric, entry: Entry) -> tuple[str, ...]:
    if not math.isfinite(entry.value):
        return metric.name, "–", "", f"[dim]{printable(entry.reason or 'no value')}[/]", ""
    interval = entry.interval
    shown = f"{interval.low:.4g} to {interval.high:.4g}" if interval else entry.interval_why or ""
    return metric.name, f"{entry.value:.4g}", ARROWS[metric.high_means], shown, _counts(entry)


def _counts(entry: Entry) -> str:
    """Rows scored of rows asked; both sides of a membership attack together."""
    entries = list(entry.parts.values()) or [entry]
    scored = sum(len(one.records) for one in entries)
    gaps = sum(len(one.unscored) for one in entries)
    return f"{scored}/{scored + gaps}" if scored else ""
