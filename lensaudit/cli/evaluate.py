"""`lensaudit eval`: what does a model still say?"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.cli.options import ModelName, SettingOption, options, result_folder, shared
from lensaudit.cli.terminal import emit, notice, say, tell, written
from lensaudit.errors import InputError
from lensaudit.settings import MODELS

if TYPE_CHECKING:
    from lensaudit.auditing.evaluate import EvaluationResult


@click.command("eval")
@click.option(
    "--model",
    cls=SettingOption,
    section=MODELS,
    type=ModelName(),
    help="Name, Hub id[@revision] or folder.",
)
@options(EvaluateSettings)
@result_folder("experiments/out/<model>-<suite>")
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

    if log is not None:
        found = aggregate_log(log, settings, out)
    elif dry_run:
        say(plan_evaluation(model or "", settings, out).text())
        return
    else:
        found = evaluate_into(
            model or "", settings, out, notice=notice, progress=lambda one: notice(one.piece)
        ).checked()
    print_values(found, as_json=as_json)


def print_values(found: "EvaluationResult", *, as_json: bool) -> None:
    """Print the table or the summary, and where the files are."""
    from lensaudit.screen.evaluation import values

    for note in found.notes:
        notice(note)
    if as_json:
        emit(dict(found.summary))
        return
    tell(values(found))
    if found.folder:
        written(found.folder)
