"""`patch` behind the options: prepare, run, write, print."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from lensaudit.activations.fill import Progress
from lensaudit.cli.show import print_audit
from lensaudit.errors import WorkError
from lensaudit.files import canonical_json, make_folder
from lensaudit.models.registry import load_registry
from lensaudit.patching.deposit import (
    clear,
    deposit,
    deposit_comparison,
    folders_for,
    with_texts,
)
from lensaudit.patching.lens import lens_options
from lensaudit.patching.outcome import beside, summary_of
from lensaudit.patching.plan import plan_of
from lensaudit.patching.prepare import prepare
from lensaudit.patching.session import manifest_of, score_all, score_lens


def patch_audit(
    sources: Sequence[str],
    *,
    score: str,
    lens: bool = False,
    out: Path | None,
    notice: Callable[[str], None],
    progress: Progress,
    as_json: bool,
    dry_run: bool,
    registry: Path | None,
    quiet: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """Audit the sources; returns their summaries, printed unless `quiet`.

    With `lens` the Logit Lens depth is reported beside UDS.

    Raises:
        WorkError: nothing could be scored of a source; its files say why.
    """
    started = time.monotonic()
    names = list(dict.fromkeys(sources))
    audit = prepare(
        names, registry=load_registry(registry), notice=notice, progress=progress, **options
    )
    if lens or score == "lens":
        reading = replace(audit, options=lens_options(audit.options))  # refuses what has no meaning
        audit = reading if score == "lens" else audit
    if dry_run:
        click.echo(plan_of(audit).text())
        return []
    folders = folders_for(names, out)
    for folder in folders.values():
        clear(make_folder(folder))
    outcomes, calibration = score_lens(audit) if score == "lens" else score_all(audit)
    read = {one.source: one for one in score_lens(audit)[0]} if lens and score == "uds" else {}
    summaries = []
    for outcome in outcomes:
        summary, rows = summary_of(outcome, calibration), outcome.rows()
        if outcome.source in read:
            summary, rows = beside(outcome, read[outcome.source], calibration)
        made = manifest_of(audit, outcome.source, asdict(outcome.options), started)
        rows = with_texts(rows, audit.examples)
        deposit(folders[outcome.source], outcome, summary, made, rows=rows)
        summaries.append(summary)
    pairs = []
    if len(outcomes) > 1:
        pairs = deposit_comparison(next(iter(folders.values())).parent, outcomes)
    if as_json or not quiet:
        _report(summaries, pairs, folders, as_json)
    return summaries


def _report(
    summaries: list[dict[str, Any]],
    pairs: list[list[Any]],
    folders: dict[str, Path],
    as_json: bool,
) -> None:
    if as_json:
        click.echo(canonical_json(summaries[0] if len(summaries) == 1 else summaries))
    else:
        print_audit(summaries, pairs)
        for folder in folders.values():
            click.echo(f"written: {folder}")
    if empty := [s["source"] for s in summaries if s[s["score"]] is None]:
        reason = next(iter(summaries[0]["unscored"].values()), "")
        raise WorkError(f"{', '.join(empty)}: no example could be scored ({reason})")
