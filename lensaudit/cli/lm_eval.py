"""`lensaudit lm-eval`: what can a model still do? lm-evaluation-harness, in memory."""

import os
from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import check_names, notice, shared


@click.command("lm-eval")
@click.option("--model", required=True, help="Name, Hub id[@revision], folder or base+adapter.")
@click.option("--tasks", required=True, help="Names with commas.")
@click.option("--include", type=click.Path(path_type=Path, file_okay=False),
              help="Folder of own task files (YAML).")  # fmt: skip
@click.option("--num-fewshot", type=click.IntRange(min=0), help="[default: the task's]")
@click.option("--batch-size", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--apply-chat-template", is_flag=True, help="Ask through the chat template.")
@click.option("--fewshot-as-multiturn", is_flag=True, help="Few-shot examples as turns.")
@click.option("--system-instruction", help="System text.")
@click.option("--gen-kwargs", help="For generations: max_gen_toks=32,temperature=0.")
@click.option("--max-length", type=click.IntRange(min=1), help="Context. [default: the model's]")
@click.option("--seed", type=click.IntRange(min=0), default=1234, show_default=True)
@click.option("--quantize", type=click.Choice(["nf4", "int8"]), help="Round the weights first.")
@click.option("--steer", type=click.Path(path_type=Path, dir_okay=False), metavar="VECTOR",
              help="Steer by a vector of `steer extract`, at every position.")  # fmt: skip
@click.option("--coefficient", type=float, default=1.0, show_default=True, help="Of --steer.")
@click.option("--ablate", is_flag=True, help="Remove the direction of --steer instead.")
@shared("limit", "registry", "dtype", "device", "attn")
@click.option("--out", type=click.Path(path_type=Path),
              help="[default: experiments/out/<model>-lm-eval]")  # fmt: skip
@shared("json")
def lm_eval(model: str, **options: Any) -> None:
    """Run tasks of lm-evaluation-harness on a model as it is, quantised or steered.

    Every argument reaches the harness. Local task files and data need no network. Results hold
    versions, sample counts and settings; a task that was run the same way is not run again.
    """
    check_names([model], options["registry"])
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported
    from lensaudit.cli.lm_evals import run_lm_eval

    run_lm_eval(model, notice=notice, **options)
