"""`lensaudit rtt`: retrain on some facts, measure others: what was only hidden comes back."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lensaudit.attacks.rtt.settings import StudySettings, SummarySettings, ValidationSettings
from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import ProgressBar, emit, notice, say, tell, written
from lensaudit.errors import VerificationError

if TYPE_CHECKING:
    from lensaudit.attacks.rtt.table import Summarized


@click.group()
def rtt() -> None:
    """Retraining on T (RTT): fine-tune on some forgotten facts, measure the others.

    T and V are facts that do not tell about each other, all unlearned. What training on T brings
    back on V was hidden. A model that never saw the facts, retrained alike, is the floor.
    """


@rtt.command()
@options(StudySettings)
@shared("json", "dry_run")
def run(settings: StudySettings, as_json: bool, dry_run: bool) -> None:
    """Measure, retrain and summarise; run the same command again to resume.

    Writes jobs.jsonl (append-only), summary.csv, summary.json and manifest.json.
    """
    from lensaudit.attacks.rtt.runs import plan_lines, prepare, run_studies

    prepared = prepare(settings, notice)
    if dry_run:
        for study in prepared.studies:
            say("\n".join(plan_lines(study, prepared.log)))
        return
    with ProgressBar() as progress:
        found = run_studies(prepared, progress)
    print_summaries(found, as_json=as_json)
    notice(f"{found.n_added} jobs done, {found.n_known} were in the log")
    if found.failure:
        raise found.failure


@rtt.command()
@click.argument("log", type=click.Path(path_type=Path))
@options(SummarySettings)
@shared("json")
def summarize(settings: SummarySettings, as_json: bool) -> None:
    """Summarise a LOG (jobs.jsonl, or its folder) again; nothing is trained.

    Writes summary.csv and summary.json beside the log.
    """
    from lensaudit.attacks.rtt.table import summarize_log

    found = summarize_log(settings)
    print_summaries(found, as_json=as_json)
    if found.failure:
        raise found.failure


@rtt.command()
@click.argument("data")
@options(ValidationSettings)
@shared("json")
def validate(settings: ValidationSettings, as_json: bool) -> None:
    """Load DATA and list what is wrong with it; exit code 4 if a run would refuse it.

    DATA is a folder of splits, a forget set's name, or a file, as for `rtt run --data`.
    """
    from lensaudit.attacks.rtt.runs import validate as look
    from lensaudit.screen.rtt import of_data

    seen = look(settings)
    if as_json:
        emit(seen.document())
    else:
        tell(of_data(seen))
    if seen.written:
        say(f"written: {seen.written}", err=as_json)
    if seen.found.blocking:
        raise VerificationError(
            f"{seen.data.name}: defects that `lensaudit rtt run` refuses: "
            f"{len(seen.found.blocking)}; mend them, or run with --defects drop or keep"
        )


def print_summaries(found: "Summarized", *, as_json: bool) -> None:
    """Every study, and where the files are."""
    if as_json:
        from lensaudit.attacks.rtt.table import as_json as document

        shown = [document(one) for one in found.summaries]
        emit(shown[0] if len(shown) == 1 else shown)
        return
    from lensaudit.screen.rtt import of_summary

    for one in found.summaries:
        tell(of_summary(one))
    written(found.folder)
