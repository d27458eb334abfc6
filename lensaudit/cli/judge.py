"""`lensaudit judge`: what is an answer worth, by a language model or by word lists?"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from dataclasses import fields as fields_of
from pathlib import Path

import click

from lensaudit.cli import library
from lensaudit.cli.options import PlaceName, options, shared
from lensaudit.cli.terminal import (
    ProgressBar,
    answer,
    emit,
    notice,
    say,
)
from lensaudit.errors import TryAgainError
from lensaudit.judge.settings import (
    BatchSettings,
    CalibrationSettings,
    JudgeSettings,
    LogSettings,
)
from lensaudit.screen.cells import brief, fields

_PATH = PlaceName()
_LOG = click.argument("log", type=_PATH)
_SENT = tuple(one.name for one in fields_of(LogSettings) if one.name not in ("offline", "fresh"))
"""What is chosen of a log that goes out in batches: each answer is new, and none is here yet."""


@click.group()
def judge() -> None:
    """Judge generations: run, batch, probe, calibrate."""


@judge.command()
@_LOG
@options(LogSettings)
@shared("json", "dry_run")
def run(settings: LogSettings, as_json: bool, dry_run: bool) -> None:
    """Judge the generations in LOG: a folder of `eval` or `patch`, a log, or rows.

    Writes scores.csv, summary.csv, results.jsonl, raw.jsonl, summary.json and manifest.json. Every
    answer is kept as it comes: the same command again repeats no paid call.
    """
    if dry_run:
        plan = library.judge_jobs.plan_job(settings, notice)
        done = {name: value for name, value in plan.items() if name == "nothing_to_do"}
        answer(plan, _fields(done or plan), as_json=as_json)
        if not as_json and not plan["probed"]:
            notice(
                "--fresh probes the model again: its mode and limits may change"
                if settings.fresh
                else "the model was never probed; run `lensaudit judge probe` for its own mode "
                "and limits"
            )
        return
    with ProgressBar() as bar:
        job = library.judge_jobs.run_job(settings, bar, notice)
    print_judged(job, as_json=as_json)


@judge.command()
@options(JudgeSettings)
@shared("json")
def probe(settings: JudgeSettings, as_json: bool) -> None:
    """Ask a model a few tiny questions to see how it can be asked; ignores earlier answers."""
    with library.judge_client.open_client(settings, settings.model, fresh=True) as asked:
        found, endpoint = asked.capability(), asked.endpoint
    if as_json:
        emit(asdict(found))
        return
    say(f"{endpoint.model} at {endpoint.host}: mode {found.mode}, JSON by {found.format}")
    if found.thinks:
        notice("it thinks before it answers: replies may have more tokens, see --max-tokens")
    if found.note:
        notice(found.note)


@judge.command()
@options(CalibrationSettings)
@shared("json")
def calibrate(settings: CalibrationSettings, as_json: bool) -> None:
    """Compare a judge with labels set by hand: rank correlation, error, what length does."""
    with ProgressBar() as bar:
        agreed = library.judge_calibrate.calibrate(settings, bar)
    found = asdict(agreed) | {"reading": agreed.reading}
    shown = {
        key: brief(value) if isinstance(value, float) or value is None else value
        for key, value in found.items()
    }
    answer(found, _fields(shown), as_json=as_json)
    agreed.checked()


@judge.group()
def batch() -> None:
    """Judge by batches: half the price at some servers, within a day."""


@batch.command("run")
@_LOG
@options(LogSettings, *_SENT)
@options(BatchSettings)
@shared("json")
def batch_run(settings: LogSettings, how: BatchSettings, as_json: bool) -> None:
    """Send LOG off; the same command again collects. Exit code 75 while a batch is not over."""
    job, lines, n_sent = library.judge_batches.batch_job(settings, how=how, tell=notice)
    if job is not None:
        print_judged(job, as_json=as_json)
        return
    state = "; ".join(lines)
    if not n_sent:
        raise TryAgainError(f"not over yet: {state}; run the same command again later")
    document = {"sent": n_sent, "batches": lines}
    said = [f"sent: {n_sent} requests; {state}", "run the same command again to collect"]
    answer(document, said, as_json=as_json)


@batch.command("cancel")
@click.argument("folder", type=_PATH)
@options(JudgeSettings)
def batch_cancel(folder: Path, settings: JudgeSettings) -> None:
    """Stop the batches sent from FOLDER, an --out of `batch run`; collect with `batch run`."""
    say("\n".join(library.judge_batches.cancel_job(settings, folder)) or "nothing to stop")


def print_judged(job: "library.judge_jobs.JudgeJob", *, as_json: bool) -> None:
    """The table or the summary, where the files are, and what is unfinished."""
    record = job.record or library.judge_jobs.record_of(job)
    document = library.results_reading.document(record)
    answer(document, library.screen_evaluation.of_judged(record), job.folder, as_json=as_json)
    library.judge_jobs.refuse_unfinished(job)


def _fields(values: Mapping[str, object]) -> Iterator[str]:
    """A line for each value, under its name in words."""
    return fields({key.replace("_", " "): value for key, value in values.items()})
