"""`lensaudit patch`: swap residuals into full, layer by layer, and score unlearning depth."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lensaudit.auditing.settings import PatchSettings
from lensaudit.cli.options import ProgressBar, check_names, notice, options, result_folder, shared
from lensaudit.cli.terminal import emit, say, tell, written
from lensaudit.errors import VerificationError, WorkError
from lensaudit.screen.loading import during

if TYPE_CHECKING:
    from lensaudit.auditing.patch_result import Patched


@click.command()
@shared("sources")
@options(PatchSettings)
@result_folder("experiments/out/<source>")
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
        from lensaudit.auditing.reuse import patched

    if dry_run:
        from lensaudit.auditing.patch import plan_patch  # seconds to import

        say(plan_patch(sources, settings, notice=notice).text())
        return
    with ProgressBar() as bar:
        found = patched(sources, settings, out, notice=notice, progress=bar.tell)
    print_patched(found, as_json=as_json)


def print_patched(found: "Patched", *, as_json: bool) -> None:
    """Results on stdout, and where their files are.

    Raises:
        VerificationError: the scale is off.
        WorkError: nothing could be scored of a model.
    """
    from lensaudit.screen.depth import collateral, depths
    from lensaudit.screen.erasure import erasures

    summaries = [one.summary for one in found.results]
    if as_json:
        emit(summaries[0] if len(summaries) == 1 else summaries)
    else:
        if found.results[0].score == "em":
            tell(erasures(summaries))
        else:
            tell(depths(summaries, found.comparison))
            tell(collateral(summaries))
        for one in found.results:
            written(one.folder)
    if off := next(filter(None, (one.off for one in found.results)), None):
        raise VerificationError(off)
    if empty := [one for one in found.results if one.found_nothing]:
        raise WorkError(f"{', '.join(one.source for one in empty)}: {empty[0].reason}")
