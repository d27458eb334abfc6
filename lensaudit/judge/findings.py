"""What a judge found in a log: rows, summaries and files."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lensaudit.errors import PartialError, WorkError
from lensaudit.files import write_csv, write_json, write_jsonl
from lensaudit.groups import unit_of
from lensaudit.judge.calls import Found, Pending, Reply
from lensaudit.judge.client import JudgeClient
from lensaudit.judge.items import GradedItem, Item, Items
from lensaudit.scores.estimate import NO_ROWS
from lensaudit.scores.intervals import clustered_mean

FILES = ("scores.csv", "summary.csv", "results.jsonl", "raw.jsonl", "summary.json")
UNFINISHED = frozenset({"budget", "api_error", "no_logprobs"})
"""Statuses that another run can change; the others are what the judge says."""


@runtime_checkable
class Grader(Protocol):
    """A way to judge items: what to ask, and what the answers mean."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What scores of two runs must share to be compared, as plain JSON values."""
        ...

    @property
    def limit(self) -> int | None:
        """Tokens that a reply may have; None where nobody is asked."""
        ...

    def metrics(self, context: str) -> tuple[str, ...]:
        """The names of a context's scores."""
        ...

    def pending(self, items: Sequence[Item]) -> Pending:
        """Calls that are still to be made."""
        ...

    def graded(self, items: Sequence[Item], found: Found) -> list[GradedItem]:
        """Graded rows, one per item."""
        ...


@dataclass(frozen=True)
class Findings:
    """Everything one run of a judge found."""

    items: Items
    grader: Grader
    rows: tuple[GradedItem, ...]
    """Every row of the log, context by context; gaps after the rest."""
    found: Found
    client: JudgeClient | None = None
    """Who was asked, with the account of it; None: nobody."""
    folder: Path = Path()
    """Where they are written."""

    @property
    def status(self) -> dict[str, int]:
        """How many rows have which status."""
        return dict(sorted(Counter(row.status for row in self.rows).items()))

    @property
    def n_scored(self) -> int:
        """Number of rows with scores."""
        return self.status.get("ok", 0)

    @property
    def n_cut(self) -> int:
        """Rows with a text of which the judge saw the beginning alone."""
        return sum(row.cut for row in self.rows)


@dataclass(frozen=True)
class Column:
    """One metric of one context, over the rows that have it."""

    mean: float | None
    median: float | None
    std: float | None
    """Of the sample, n - 1; None below two rows."""
    min: float | None
    max: float | None
    n: int
    n_invalid: int
    ci95: tuple[float, float] | None
    """By authors where the log names them, else by rows."""
    ci95_why: str | None


def findings_of(grader: Grader, items: Items, found: Found, client: JudgeClient | None) -> Findings:
    """The findings when all outcomes are known."""
    rows = grader.graded(items.items, found)
    rows += [GradedItem(gap, {}, "unscored", gap.gap) for gap in items.gaps]
    order = {context: at for at, context in enumerate(items.contexts)}
    rows.sort(key=lambda row: order[row.context])
    return Findings(items, grader, tuple(rows), found, client)


def columns(findings: Findings) -> dict[str, dict[str, Column]]:
    """Context -> metric -> summary."""
    out: dict[str, dict[str, Column]] = {}
    for context in findings.items.contexts:
        rows = [row for row in findings.rows if row.context == context]
        scale = tuple(map(float, findings.grader.identity["scale"]))
        out[context] = {
            name: _column(rows, name, scale) for name in findings.grader.metrics(context)
        }
    return out


