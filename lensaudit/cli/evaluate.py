"""`lensaudit eval`: what does a model still say?"""

from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import BatchSize, ModelName, notice, shared


def _file() -> click.Path:
    return click.Path(path_type=Path, dir_okay=False)


@click.command("eval")
@click.option("--model", type=ModelName(), help="Name, Hub id[@revision] or folder.")
@click.option(
    "--suite", type=click.Choice(["tofu", "muse"]), default="tofu", show_default=True,
    help="Which questions are asked.",
)  # fmt: skip
@click.option("--metric", "metrics", multiple=True, help="Only this one and its needs. Repeatable.")
@click.option(
    "--data", metavar="DIR|NAME",
    help="Folder with one <config>.jsonl per configuration, a Hub data set, or demo. "
    "[default: the suite's on the Hub; demo for demo/… models]",
)  # fmt: skip
@click.option(
    "--forget-split", default="forget10", show_default=True, help="Which part of TOFU is forgotten."
)
@click.option("--forget", type=_file(), help="Own forget rows, JSON or JSONL.")
@click.option("--holdout", type=_file(), help="Own rows the model never saw.")
@click.option("--retain-set", type=_file(), help="Own rows that should be kept.")
@click.option("--question-key", default="question", show_default=True, help="Field that is asked.")
@click.option(
    "--retain-log", type=click.Path(path_type=Path),
    help="Log of the retain model: TOFU_EVAL.json, MUSE_EVAL.json, or the older layout.",
)  # fmt: skip
@click.option(
    "--retain", type=ModelName(), help="Retain model, evaluated first; also patched in, for UDS."
)
@click.option(
    "--full", type=ModelName(), help="Model patched into, for UDS. [default: full, or demo/full]"
)
@click.option(
    "--ref-value", type=click.FloatRange(0, 1),
    help="AUC that stands in for a missing retain reference (0.5 in open-unlearning).",
)  # fmt: skip
@click.option("--reference", type=ModelName(), help="Reference model of mia_reference.")
@click.option("--classifier", help="Text classifier whose class 0 is clean text.")
@click.option(
    "--tokenizer", type=click.Path(path_type=Path), help="Folder. [default: the model's own]"
)
@click.option("--template", type=_file(), help="JSON with the prompt's tags, date and system text.")
@click.option(
    "--mask", type=click.Choice(["true", "upstream"]), default="true", show_default=True,
    help="Attend to every real token, or to ids other than padding (published numbers).",
)  # fmt: skip
@click.option(
    "--cleanup", type=click.Choice(["upstream", "none"]), default="upstream", show_default=True,
    help="Blanks before punctuation in decoded text: removed as by transformers 4, or kept.",
)  # fmt: skip
@click.option(
    "--empty", type=click.Choice(["auto", "unscored", "upstream"]), default="auto",
    show_default=True,
    help="Rows with nothing to score: unscored, or 0 as upstream; auto follows --mask.",
)  # fmt: skip
@click.option(
    "--batch-size", type=BatchSize(), default="auto", show_default=True, help="Texts per batch."
)
@click.option("--max-new-tokens", type=click.IntRange(min=1), help="[default: the suite's]")
@shared("dtype", "device", "attn", "limit", "registry", "activations")
@click.option(
    "--out", type=click.Path(path_type=Path), help="[default: experiments/out/<model>-<suite>]"
)
@click.option(
    "--from-log", "log", type=click.Path(path_type=Path),
    help="Recompute the aggregates of a log; no model is needed.",
)  # fmt: skip
@shared("json", "dry_run")
def evaluate(model: str | None, log: Path | None, as_json: bool, dry_run: bool, **options: Any):
    """Compute the metrics of a suite, each text scored and each question asked once.

    Writes <SUITE>_EVAL.json and <SUITE>_SUMMARY.json as open-unlearning does, results.jsonl with
    every example, and manifest.json. What cannot be computed is an entry with its reason.
    """
    from lensaudit.cli.evaluations import dry, report
    from lensaudit.metrics.measure.job import Job, from_log, run_job

    if (model is None) == (log is None):
        raise click.UsageError("give --model NAME, or --from-log FILE")
    job = Job(model=model or "", **options)
    if dry_run:
        dry(job, log)
    else:
        report(run_job(job, notice) if log is None else from_log(job, log), as_json=as_json)
