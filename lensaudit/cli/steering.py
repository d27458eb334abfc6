"""`lensaudit steer`: find a direction, steer with it, and test what it hides."""

from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import Command, ProgressBar, check_names, notice, shared

_FILE = click.Path(path_type=Path, dir_okay=False)
_OUT = click.Path(path_type=Path, file_okay=False)


def _asking(command: Command) -> Command:
    """Options of both commands that ask a steered model and a judge."""
    for option in reversed(_ASKING):
        command = option(command)
    return command


_ASKING = (
    click.option("--model", "name", required=True, help="Name, Hub id[@revision] or folder."),
    click.option("--trait", required=True, metavar="NAME|FILE", help="What is asked and judged."),
    click.option(
        "--positions", "where", default="all", show_default=True,
        type=click.Choice(["all", "prompt", "response", "last_prompt"]),
        help="Token positions that are steered; response begins at the last prompt token.",
    ),
    click.option("--questions", "n_questions", type=click.IntRange(min=1),
                 help="Only the first N questions."),
    click.option("--temperature", type=click.FloatRange(min=0), default=0.7, show_default=True),
    click.option("--max-new-tokens", type=click.IntRange(min=1), default=256, show_default=True),
    click.option("--seed", type=int, default=0, show_default=True),
    click.option("--judge", required=True, metavar="idk|entity|MODEL",
                 help="Programmatic, or a language model behind --base-url."),
    click.option("--coherence-judge", metavar="variety|MODEL",
                 help="[default: variety for a programmatic judge, else the same model]"),
    click.option("--base-url", help="OpenAI-compatible endpoint of the judge."),
    click.option("--key-env", help="Variable that holds the judge's key."),
    click.option("--key-file", type=_FILE, help="File that holds it, readable by you alone."),
    click.option("--judge-cache", type=_FILE, help="SQLite file of the judge's answers."),
    click.option("--max-calls", type=click.IntRange(min=0), help="Stop before a further call."),
    click.option("--format", "form", type=click.Choice(["auto", "chat", "raw"]), default="auto",
                 show_default=True, help="auto: the chat template where there is one."),
    click.option("--out", type=_OUT, help="[default: experiments/out/steering/<model>/<trait>]"),
)  # fmt: skip


@click.group()
def steer() -> None:
    """Directions of the residual stream: extract, steer and judge, audit.

    Layer L is the output of block L, counted from 0.
    """


@steer.command()
@click.option("--model", "name", required=True, help="Name, Hub id[@revision] or folder.")
@click.option("--trait", required=True, metavar="NAME|FILE", help="confidence, refusal, … or file.")
@click.option("--positive", type=_FILE, help="Own rows of question and answer with the trait.")
@click.option(
    "--negative", type=_FILE, help="Own rows without it, for the same or other questions."
)
@click.option("--method", "methods", multiple=True,
              type=click.Choice(["mean_diff", "probe", "pca", "gradient", "random"]),
              help="Repeatable. [default: mean_diff and probe]")  # fmt: skip
@click.option("--layers", default="all", show_default=True, help="all, 5-13, 3,7,-1 …")
@click.option("--position", type=click.Choice(["response", "prompt_last", "span"]),
              default="response", show_default=True,
              help="Activations at the answer, the last prompt token, or the entity.")  # fmt: skip
@click.option("--rollouts", "n_rollouts", type=click.IntRange(min=1), default=1, show_default=True,
              help="Elicited answers per question and system prompt.")  # fmt: skip
@click.option("--filter", "filter_judge", metavar="none|idk|MODEL", default="none",
              show_default=True, help="Keep pairs that this judge tells apart.")  # fmt: skip
@click.option("--base-url", help="OpenAI-compatible endpoint of the judge.")
@click.option("--key-env", help="Variable that holds the judge's key.")
@click.option("--key-file", type=_FILE, help="File that holds it, readable by you alone.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.7, show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--format", "form", type=click.Choice(["auto", "chat", "raw"]), default="auto",
              show_default=True, help="auto: the chat template where there is one.")  # fmt: skip
@click.option("--out", type=_OUT, help="[default: experiments/out/steering/<model>/<trait>]")
@shared("registry", "dtype", "device", "attn", "batch_size", "activations", "json", "dry_run")
def extract(name: str, **options: Any) -> None:
    """Estimate a direction from answers with and without a trait, at every layer.

    Answers come from the trait's own rows, from --positive and --negative, or are elicited by its
    system prompts. Writes vectors/<method>_layer<L>.safetensors and .json with scores on held-out
    rows. Every vector is as long as the mean difference of its layer.
    """
    check_names([name], options["registry"])
    from lensaudit.cli.steer_runs import run_extract

    with ProgressBar() as progress:
        run_extract(name, notice=notice, progress=progress, **options)


@steer.command("eval")
@_asking
@click.option(
    "--vector", required=True, type=_FILE, help=".safetensors of `steer extract`, or .pt."
)
@click.option("--coefficients", default="0,0.5,1,1.5,2,2.5", show_default=True,
              help="Factors of the vector; 0 is the baseline.")  # fmt: skip
@click.option("--as-ratio", is_flag=True,
              help="Coefficients are lengths in units of the stream's mean length.")  # fmt: skip
