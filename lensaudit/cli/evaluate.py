"""`lensaudit eval`: what does a model still say?"""

from pathlib import Path

import click

from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.cli.options import ModelName, options, shared
from lensaudit.cli.terminal import notice, say
from lensaudit.errors import InputError


@click.command("eval")
@click.option("--model", type=ModelName(), help="Name, Hub id[@revision] or folder.")
@options(EvaluateSettings)
@click.option(
    "--out", type=click.Path(path_type=Path), help="[default: experiments/out/<model>-<suite>]"
)
@click.option(
    "--from-log",
    "log",
    type=click.Path(path_type=Path),
    help="Recompute the aggregates of a log; no model is needed.",
)
@shared("json", "dry_run")
def evaluate(
    model: str | None,
    settings: EvaluateSettings,
    out: Path | None,
    log: Path | None,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Compute the metrics of a suite, each text scored and each question asked once.

    Writes <SUITE>_EVAL.json and <SUITE>_SUMMARY.json as open-unlearning does, results.jsonl with
    every example, and manifest.json. What cannot be computed is an entry with its reason.
    """
    if (model is None) == (log is None):
        raise click.UsageError("give --model NAME, or --from-log FILE")
    if dry_run and log is not None:
        raise InputError("--from-log computes at once; there is no plan to print")
    from lensaudit.auditing.evaluate import aggregate_log, evaluate_into, plan_evaluation
    from lensaudit.cli.show_eval import report

    if log is not None:
        found = aggregate_log(log, settings, out)
    elif dry_run:
        say(plan_evaluation(model or "", settings, out).text())
        return
    else:
        found = evaluate_into(
            model or "", settings, out, notice=notice, progress=lambda one: notice(one.piece)
        ).checked()
    report(found, as_json=as_json)
