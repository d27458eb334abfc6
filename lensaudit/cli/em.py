"""`patch --score em` behind the options: prepare, run, write, print."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lensaudit.activations.fill import Progress
from lensaudit.cli.show_em import print_em
from lensaudit.errors import WorkError
from lensaudit.files import canonical_json, make_folder
from lensaudit.models.registry import load_registry
from lensaudit.patching.deposit import clear, folders_for
from lensaudit.patching.em_audit import EmOptions, check_em, plan_text, run_em
from lensaudit.patching.em_outcome import deposit_em, em_outcome_of, em_summary_of
from lensaudit.patching.options import Profile
from lensaudit.patching.prepare import prepare
from lensaudit.patching.session import manifest_of


def em_audit(
    sources: Sequence[str],
    *,
    em: Mapping[str, Any],
    out: Path | None,
    notice: Callable[[str], None],
    progress: Progress,
    as_json: bool,
    dry_run: bool,
    registry: Path | None,
    profile: Profile | None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Audit the sources by exact match; returns their summaries.

    Raises:
        WorkError: nothing could be scored of a source; its files say why.
    """
    started = time.monotonic()
    names = list(dict.fromkeys(sources))
    audit = prepare(
        names, registry=load_registry(registry), notice=notice, progress=progress,
        profile=profile or "full", **options,
    )  # fmt: skip
    how = EmOptions(**em)
    check_em(audit, how)
    if dry_run:
        click.echo(plan_text(audit, how))
        return []
    folders = folders_for(names, out)
    for folder in folders.values():
        clear(make_folder(folder))
    found = run_em(audit, how)
    made = {**asdict(audit.options), "em": asdict(how)}
    summaries = []
    for name, checkpoint in audit.sources.items():
        outcome = em_outcome_of(name, checkpoint.weights, audit, how, found)
        summaries.append(em_summary_of(outcome))
        manifest = manifest_of(audit, name, made, started)
        deposit_em(folders[name], outcome, summaries[-1], manifest)
    _report(summaries, folders, as_json)
    return summaries


def _report(summaries: list[dict[str, Any]], folders: dict[str, Path], as_json: bool) -> None:
    if as_json:
        click.echo(canonical_json(summaries[0] if len(summaries) == 1 else summaries))
    else:
        print_em(summaries)
        for folder in folders.values():
            click.echo(f"written: {folder}")
    if empty := [s["source"] for s in summaries if s["udr"] is None]:
        reason = next(iter(summaries[0]["unscored"].values()), "")
        raise WorkError(f"{', '.join(empty)}: no example could be scored ({reason})")
