"""`lensaudit meta`: which metric can be trusted?"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import BatchSize, Command, shared


@click.group()
def meta() -> None:
    """Judge the metrics themselves, over many models."""


def _paths() -> click.Path:
    return click.Path(path_type=Path)


def _given(name: str, text: str) -> Callable[[Command], Command]:
    return click.option(f"--{name}", multiple=True, type=_paths(), metavar="PATH", help=text)


_METRIC = click.option(
    "--metric", "metrics", multiple=True, metavar="NAME",
    help="Only this metric: uds, es … or a name of lensaudit eval. Repeatable. [default: all 22]",
)  # fmt: skip
_NO_FLUENCY = click.option(
    "--no-fluency", is_flag=True, help="Utility is the model utility alone: nothing was rated."
)


def measuring(command: Command) -> Command:
    """Options that say how models without results are measured."""
    options = [
        click.option("--full", help="Model patched into. [default: full, or demo/full]"),
        click.option("--retain", help="Model that never knew. [default: retain, or demo/retain]"),
        click.option("--data", metavar="DIR|NAME", help="As in lensaudit eval."),
        click.option("--forget", type=_paths(), help="Own forget rows, as in lensaudit eval."),
        click.option("--holdout", type=_paths(), help="Own rows the models never saw."),
        click.option("--classifier", help="Text classifier whose class 0 is clean text."),
        click.option("--batch-size", type=BatchSize(), default="auto", show_default=True),
        click.option("--max-new-tokens", type=click.IntRange(min=1)),
        shared("dtype", "device", "attn", "limit", "registry", "activations"),
        click.option(
            "--run", is_flag=True, help="Measure what results lack. Without results: always."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@meta.command()
@click.option(
    "--pool-knows", "knows", multiple=True, required=True, metavar="NAMES",
    help="Models that know, comma-separated or repeated; published: the 30 of TOFU.",
)  # fmt: skip
@click.option(
    "--pool-forgot", "forgot", multiple=True, required=True, metavar="NAMES",
    help="Models that never knew; published: the 30 of TOFU.",
)  # fmt: skip
@_METRIC
@_given("results", "Folder or file of values; repeatable. Without: every model is measured.")
@measuring
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True,
    help="Of the bootstrap.",
)  # fmt: skip
@click.option("--out", type=_paths(), default=Path("experiments/out/meta"), show_default=True)
@shared("json", "dry_run")
def faithfulness(**options: Any) -> int:
    """Does a metric tell models that know from models that do not? AUC over two pools.

    Models are measured one at a time and finished ones are not measured again. A model that
    cannot be measured stays to do: it is named, no AUC is given without it, and the exit code is 3.
    """
    from lensaudit.cli.meta_runs import run_faithfulness

    return run_faithfulness(**options)


@meta.command()
@click.option(
    "--models", multiple=True, required=True, metavar="NAMES",
    help="Unlearned models, comma-separated or repeated; results: all in --before.",
)  # fmt: skip
@click.option("--attack", type=click.Choice(["quantize", "relearn"]), required=True)
@click.option(
    "--faithfulness", "thresholds", metavar="FILE|published",
    help="Thresholds of the model filter: faithfulness.json, or the printed ones.",
)  # fmt: skip
@click.option("--form", type=click.Choice(["symmetric", "recovery", "as_written"]),
              default="symmetric", show_default=True,
              help="Of the paper; one-sided, before/after; one-sided, after/before.")  # fmt: skip
@click.option(
    "--filter", "by", type=click.Choice(["both", "utility", "none"]), default="both",
    show_default=True, help="Use models above utility 0.8 and past the threshold.",
)  # fmt: skip
@_METRIC
@_given("before", "Results before the attack. Repeatable.")
@_given("after", "Results after it, under the same model names. Repeatable.")
@measuring
@_NO_FLUENCY
@click.option("--relearn-data", metavar="NAME|FILE", help="[default: --forget, demo or forget10]")
@click.option("--relearn-lr", type=float, help="[default: 2e-5; 1e-3 for --data demo]")
@click.option("--keep", is_flag=True, help="Keep attacked checkpoints.")
@click.option("--out", type=_paths(), default=Path("experiments/out/meta"), show_default=True)
@shared("json", "dry_run")
def robustness(**options: Any) -> int:
    """Does a metric survive quantisation or relearning? Its stability over models that forgot.

    Every metric is judged on the models its own filter leaves; n is always shown, and the value on
    the models that all metrics share.
    """
    from lensaudit.cli.meta_runs import run_robustness

    return run_robustness(**options)


@meta.command()
@click.argument("results", nargs=-1, required=True, type=_paths())
@click.option("--full", help="Whose utility is 1. [default: full, or demo/full]")
@click.option("--retain", help="Whose attack AUCs s_MIA is made with. [default: retain]")
@_NO_FLUENCY
@click.option("--out", type=_paths(), help="Folder for aggregate.json and aggregate.csv.")
@shared("json")
def aggregate(**options: Any) -> None:
    """Memorisation, privacy, utility and overall of every model; methods ranked.

    RESULTS: folders of lensaudit eval and patch, ep5/ and ep10/ of the UDS repository, or
    method_results.json.
    """
    from lensaudit.cli.meta_runs import run_aggregate

    run_aggregate(**options)


@meta.command()
@click.argument("results", nargs=-1, required=True, type=_paths())
@click.option("--out", type=_paths(), help="Folder for meta_table.json and meta_table.csv.")
@shared("json")
def table(**options: Any) -> None:
    """One table of all metrics: faithfulness, quantisation, relearning, robustness, overall.

    RESULTS: folders of meta faithfulness and robustness, their files, or meta_eval.json.
    """
    from lensaudit.cli.meta_runs import run_table

    run_table(**options)
