"""`lensaudit rtt`: retrain on some facts, measure others: what was only hidden comes back."""

from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import ProgressBar, check_names, notice, shared

_DATA = (
    "A folder of multiple-choice splits (split_0.jsonl …); or a forget set, split by author: demo, "
    "forget01, forget05, forget10, or a file of question, answer, perturbed_answer and group."
)
_SELECTION = click.option(
    "--selection", type=click.Choice(["per_v", "global", "nested"]), default="per_v",
    show_default=True, help="Which learning rate and epoch speak for a sweep.",
)  # fmt: skip
_RULE = click.option(
    "--epoch-rule", "rule", type=click.Choice(["max", "final"]), default="max", show_default=True,
    help="Any epoch may speak, or the last only.",
)  # fmt: skip


def _data_options(command: Any) -> Any:
    """What is asked, and how it is cut."""
    for option in (
        click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
                     help="Of authors, choices and the data order."),
        click.option("--splits", "n_splits", type=click.IntRange(min=2), default=5,
                     show_default=True, help="Splits that a forget set is cut into."),
        click.option("--rows-per-author", type=click.IntRange(min=1),
                     help="For rows that name no author; TOFU: 20."),
        click.option("--only", multiple=True, metavar="SPLIT",
                     help="Splits of a folder that take part. Repeatable. [default: all]"),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group()
def rtt() -> None:
    """Retraining on T (RTT): fine-tune on some forgotten facts, measure the others.

    T and V are facts that do not tell about each other, all unlearned. What training on T brings
    back on V was hidden. A model that never saw the facts, retrained alike, is the floor.
    """


@rtt.command()
@click.option("--unlearned", "names", multiple=True, required=True,
              help="Model under attack (A, B). Repeatable.")  # fmt: skip
@click.option("--original", help="Before unlearning (0, C). [default: full, or demo/full]")
@click.option("--control", help="Never saw the facts (N). [default: retain, or demo/retain]")
@click.option("--no-control", is_flag=True, help="Do without the floor.")
@click.option("--data", metavar="NAME|PATH",
              help=f"{_DATA} [default: forget10; demo for demo/… models]")  # fmt: skip
@_data_options
@click.option("--defects", type=click.Choice(["refuse", "drop", "keep"]), default="refuse",
              show_default=True, help="Ambiguous, repeated or leaking items.")  # fmt: skip
@click.option("--v-runs", type=click.IntRange(min=1), default=2, show_default=True,
              help="Splits held out in turn.")  # fmt: skip
@click.option("--hold-out", multiple=True, metavar="SPLIT",
              help="Name them instead. Repeatable.")  # fmt: skip
@click.option("--eval-seed", type=int, default=0, show_default=True,
              help="Draws the splits held out.")  # fmt: skip
@click.option(
    "--readout",
    type=click.Choice(["letter", "answer"]),
    help="What selects and is reported; the other is logged. [default: letter; answer for "
    "demo/… models]",
)
@click.option("--lr", "lrs", type=float, multiple=True,
              help="Learning rate. Repeatable. [default: 2e-6 5e-6 1e-5 2e-5 5e-5; demo/…: 3e-4 "
              "1e-3 3e-3]")  # fmt: skip
@click.option("--epochs", type=click.IntRange(min=1), default=6, show_default=True)
@click.option("--batch-size", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--warmup", type=click.IntRange(min=0), default=24, show_default=True,
              help="Steps of linear rise; constant after it.")  # fmt: skip
@click.option("--weight-decay", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--loss-on",
              type=click.Choice(["all", "letter_answer", "letter", "question_answer", "answer"]),
              help="Tokens with a loss; the last two train without options. [default: all; answer "
              "for demo/… models]")  # fmt: skip
@click.option("--trainable", default="", help="Pattern of parameter names; the others stay.")
@click.option("--min-baseline", type=click.FloatRange(0, 1), default=0.3, show_default=True,
              help="Gate: accuracy of the original; 0 is off.")  # fmt: skip
@click.option("--min-drop", type=click.FloatRange(min=0), default=2.0, show_default=True,
              help="Gate: drop by unlearning, standard errors; 0 is off.")  # fmt: skip
@_SELECTION
@_RULE
@click.option("--out", type=click.Path(path_type=Path, file_okay=False),
              help="Folder of log and summary. [default: experiments/out/rtt]")  # fmt: skip
@shared("registry", "device", "json", "dry_run")
def run(**options: Any) -> None:
    """Measure, retrain and summarise; run the same command again to resume.

    Writes jobs.jsonl (append-only), summary.csv, summary.json and manifest.json.
    """
    check_names([*options["names"], options["original"], options["control"]], options["registry"])
    from lensaudit.cli.retraining import run_rtt

    with ProgressBar() as progress:
        run_rtt(notice=notice, progress=progress, **options)


@rtt.command()
@click.argument("log", type=click.Path(path_type=Path))
@_SELECTION
@_RULE
@click.option("--readout", type=click.Choice(["letter", "answer"]),
              help="[default: what the study was run for]")  # fmt: skip
@shared("json")
def summarize(log: Path, **options: Any) -> None:
    """Summarise a LOG (jobs.jsonl, or its folder) again; nothing is trained.

    Writes summary.csv and summary.json beside the log.
    """
    from lensaudit.cli.retraining import summarize_log

    summarize_log(log, **options)


@rtt.command()
@click.argument("data")
@_data_options
@click.option("--model", help="Check the option letters against its tokenizer.")
@click.option("--write", type=click.Path(path_type=Path, file_okay=False),
              help="Folder to write the splits to.")  # fmt: skip
@shared("registry", "json")
def validate(data: str, **options: Any) -> None:
    """Load DATA and list what is wrong with it; exit code 4 if a run would refuse it.

    DATA is a folder of splits, a forget set's name, or a file, as for `rtt run --data`.
    """
    check_names([options["model"]], options["registry"])
    from lensaudit.cli.retraining import validate_data

    validate_data(data, **options)
