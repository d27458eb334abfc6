"""`demo` behind the options: the audit, and beside it what each model says of its own accord."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from lensaudit.activations.fill import Progress
from lensaudit.cli.audits import patch_audit
from lensaudit.cli.show import number
from lensaudit.data.spans import make_batch
from lensaudit.data.tofu import forget_set
from lensaudit.errors import WorkError
from lensaudit.models.bridge import load, logits_of
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.registry import DEMO, load_registry, resolve
from lensaudit.patching.prepare import encode_all
from lensaudit.report.words import ERASED_FROM, HIDDEN_BELOW, verdict
from lensaudit.scores.depth import span_logprob

SILENT_NATS = 1.0
"""A model counts as not saying the answers when their log-prob is this far below that of full."""


def run_demo(
    out: Path,
    *,
    root: Path,
    as_json: bool,
    notice: Callable[[str], None],
    progress: Progress,
) -> None:
    """Audit the embedded family; the calibration rows and the planted models show the scale.

    Raises:
        WorkError: the package was built without the family.
    """
    registry = load_registry()
    names = [s.name for s in registry.listed("unlearned") if s.name.startswith(DEMO)]
    if not names:
        raise WorkError("this build of lensaudit has no embedded family; install a released one")
    summaries = patch_audit(
        names, score="uds", out=out, notice=notice, progress=progress, as_json=as_json,
        dry_run=False, registry=None, profile="full", activations=root, tau=0.05, quiet=True,
    )  # fmt: skip
    if as_json:
        return
    says = {name: said(name) for name in (f"{DEMO}full", f"{DEMO}retain", *names)}
    _print(summaries, says)


def said(name: str) -> float:
    """Mean log-prob a model gives the forgotten answers by itself, nats per token."""
    checkpoint = open_checkpoint(resolve(name, load_registry()))
    encoded, _ = encode_all(forget_set("demo"), checkpoint)
    batch = make_batch(encoded)
    with torch.no_grad():
        model = load(checkpoint)
        return float(
            span_logprob(logits_of(model, batch.tokens), batch.tokens, batch.predict_at).mean()
        )


def _print(summaries: list[dict[str, Any]], says: Mapping[str, float]) -> None:
    console = Console(highlight=False)
    table = Table(title="What each model says, and what it still holds")
    table.add_column("model")
    table.add_column("says the answer\n(nats per token)", justify="right")
    table.add_column("UDS: 0 held, 1 erased", justify="right")
    calibration = summaries[0]["calibration"]
    for anchor in ("full", "retain"):
        name = f"{DEMO}{anchor}"
        table.add_row(f"[dim]{name}[/]", number(says[name], 2), number(calibration[anchor]))
    table.add_section()
    for summary in sorted(summaries, key=lambda s: s["uds"] or 0.0):
        low, high = summary["ci95"]
        table.add_row(
            summary["source"],
            number(says[summary["source"]], 2),
            f"{number(summary['uds'])} [{low:.2f}, {high:.2f}]",
        )
    console.print(table)
    for summary in summaries:
        console.print(verdict(summary), markup=False)
    silent = says[f"{DEMO}full"] - SILENT_NATS
    hidden = [
        s["source"] for s in summaries if s["uds"] < HIDDEN_BELOW and says[s["source"]] < silent
    ]
    erased = [s["source"] for s in summaries if s["uds"] >= ERASED_FROM]
    console.print()
    console.print(
        f"Stopped saying it but still holding it: {', '.join(hidden) or 'none'}.", markup=False
    )
    console.print(f"Really without it: {', '.join(erased) or 'none'}.", markup=False)
    click.echo("Next: lensaudit patch --source NAME --full … --retain … --data forget.json")
