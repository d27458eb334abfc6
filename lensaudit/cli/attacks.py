"""`lensaudit relearn` and `lensaudit quantize`: try to bring forgotten knowledge back."""

from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import ProgressBar, check_names, notice, shared

_STORE = click.option(
    "--store", type=click.Choice(["same", "float32", "bfloat16", "float16"]), default="same",
    show_default=True, help="Precision of saved weights.",
)  # fmt: skip


@click.command()
@click.option("--model", required=True, help="Model to attack: unlearned, or retain.")
@click.option(
    "--data", metavar="NAME|FILE",
    help="Forget rows: forget01, forget05, forget10, demo, or a file of question and answer. "
    "[default: forget10; demo for demo/… models]",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Checkpoint folder.")
@click.option(
    "--audit", is_flag=True,
    help="Score the model and retain before and after; without --out no checkpoint is kept.",
)  # fmt: skip
@click.option("--full", help="Audit: model patched into. [default: full, or demo/full]")
@click.option("--retain", help="Audit: attacked beside the model. [default: retain]")
@click.option("--epochs", type=float, default=1.0, show_default=True, help="Passes over the rows.")
@click.option("--lr", type=float, help="Peak. [default: 2e-5; 1e-3 for demo/… models]")
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--accumulate", type=click.IntRange(min=1), default=4, show_default=True,
              help="Batches per optimiser step.")  # fmt: skip
@click.option("--weight-decay", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--max-grad-norm", type=float, default=1.0, show_default=True)
@click.option("--format", "formats", type=click.Choice(["chat", "raw", "both"]),
              help="How rows are written. [default: chat; both for demo/… models]")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=42, show_default=True)
@click.option("--save-every", type=click.IntRange(min=1), default=50, show_default=True,
              help="Steps between resumable states.")  # fmt: skip
@_STORE
@shared("registry", "device", "dtype", "activations", "json", "dry_run")
def relearn(**options: Any) -> None:
    """Fine-tune a model on the forget answers; float32, resumable.

    One pass, as in the UDS meta-evaluation. With --audit: UDS, probability, exact memorisation and
    extraction strength before and after, of the model and of retain, which had nothing to recover.
    """
    if options["out"] is None and not options["audit"]:
        raise click.UsageError("give --out DIR for the checkpoint, or --audit for the scores alone")
    check_names([options["model"], options["full"], options["retain"]], options["registry"])
    from lensaudit.cli.attacking import run_relearn

    with ProgressBar() as progress:
        run_relearn(notice=notice, progress=progress, **options)


@click.command()
@click.option("--model", required=True, help="Model to quantise.")
@click.option("--method", type=click.Choice(["nf4", "int8"]), default="nf4", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Checkpoint folder.")
@click.option(
    "--engine", type=click.Choice(["auto", "torch", "bitsandbytes"]), default="auto",
    show_default=True, help="What rounds; the numbers are the same.",
)  # fmt: skip
@_STORE
@shared("registry", "device", "json", "dry_run")
def quantize(**options: Any) -> None:
    """Round a model's linear layers to 4 or 8 bits and back; saves an ordinary checkpoint.

    nf4: blocks of 64 scaled by their absolute maximum, without double quantisation; int8: rows.
    Embeddings, norms and the output layer stay. Every other command reads the folder.
    """
    check_names([options["model"]], options["registry"])
    from lensaudit.cli.attacking import run_quantize

    run_quantize(notice=notice, **options)
