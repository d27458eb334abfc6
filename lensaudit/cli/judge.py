"""`lensaudit judge`: what is an answer worth, by a language model or by word lists?"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import (
    ProgressBar,
    emit,
    notice,
    say,
    tell,
    written,
)
from lensaudit.errors import TryAgainError
from lensaudit.judge.settings import (
    Allowance,
    BatchSettings,
    CalibrationSettings,
    LogSettings,
    WhoJudges,
    judge_options,
)
from lensaudit.screen.cells import brief, fields

if TYPE_CHECKING:
    from lensaudit.judge.batch_jobs import BatchOutcome
    from lensaudit.judge.calibrate import Agreement
    from lensaudit.judge.findings import Findings
    from lensaudit.judge.jobs import JudgePlan

_PATH = click.Path(path_type=Path)
_LOG = click.argument("log", type=_PATH)
_WHAT = ("by", "contexts", "limit")


@click.group()
def judge() -> None:
    """Judge generations: run, batch, probe, calibrate."""


@judge.command()
@_LOG
@options(LogSettings, *_WHAT)
@options(WhoJudges)
@options(Allowance)
@options(LogSettings, "max_tokens", "offline", "fresh", "out")
@shared("json", "dry_run")
def run(
    settings: LogSettings, who: WhoJudges, allowance: Allowance, as_json: bool, dry_run: bool
) -> None:
    """Judge the generations in LOG: a folder of `eval` or `patch`, a log, or rows.

    Writes scores.csv, summary.csv, results.jsonl, raw.jsonl, summary.json and manifest.json. Every
    answer is kept as it comes: the same command again repeats no paid call.
    """
    from lensaudit.judge.jobs import job_of, plan_job, run_job

    job = job_of(settings, who, allowance)
    if dry_run:
        print_plan(plan_job(job), as_json=as_json)
        return
    with ProgressBar() as bar:
        findings = run_job(job, bar, notice)
    print_findings(findings, as_json=as_json)


@judge.command()
@options(WhoJudges)
@shared("json")
def probe(who: WhoJudges, as_json: bool) -> None:
    """Ask a model a few tiny questions to see how it can be asked; ignores earlier answers."""
    from lensaudit.judge.opening import open_bench

    with open_bench(judge_options(who, fresh=True)) as bench:
        found, endpoint = bench.capability(), bench.endpoint
    if as_json:
        emit(asdict(found))
        return
    say(f"{endpoint.model} at {endpoint.host}: mode {found.mode}, JSON by {found.format}")
    if found.thinks:
        notice("it thinks before it answers: replies may have more tokens, see --max-tokens")
    if found.note:
        notice(found.note)


@judge.command()
@options(CalibrationSettings, "by", "prompt", "words")
@options(WhoJudges)
@options(Allowance)
@options(CalibrationSettings, "fresh")
@shared("json")
def calibrate(
    settings: CalibrationSettings, who: WhoJudges, allowance: Allowance, as_json: bool
) -> None:
    """Compare a judge with labels set by hand: rank correlation, error, what length does."""
    from lensaudit.judge.calibrate import calibrate_model, calibrate_words

    if settings.words is not None:
        print_agreement(calibrate_words(settings.by, settings.words), as_json=as_json)
        return
    with ProgressBar() as bar:
        asked = judge_options(who, allowance, fresh=settings.fresh)
        agreement = calibrate_model(settings.by, settings.prompt, asked, bar)
    print_agreement(agreement, as_json=as_json)


@judge.group()
def batch() -> None:
    """Judge by batches: half the price at some servers, within a day."""


@batch.command("run")
@_LOG
@options(LogSettings, *_WHAT)
@options(WhoJudges)
@options(Allowance)
@options(LogSettings, "max_tokens", "out")
@options(BatchSettings)
@shared("json")
def batch_run(
    settings: LogSettings, who: WhoJudges, allowance: Allowance, how: BatchSettings, as_json: bool
) -> None:
    """Send LOG off; the same command again collects. Exit code 75 while a batch is not over."""
    from lensaudit.judge.batch_jobs import batch_job
    from lensaudit.judge.jobs import job_of

    job = job_of(settings, who, allowance)
    print_batches(batch_job(job, how=how, tell=notice), as_json=as_json)


@batch.command("cancel")
@click.argument("folder", type=_PATH)
@options(WhoJudges)
def batch_cancel(folder: Path, who: WhoJudges) -> None:
    """Stop the batches sent from FOLDER, an --out of `batch run`; collect with `batch run`."""
    from lensaudit.judge.batch_jobs import cancel_job

    say("\n".join(cancel_job(judge_options(who), folder)) or "nothing to stop")


@batch.command("export")
@_LOG
@click.argument("target", type=_PATH)
@options(LogSettings, *_WHAT)
@options(WhoJudges)
@options(LogSettings, "max_tokens")
@shared("force")
def batch_export(settings: LogSettings, who: WhoJudges, target: Path, force: bool) -> None:
    """Write what is not answered yet to TARGET, a batch file for any server; sends nothing."""
    from lensaudit.judge.batch_jobs import export_job
    from lensaudit.judge.jobs import job_of

    n_calls = export_job(job_of(settings, who), target, force=force)
    say(f"written: {target}, {n_calls} requests")


@batch.command("import")
@_LOG
@click.argument("results", type=_PATH)
@options(LogSettings, *_WHAT)
@options(WhoJudges)
@options(LogSettings, "max_tokens", "out")
@shared("json")
def batch_import(settings: LogSettings, who: WhoJudges, results: Path, as_json: bool) -> None:
    """Read RESULTS, a batch's output file, and write what follows for LOG; asks nobody."""
    from lensaudit.judge.batch_jobs import import_job
    from lensaudit.judge.jobs import job_of

    print_findings(import_job(job_of(settings, who), results), as_json=as_json)


