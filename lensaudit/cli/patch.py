"""`lensaudit patch`: swap residuals into full, layer by layer, and score unlearning depth."""

from pathlib import Path

import click

from lensaudit.auditing.settings import PatchSettings
from lensaudit.cli.loading import during
from lensaudit.cli.options import ProgressBar, check_names, notice, options, shared
from lensaudit.cli.terminal import say


@click.command()
@shared("sources")
@options(PatchSettings)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Result folder. [default: experiments/out/<source>]",
)
@shared("json", "dry_run")
def patch(
    sources: tuple[str, ...],
    settings: PatchSettings,
    out: Path | None,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Patch residuals of retain (S1) and of each source (S2) into full; score the depth.

    Writes manifest.json, summary.json, results.jsonl and layers.csv per source. UDS 0: the
    knowledge is intact; 1: erased to the level of a model that never saw it.
    """
    with during("looking for a finished run"):
        check_names(sources, settings.registry)
        from lensaudit.auditing.asked import patched
        from lensaudit.cli.show_patch import report

    if dry_run:
        from lensaudit.auditing.patch import plan_patch  # seconds to import

        say(plan_patch(sources, settings, notice=notice).text())
        return
    with ProgressBar() as bar:
        found = patched(sources, settings, out, notice=notice, progress=bar.tell)
    report(found, as_json=as_json)
