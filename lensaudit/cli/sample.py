"""`lensaudit sample`: how often do samples give facts away, beyond models that never knew?"""

from pathlib import Path

import click

from lensaudit.cli.options import ProgressBar, check_names, notice, options, result_folder, shared
from lensaudit.worstcase.settings import SampleSettings


@click.command()
@shared("source")
@options(SampleSettings)
@result_folder("experiments/out/sample-<source>")
@shared("json", "dry_run")
def sample(
    source: str, settings: SampleSettings, out: Path | None, as_json: bool, dry_run: bool
) -> None:
    """Sample answers to every question; leak@k in excess of models that never knew.

    Writes leak.csv, facts.csv, samples.jsonl, summary.json and manifest.json. Each row draws the
    same random numbers for every model, in every batch and after a restart.
    """
    check_names([source], settings.registry)
    from lensaudit.cli.terminal import emit, say, tell, written
    from lensaudit.screen.sample import of_sample
    from lensaudit.worstcase.sampling import open_sample, plan_text, sample_into

    if dry_run:
        say(plan_text(open_sample(source, settings, notice=notice)[0], settings))
        return
    with ProgressBar() as bar:
        found = sample_into(source, settings, out, notice=notice, progress=bar.tell)
    if as_json:
        emit({"out": str(found.folder), **found.summary})
        return
    tell(of_sample(found.summary))
    written(found.folder)