def print_findings(findings: "Findings", *, as_json: bool) -> None:
    """The table or the summary, where the files are, and what is unfinished."""
    from lensaudit.judge.findings import refuse_unfinished, summary_of
    from lensaudit.screen.judge import findings_of

    folder = findings.folder or Path()
    if as_json:
        emit(summary_of(findings))
    else:
        tell(findings_of(findings))
        written(folder)
    refuse_unfinished(findings, folder)


def print_plan(plan: "JudgePlan", *, as_json: bool) -> None:
    """What a run would ask."""
    found = {
        "items": len(plan.items.items),
        "gaps": len(plan.items.gaps),
        "calls": plan.n_calls,
        "cached": plan.n_cached,
        "tokens_in_at_most": plan.tokens.tokens_in,
        "tokens_out_at_most": plan.tokens.tokens_out,
        "cost_at_most": plan.cost,
        "mode": plan.mode,
        "max_tokens_of_a_reply": plan.max_tokens,
        "probed": plan.probed,
    }
    if as_json:
        emit(found)
    else:
        tell(fields({key.replace("_", " "): value for key, value in found.items()}))
        if not plan.probed:
            notice(
                "the model was never probed; run `lensaudit judge probe` for its own mode and "
                "limits"
            )


def print_batches(outcome: "BatchOutcome", *, as_json: bool) -> None:
    """Results, or what is going on.

    Raises:
        TryAgainError: nothing new was sent and a batch is not over.
    """
    if outcome.findings is not None:
        print_findings(outcome.findings, as_json=as_json)
        return
    state = "; ".join(outcome.lines)
    if not outcome.submitted:
        raise TryAgainError(f"not over yet: {state}; run the same command again later")
    if as_json:
        emit({"sent": outcome.submitted, "batches": list(outcome.lines)})
        return
    say(f"sent: {outcome.submitted} requests; {state}")
    say("run the same command again to collect")


def print_agreement(agreement: "Agreement", *, as_json: bool) -> None:
    """How far a judge agrees with the labels."""
    found = asdict(agreement) | {"reading": agreement.reading}
    if as_json:
        emit(found)
    else:
        tell(fields({key.replace("_", " "): _brief(value) for key, value in found.items()}))
    agreement.checked()


def _brief(value: object) -> object:
    return brief(value) if isinstance(value, float) or value is None else value