@click.option("--rollouts", "n_rollouts", type=click.IntRange(min=1), default=10,
              show_default=True, help="Answers per question and coefficient.")  # fmt: skip
@shared("registry", "dtype", "device", "attn", "batch_size", "memory", "json", "dry_run")
def evaluate(name: str, **options: Any) -> None:
    """Steer by each coefficient and judge the answers; run again to resume.

    Writes responses/coef_*.jsonl, judgements.jsonl and results.json. A row draws the same random
    numbers under every coefficient. The coefficient is chosen on half of the questions and
    reported on the other half.
    """
    check_names([name], options["registry"])
    from lensaudit.cli.steer_runs import run_eval

    with ProgressBar() as progress:
        run_eval(name, notice=notice, progress=progress, **options)


@steer.command()
@_asking
@click.option("--vectors", type=_OUT, help="Folder. [default: vectors/ in --out]")
@click.option(
    "--method", default="mean_diff", show_default=True, help="Which vectors of the folder."
)
@click.option("--layers", default="all", show_default=True, help="all, 5-13, 3,7,-1 …")
@click.option("--ratio", type=float, default=0.5, show_default=True,
              help="Length of what is added, in lengths of the stream.")  # fmt: skip
@click.option("--coefficient", type=float, help="One factor for all layers, in place of --ratio.")
@click.option("--rollouts", "n_rollouts", type=click.IntRange(min=1), default=3,
              show_default=True, help="Answers per question and layer.")  # fmt: skip
@shared("registry", "dtype", "device", "attn", "batch_size", "memory", "json", "dry_run")
def sweep(name: str, **options: Any) -> None:
    """Steer at every layer with one strength and judge the answers; run again to resume.

    Writes responses/layer_*.jsonl and layer_sweep.json. The layer is chosen on half of the
    questions and reported on the other half.
    """
    check_names([name], options["registry"])
    from lensaudit.cli.steer_runs import run_sweep

    with ProgressBar() as progress:
        run_sweep(name, notice=notice, progress=progress, **options)


@steer.command()
@click.option("--source", "name", required=True, help="Unlearned model to look into.")
@click.option("--full", help="Model that knows. [default: full, or demo/full]")
@click.option("--retain", help="Model that never saw the set. [default: retain, or demo/retain]")
@click.option(
    "--experiment", "kinds", multiple=True, type=click.Choice(["add", "ablate", "clamp"]),
    help="Repeatable. [default: all]",
)  # fmt: skip
@shared("data", "exclude", "limit")
@click.option("--retain-data", metavar="NAME|FILE",
              help="Questions that should be kept. [default: demo, or retain90]")  # fmt: skip
@click.option("--n-retain", type=click.IntRange(min=2), default=64, show_default=True,
              help="How many of them, evenly taken.")  # fmt: skip
@click.option("--layers", default="all", show_default=True, help="all, 5-13, 3,7,-1 …")
@click.option("--strengths", default="0.25,0.5,0.75,1,1.25,1.5,2", show_default=True,
              help="ADD: 1 is the exact mean shift.")  # fmt: skip
@click.option("--score", type=click.Choice(["em", "logprob"]), default="em", show_default=True,
              help="What decides: entity tokens right, or their log-prob.")  # fmt: skip
@click.option("--at", type=click.Choice(["prefix", "span"]), default="prefix", show_default=True,
              help="Where directions are read: last prefix token, or the entity's.")  # fmt: skip
@click.option(
    "--positions", "where", type=click.Choice(["response", "all"]), default="response",
    show_default=True, help="ADD and CLAMP: from the last prefix token on, or all.",
)  # fmt: skip
@click.option("--folds", "n_folds", type=click.IntRange(min=2), default=5, show_default=True)
@click.option("--randoms", "n_random", type=click.IntRange(min=1), default=5, show_default=True,
              help="Random directions of equal length per fold.")  # fmt: skip
@click.option("--kl-cap", type=click.FloatRange(min=0), default=0.1, show_default=True,
              help="ABLATE: most that retain answers may change, nats per token.")  # fmt: skip
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=32, show_default=True,
              help="ABLATE: longest free answer.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--format", "form", type=click.Choice(["auto", "chat", "raw"]), default="raw",
              show_default=True, help="How questions without a prefix are asked.")  # fmt: skip
@click.option("--out", type=_OUT, help="[default: experiments/out/steering/<model>/audit]")
@shared("registry", "dtype", "device", "attn", "memory", "activations", "json", "dry_run")
def audit(name: str, full: str | None, retain: str | None, **options: Any) -> None:
    """Is a direction all that hides the answers? Estimated on some authors, scored on others.

    ADD brings full's shift back, ABLATE removes the refusal (or the shift), CLAMP asks whether one
    component is necessary and sufficient. Each beside random directions of equal length, one from
    retain questions, and a model that never saw the answers. Writes interventions.jsonl,
    summary.json and manifest.json; run again to resume.
    """
    check_names([name, full, retain], options["registry"])
    from lensaudit.cli.steer_audits import run_audit

    with ProgressBar() as progress:
        run_audit(name, full=full, retain=retain, progress=progress, **options)