def _column(rows: list[GradedItem], name: str, scale: tuple[float, ...]) -> Column:
    scored = [row for row in rows if name in row.scores]
    values = [row.scores[name] for row in scored]
    if not values:
        return Column(None, None, None, None, None, 0, len(rows), None, NO_ROWS.why)
    groups = [row.item.group for row in scored]
    limits = clustered_mean(values, groups, bounds=(scale[0], scale[1]), unit=unit_of(groups))
    return Column(
        mean=math.fsum(values) / len(values),
        median=statistics.median(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
        min=min(values),
        max=max(values),
        n=len(values),
        n_invalid=len(rows) - len(values),
        ci95=limits.ends,
        ci95_why=limits.why,
    )


def summary_of(findings: Findings, calibration: Any = None) -> dict[str, Any]:
    """The content of `summary.json`."""
    tables = columns(findings)
    spent = findings.client.budget.spent if findings.client else None
    calls = None
    if findings.client and spent:
        cached = findings.client.n_cached
        calls = {"asked": spent.calls, "cached": cached, "failed": spent.n_failed}
    return {
        "judge": dict(findings.grader.identity),
        "calibration": calibration,
        "log": str(findings.items.source),
        "log_digest": findings.items.digest,
        "n": len(findings.rows),
        "n_scored": findings.n_scored,
        "n_cut": findings.n_cut,
        "status": findings.status,
        "contexts": {
            context: {name: asdict(column) for name, column in table.items()}
            for context, table in tables.items()
        },
        "calls": calls,
        "spent": asdict(spent) if spent else None,
    }


def deposit(folder: Path, findings: Findings, calibration: Any = None) -> None:
    """Write scores.csv, summary.csv, results.jsonl, raw.jsonl and, last, summary.json."""
    names = list(
        dict.fromkeys(n for c in findings.items.contexts for n in findings.grader.metrics(c))
    )
    write_csv(
        folder / "scores.csv",
        ["context_type", "id", *names, "status", "cut"],
        (
            [
                *(row.context, row.idx),
                *(row.scores.get(name, "") for name in names),
                *(row.status, int(row.cut)),
            ]
            for row in findings.rows
        ),
    )
    _write_summary_csv(folder / "summary.csv", findings)
    write_jsonl(folder / "results.jsonl", map(_document, findings.rows))
    write_jsonl(folder / "raw.jsonl", _raw(findings))
    write_json(folder / "summary.json", summary_of(findings, calibration))


def _write_summary_csv(path: Path, findings: Findings) -> None:
    """Upstream's layout, `<context>_<metric>` per row, with counts."""
    fields = ("mean", "median", "std", "min", "max", "n", "n_invalid")
    rows = []
    for context, table in columns(findings).items():
        for name, column in table.items():
            cells = [getattr(column, field) for field in fields]
            rows.append([f"{context}_{name}", *("" if cell is None else cell for cell in cells)])
    write_csv(path, ["metric", *fields], rows)


def _document(row: GradedItem) -> dict[str, Any]:
    return {
        "context": row.context,
        "idx": row.idx,
        "scores": dict(row.scores),
        "status": row.status,
        "unscored": row.reason or None,
        "cut": row.cut,
        **row.evidence,
        "keys": list(row.keys),
    }


def _raw(findings: Findings) -> list[dict[str, Any]]:
    """Every reply behind the rows, once."""
    used = dict.fromkeys(key for row in findings.rows for key in row.keys)
    replies = {key: findings.found.get(key) for key in used}
    return [
        {"key": key, "response": reply.raw}
        for key, reply in replies.items()
        if isinstance(reply, Reply)
    ]


def refuse_unfinished(findings: Findings) -> None:
    """Raise if there is no score, or another run could give more.

    Raises:
        WorkError: no row has a score, whatever the reason, or the server refused half-way.
        PartialError: some have none for want of budget or of an answer.
    """
    rows, folder = findings.rows, findings.folder
    waiting = [row for row in rows if row.status in UNFINISHED]
    if not waiting:
        if not findings.n_scored:
            raise WorkError(
                f"none of {len(rows)} judged: {rows[0].reason}; what there is is in {folder}"
            )
        return
    fatal = findings.client.fatal if findings.client else ""
    counts = ", ".join(f"{n} {one}" for one, n in findings.status.items() if one in UNFINISHED)
    line = (
        f"{findings.n_scored} of {len(rows)} judged, {counts}: {fatal or waiting[0].reason}; what "
        f"there is is in {folder}, the same command goes on from there"
    )
    raise WorkError(line) if fatal or not findings.n_scored else PartialError(line)
