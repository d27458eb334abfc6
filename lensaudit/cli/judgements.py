"""`judge` behind the options: tables, plans, and the stub that is served."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lensaudit.cli.options import notice
from lensaudit.errors import InputError, TryAgainError
from lensaudit.files import canonical_json, printable
from lensaudit.judge.batch_jobs import BatchOutcome
from lensaudit.judge.calibrate import Agreement
from lensaudit.judge.capability import Capability
from lensaudit.judge.endpoint import Endpoint
from lensaudit.judge.findings import Findings, columns, refuse_unfinished, summary_of
from lensaudit.judge.jobs import Plan
from lensaudit.judge.stub.completions import FAULTS, Abilities
from lensaudit.judge.stub.server import MODEL, JudgeStub

WIDTH = 110


def print_findings(findings: Findings, folder: Path, *, as_json: bool) -> None:
    """The table or the summary, where the files are, and what is unfinished."""
    if as_json:
        click.echo(canonical_json(summary_of(findings)))
    else:
        _console().print(_table(findings))
        click.echo(_account(findings))
        click.echo(f"written: {folder}")
    refuse_unfinished(findings, folder)


def _table(findings: Findings) -> Table:
    low, high = findings.grader.identity["scale"]
    table = Table(title=f"{findings.grader.name}, {low} to {high}")
    for name in ("context", "metric", "mean", "95 % interval", "median", "scored"):
        right = name in ("mean", "median", "scored")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "metric")
    for context, metrics in columns(findings).items():
        for name, column in metrics.items():
            low_high = "–" if column.ci95 is None else "{:.4g} to {:.4g}".format(*column.ci95)
            scored = f"{column.n}/{column.n + column.n_invalid}"
            table.add_row(
                _plain(context),
                _plain(name),
                _number(column.mean),
                low_high,
                _number(column.median),
                scored,
            )
    return table


def _account(findings: Findings) -> str:
    """What was asked, what it took, what has no score."""
    parts = [f"{n} {status}" for status, n in findings.status.items() if status != "ok"]
    gaps = f"; without a score: {', '.join(parts)}" if parts else ""
    if findings.counts is None or findings.spent is None:
        return f"nobody was asked{gaps}"
    spent = findings.spent
    cost = f", cost {spent.cost:.4g}" if spent.cost else ""
    return (
        f"{findings.counts.asked} calls ({findings.counts.cached} answers from the cache), "
        f"{spent.tokens_in} tokens in, {spent.tokens_out} out{cost}{gaps}"
    )


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """What a run would ask."""
    found = {
        "items": len(plan.items.items), "gaps": len(plan.items.gaps), "calls": plan.n_calls,
        "cached": plan.n_cached, "tokens_in_at_most": plan.tokens.tokens_in,
        "tokens_out_at_most": plan.tokens.tokens_out, "cost_at_most": plan.cost,
        "mode": plan.mode,
    }  # fmt: skip
    if as_json:
        click.echo(canonical_json(found))
        return
    for name, value in found.items():
        click.echo(f"{name.replace('_', ' ')}: {value}")


def print_capability(found: Capability, endpoint: Endpoint, *, as_json: bool) -> None:
    """How a model can be asked."""
    if as_json:
        click.echo(canonical_json(asdict(found)))
        return
    click.echo(f"{endpoint.model} at {endpoint.host}: mode {found.mode}, JSON by {found.format}")
    if found.note:
        notice(found.note)


def print_batches(outcome: BatchOutcome, folder: Path, *, as_json: bool) -> None:
    """Results, or what is going on.

    Raises:
        TryAgainError: nothing new was sent and a batch is not over.
    """
    if outcome.findings is not None:
        print_findings(outcome.findings, folder, as_json=as_json)
        return
    state = "; ".join(outcome.lines)
    if not outcome.submitted:
        raise TryAgainError(f"not over yet: {state}; run the same command again later")
    if as_json:
        click.echo(canonical_json({"sent": outcome.submitted, "batches": list(outcome.lines)}))
        return
    click.echo(f"sent: {outcome.submitted} requests; {state}")
    click.echo("run the same command again to collect")


def print_agreement(agreement: Agreement, *, as_json: bool) -> None:
    """How far a judge agrees with the labels."""
    if as_json:
        click.echo(canonical_json(asdict(agreement)))
        return
    for name, value in asdict(agreement).items():
        shown = _number(value) if isinstance(value, float) or value is None else value
        click.echo(f"{name.replace('_', ' ')}: {shown}")


def serve_stub(
    *,
    port: int,
    faults: tuple[str, ...],
    always: str | None,
    tokens: Any,
    batch_end: Any,
    no_batches: bool,
) -> None:
    """Serve until Ctrl-C.

    Raises:
        InputError: an unknown fault.
    """
    unknown = [name for name in (*faults, always or "ok") if name not in (*FAULTS, "ok")]
    if unknown:
        raise InputError(f"no fault {unknown[0]!r}; known are ok, {', '.join(FAULTS)}")
    stub = JudgeStub(
        port,
        tuple("" if name == "ok" else name for name in faults),
        "" if always in (None, "ok") else always,
        Abilities(tokens=tokens),
        batch_end=batch_end,
        batches=not no_batches,
    )
    with stub:
        click.echo(f"serving {MODEL} at {stub.url}; it counts words and understands nothing")
        stub.wait()


def _plain(text: str) -> str:
    """A name from a file, without markup and escapes."""
    return escape(printable(text))


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def _console() -> Console:
    console = Console(highlight=False)
    # a pipe has no width: 80 columns would cut the names
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)
