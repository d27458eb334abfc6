"""`lensaudit effort`: how long must a model be trained until forgotten facts come back?"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lensaudit.attacks.effort.settings import EffortSettings
from lensaudit.cli.options import ProgressBar, check_names, notice, options, result_folder, shared
from lensaudit.cli.terminal import emit, say, tell, written

if TYPE_CHECKING:
    from lensaudit.attacks.effort.runs import EffortResult


@click.command()
@shared("sources")
@options(EffortSettings)
@result_folder("experiments/out/<source>-effort")
@shared("json", "dry_run")
def effort(
    sources: tuple[str, ...],
    settings: EffortSettings,
    out: Path | None,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Retrain on rows that do not tell the facts; read the facts after 1, 2, 4 … steps.

    The same attacks on full and on every retain model give rho: 0 what the attack teaches anyway,
    1 all that full knows. E50 and E80 are the steps until rho is .5 and .8. Writes summary.json,
    manifest.json and attacks.jsonl; run the same command again to resume.
    """
    check_names(sources, settings.registry)
    from lensaudit.attacks.effort.runs import plan_lines, prepare, run, workers_of

    ready = prepare(sources, settings, out, notice)
    if dry_run:
        say("\n".join(plan_lines(ready)))
        return
    with ProgressBar() as bar:
        found = run(ready, workers=workers_of(ready), progress=bar.tell)
    print_efforts(found, as_json=as_json)


def print_efforts(found: "list[EffortResult]", *, as_json: bool) -> None:
    """E50 and E80 of every model and arm, with the curve as a row of blocks."""
    if as_json:
        shown = [dict(one.summary) for one in found]
        emit(shown[0] if len(shown) == 1 else shown)
        return
    from lensaudit.screen.effort import of_effort

    for one in found:
        tell(of_effort(one.source, one.summary))
        written(one.folder)
