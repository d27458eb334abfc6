"""`lensaudit worst`: which facts come out, by any of a list of attacks, beside a control arm?"""

from pathlib import Path

import click

from lensaudit.cli.options import ProgressBar, check_names, notice, options, result_folder, shared
from lensaudit.worstcase.settings import WorstSettings


@click.command()
@shared("source")
@options(WorstSettings)
@result_folder("experiments/out/worst-<source>")
@shared("json", "dry_run")
def worst(
    source: str, settings: WorstSettings, out: Path | None, as_json: bool, dry_run: bool
) -> None:
    """Attack every fact in many ways; count what comes out in excess of models that never knew.

    Writes facts.csv, matrix.csv, attacks.csv, evidence.jsonl, summary.json and manifest.json. The
    same list of attacks is run on --full, which knows (the positive control), and on every
    --retain, which never knew (the control arm).
    """
    check_names([source], settings.registry)
    from lensaudit.cli.terminal import emit, say, tell, written
    from lensaudit.screen.worst import of_worst
    from lensaudit.worstcase.outcome import plan_worst, worst_into

    if dry_run:
        say(plan_worst(source, settings, notice=notice).text())
        return
    with ProgressBar() as bar:
        found = worst_into(source, settings, out, notice=notice, progress=bar.tell)
    if as_json:
        emit({"out": str(found.folder), **found.summary})
        return
    tell(of_worst(found.summary))
    written(found.folder)
