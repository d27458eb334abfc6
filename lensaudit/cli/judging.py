"""`lensaudit judge`: what is an answer worth, by a language model or by word lists?"""

from pathlib import Path
from typing import Any

import click

from lensaudit.cli.judge_options import judge_options, what_it_may_use, who_judges
from lensaudit.cli.options import ProgressBar, notice, shared

_PATH = click.Path(path_type=Path)
_LOG = click.argument("log", type=_PATH)
_OUT = click.option("--out", type=_PATH, help="[default: experiments/out/<log>-judge-<by>]")
_BY = click.option(
    "--by", default="rubric", show_default=True, metavar="NAME|FILE",
    help="rubric (grades 0-10), coherence or idk (0-100), a prompt's file with {question} and "
    "{answer}, or words:entity, words:idk, words:variety, which ask nobody.",
)  # fmt: skip
_CONTEXT = click.option(
    "--context", "contexts", multiple=True, help="Only this metric or split. Repeatable."
)
_MAX_TOKENS = click.option(
    "--max-tokens", type=click.IntRange(1), default=512, show_default=True,
    help="Of a rubric's reply.",
)  # fmt: skip


@click.group()
def judge() -> None:
    """Judge generations: run, batch, probe, calibrate, or stub for trying without a server."""


@judge.command()
@_LOG
@_BY
@_CONTEXT
@shared("limit")
@who_judges
@what_it_may_use
@_MAX_TOKENS
@click.option("--offline", is_flag=True, help="Answers from the cache alone.")
@click.option("--fresh", is_flag=True, help="Ask again what is in the cache.")
@_OUT
@shared("json", "dry_run")
def run(log: Path, by: str, as_json: bool, dry_run: bool, **options: Any) -> None:
    """Judge the generations in LOG: a folder of `eval` or `patch`, a log, or rows.

    Writes scores.csv, summary.csv, results.jsonl, raw.jsonl, summary.json and manifest.json. Every
    answer is kept as it comes: the same command again repeats no paid call.
    """
    from lensaudit.cli.judgements import print_findings, print_plan
    from lensaudit.judge.jobs import plan_job, run_job

    job = _job(log, by, options)
    if dry_run:
        print_plan(plan_job(job), as_json=as_json)
        return
    with ProgressBar() as bar:
        findings = run_job(job, bar)
    print_findings(findings, job.folder, as_json=as_json)


@judge.command()
@who_judges
@shared("json")
def probe(as_json: bool, **options: Any) -> None:
    """Ask a model a few tiny questions to see how it can be asked; ignores earlier answers."""
    from lensaudit.cli.judgements import print_capability
    from lensaudit.judge.opening import open_bench

    wanted = judge_options(options | {"fresh": True})
    with open_bench(wanted) as bench:
        print_capability(bench.capability(), bench.endpoint, as_json=as_json)


@judge.command()
@click.option(
    "--by",
    default="coherence",
    show_default=True,
    metavar="NAME|FILE",
    help="A set with labels: coherence, idk, or your JSONL of question, answer, label.",
)
@click.option("--prompt", metavar="NAME|FILE", help="The prompt. [default: that of the set]")
@click.option("--words", help="Calibrate a judge that asks nobody: idk or variety.")
@who_judges
@what_it_may_use
@click.option("--fresh", is_flag=True, help="Ask again what is in the cache.")
@shared("json")
def calibrate(
    by: str, prompt: str | None, words: str | None, as_json: bool, **options: Any
) -> None:  # fmt: skip
    """Compare a judge with labels set by hand: rank correlation, error, what length does."""
    from lensaudit.cli.judgements import print_agreement
    from lensaudit.judge.calibrate import calibrate_model, calibrate_words

    if words is not None:
        print_agreement(calibrate_words(by, words), as_json=as_json)
        return
    with ProgressBar() as bar:
        agreement = calibrate_model(by, prompt, judge_options(options), bar)
    print_agreement(agreement, as_json=as_json)


