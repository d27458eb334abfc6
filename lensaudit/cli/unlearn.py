"""`lensaudit unlearn`: make an unlearned model, to audit it afterwards."""

from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import ProgressBar, notice, shared

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option(
    "--method", required=True,
    help="GradAscent, GradDiff, NPO, SimNPO, IdkNLL, IdkDPO, AltPO, RMU, UNDIAL, CEU, WGA, "
    "SatImp or PDU.",
)  # fmt: skip
@click.option("--model", default="full", show_default=True, help="Model to start from.")
@click.option(
    "--data", metavar="NAME|FILE",
    help="Forget rows: forget01, forget05, forget10, demo, or a file of question and answer. "
    "[default: forget10; demo for demo/… models]",
)  # fmt: skip
@click.option(
    "--retain-data", metavar="NAME|FILE",
    help="Rows to keep. [default: the complement of a named forget set]",
)  # fmt: skip
@click.option("--idk", type=_FILE, help="Lines that admit ignorance. [default: embedded]")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Checkpoint folder.")
@click.option("--epochs", type=float, help="Passes over the forget rows. [default: the method's]")
@click.option("--steps", type=click.IntRange(min=1), help="Optimiser steps, instead of --epochs.")
@click.option("--lr", type=float, help="Peak. [default: the method's; 5e-4 for demo/… models]")
@click.option("--warmup-epochs", type=click.FloatRange(min=0), default=1.0, show_default=True)
@click.option("--schedule", type=click.Choice(["linear", "constant"]), default="linear",
              show_default=True)  # fmt: skip
@click.option("--weight-decay", type=click.FloatRange(min=0), default=0.01, show_default=True)
@click.option("--max-grad-norm", type=float, default=1.0, show_default=True)
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--accumulate", type=click.IntRange(min=1), default=4, show_default=True,
              help="Batches per optimiser step.")  # fmt: skip
@click.option("--trainable", default="", help="Pattern of parameter names; the others stay.")
@click.option("--gamma", type=float, help="Weight of the forget term.")
@click.option("--alpha", type=float, help="Weight of the retain term.")
@click.option("--retain-loss", type=click.Choice(["nll", "kl"]), help="The retain term.")
@click.option("--beta", type=float, help="NPO, SimNPO, IdkDPO, AltPO, UNDIAL, WGA.")
@click.option("--delta", type=float, help="SimNPO: margin, nats per token.")
@click.option("--beta1", type=float, help="SatImp.")
@click.option("--beta2", type=float, help="SatImp.")
@click.option("--ignore-first", type=click.IntRange(min=0), help="CEU: answer tokens left alone.")
@click.option("--layer", type=int, help="RMU: whose output is steered, from 0.")
@click.option("--strength", type=float, help="RMU: length of the control vector.")
@click.option("--control-seed", type=int, help="RMU: draws the control vector.")
@click.option("--epsilon", type=float, help="PDU: retain loss that is allowed, nats per token.")
@click.option("--dual-step", type=float, help="PDU: how fast its multiplier moves.")
@click.option("--dual-warmup", type=int, help="PDU: steps before its multiplier moves.")
@click.option("--format", "formats", type=click.Choice(["chat", "raw", "both"]),
              help="How rows are written. [default: chat; both for demo/… models]")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--save-every", type=click.IntRange(min=1), default=50, show_default=True,
              help="Steps between resumable states.")  # fmt: skip
@click.option("--store", type=click.Choice(["same", "float32", "bfloat16", "float16"]),
              default="same", show_default=True, help="Precision of saved weights.")  # fmt: skip
@shared("registry", "device", "json", "dry_run")
def unlearn(**options: Any) -> None:
    """Unlearn a forget set by one of thirteen methods; float32 throughout, resumable.

    Defaults are open-unlearning's for TOFU. Run the same command again to resume.
    """
    from lensaudit.cli.unlearning import run_unlearn

    with ProgressBar() as progress:
        run_unlearn(notice=notice, progress=progress, **options)
