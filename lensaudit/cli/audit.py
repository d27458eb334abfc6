"""`lensaudit audit`: everything about some models in one command, from names to one page."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lensaudit.auditing.settings import AuditSettings
from lensaudit.cli.options import check_names, options, shared
from lensaudit.cli.terminal import ProgressBar, emit, is_quiet, notice, say, tell
from lensaudit.errors import PartialError, VerificationError

if TYPE_CHECKING:
    from lensaudit.auditing.audit_result import Audited

PAGE = "audit.html"


@click.command()
@shared("sources")
@options(AuditSettings)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of all results and of audit.html. [default: experiments/out/audit-<source>]",
)
@shared("json", "dry_run")
def audit(
    sources: tuple[str, ...],
    settings: AuditSettings,
    out: Path | None,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Audit models in one go: cache, patch, evaluate, and write audit.html.

    The plan is printed first. What is finished is kept and found again by content: after an
    interruption run the same command again. --fresh computes everything anew.
    """
    check_names(sources, settings.registry)
    from lensaudit.auditing.audit_result import AUDIT_MANIFEST, finished_audit
    from lensaudit.results.records import answered_for, renew

    if not dry_run and (known := finished_audit(sources, settings, out)):
        page = known.folder / PAGE
        if page in answered_for(known.folder / AUDIT_MANIFEST):
            print_audited(known, page, as_json=as_json)
            return
    from lensaudit.auditing.audit import AuditPlan, audit_into, plan_audit
    from lensaudit.report.render import write_report

    def lines(plan: AuditPlan) -> str:
        return f"{plan.text()}\nreport: {plan.folder / PAGE}"

    if dry_run:
        say(lines(plan_audit(sources, settings, out, notice=notice)))
        return
    with ProgressBar() as bar:
        found = audit_into(
            sources,
            settings,
            out,
            notice=notice,
            progress=bar.tell,
            planned=lambda plan: None if is_quiet() else say(lines(plan), err=True),
        )
    page = found.folder / PAGE
    left_out = write_report(found.folders, page)
    for one in left_out:
        notice(f"not in the report: {one.path}: {one.reason}")
    if not left_out:
        renew(found.folder, [PAGE], AUDIT_MANIFEST)
    print_audited(found, page, as_json=as_json)


def print_audited(found: "Audited", page: Path, *, as_json: bool) -> None:
    """The scores, and where the page is.

    Raises:
        PartialError: a step failed.
        VerificationError: the scale is off.
    """
    from lensaudit.screen.depth import depths

    summaries = [one.summary for one in found.results]
    if as_json:
        shown = ("source", "uds", "ci95", "n", "n_scored", "calibration")
        sources = [
            {key: one.summary[key] for key in shown} | {"verdict": one.verdict.document()}
            for one in found.results
        ]
        emit({"report": str(page), "sources": sources, "all_views": found.verdicts.document()})
    else:
        tell(depths(summaries, sentences=[one.verdict.sentence for one in found.results]))
        say(f"report: {page}")
    if off := next(filter(None, (one.patch.off for one in found.results)), None):
        raise VerificationError(off)
    if found.failures:
        listed = "; ".join(f"{one.model}: {one.message}" for one in found.failures)
        n = len(found.failures)
        raise PartialError(f"{n} steps failed, the rest is in {page}: {listed}")