@judge.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="[default: any free one]")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="NAME",
    help="What goes wrong with the next completion; repeatable, in order, ok for none.",
)
@click.option("--always", metavar="NAME", help="What goes wrong with every completion after that.")
@click.option(
    "--tokens",
    type=click.Choice(["whole", "digits", "blank"]),
    default="whole",
    show_default=True,
    help="How the pretended tokenizer splits numbers.",
)
@click.option(
    "--batch-end",
    type=click.Choice(["completed", "failed", "expired", "cancelled"]),
    default="completed",
    show_default=True,
    help="How batches end.",
)
@click.option("--no-batches", is_flag=True, help="A server without files and batches.")
def stub(**options: Any) -> None:
    """Serve a pretended judge on 127.0.0.1 that counts words; ends with Ctrl-C."""
    from lensaudit.cli.judgements import serve_stub

    serve_stub(**options)


@judge.group()
def batch() -> None:
    """Judge by batches: half the price at some servers, within a day."""


@batch.command("run")
@_LOG
@_BY
@_CONTEXT
@shared("limit")
@who_judges
@what_it_may_use
@_MAX_TOKENS
@_OUT
@click.option("--wait", is_flag=True, help="Poll until it is over.")
@click.option(
    "--poll",
    "poll_s",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="Seconds before the second look; then doubled, up to 5 minutes.",
)
@click.option("--resubmit", is_flag=True, help="Send again what failed, expired or was cancelled.")
@shared("json")
def batch_run(
    log: Path, by: str, wait: bool, poll_s: float, resubmit: bool, as_json: bool, **options: Any
) -> None:
    """Send LOG off; the same command again collects. Exit code 75 while a batch is not over."""
    from lensaudit.cli.judgements import print_batches
    from lensaudit.judge.batch_jobs import batch_job

    job = _job(log, by, options)
    outcome = batch_job(job, resubmit=resubmit, wait=wait, poll_s=poll_s, tell=notice)
    print_batches(outcome, job.folder, as_json=as_json)


@batch.command("cancel")
@click.argument("folder", type=_PATH)
@who_judges
def batch_cancel(folder: Path, **options: Any) -> None:
    """Stop the batches sent from FOLDER, an --out of `batch run`; collect with `batch run`."""
    from lensaudit.judge.batch_jobs import cancel_job

    click.echo("\n".join(cancel_job(judge_options(options), folder)) or "nothing to stop")


@batch.command("export")
@_LOG
@click.argument("target", type=_PATH)
@_BY
@_CONTEXT
@shared("limit")
@who_judges
@_MAX_TOKENS
def batch_export(log: Path, target: Path, by: str, **options: Any) -> None:
    """Write what is not answered yet to TARGET, a batch file for any server; sends nothing."""
    from lensaudit.judge.batch_jobs import export_job

    n_calls = export_job(_job(log, by, options), target)
    click.echo(f"written: {target}, {n_calls} requests")


@batch.command("import")
@_LOG
@click.argument("results", type=_PATH)
@_BY
@_CONTEXT
@shared("limit")
@who_judges
@_MAX_TOKENS
@_OUT
@shared("json")
def batch_import(log: Path, results: Path, by: str, as_json: bool, **options: Any) -> None:
    """Read RESULTS, a batch's output file, and write what follows for LOG; asks nobody."""
    from lensaudit.cli.judgements import print_findings
    from lensaudit.judge.batch_jobs import import_job

    job = _job(log, by, options)
    print_findings(import_job(job, results), job.folder, as_json=as_json)


def _job(log: Path, by: str, options: dict[str, Any]) -> Any:
    from lensaudit.judge.jobs import WORDS, JudgeJob

    model = None if by.startswith(WORDS) else judge_options(options)
    names = ("contexts", "limit", "max_tokens", "out")
    return JudgeJob(log, by, model, **{name: options[name] for name in names if name in options})
