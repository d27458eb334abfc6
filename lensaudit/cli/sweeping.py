"""`lensaudit sweep`: many checkpoints, one plan."""

from pathlib import Path
from typing import Any

import click

from lensaudit.cli.activations import ByteSize
from lensaudit.cli.options import BatchSize, shared

FOLDER = click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def sweep() -> None:
    """Audit many checkpoints: plan, run on any engine, look, collect.

    A unit is one checkpoint in one variant with all its scores. Finished units are never done
    again, failed ones never look finished. Exit code 3: some units failed, they are named.
    """


@sweep.command("plan")
@click.argument("models", nargs=-1)
@click.option(
    "--models", "files", type=_FILE, multiple=True, help="List of names, one per line. Repeatable."
)
@click.option(
    "--variants", default="base", show_default=True,
    help="base, nf4, int8, relearn-1ep; with commas.",
)  # fmt: skip
@click.option("--full", help="Model patched into. [default: full, or demo/full]")
@click.option("--retain", help="Model that never saw the forget set. [default: retain]")
@click.option("--metrics", default="all", show_default=True, help="Names with commas, or all.")
@click.option("--lens", is_flag=True, help="Logit Lens depth beside UDS.")
@click.option("--suite", type=click.Choice(["tofu", "muse"]), default="tofu", show_default=True)
@click.option(
    "--data", metavar="DIR|NAME", help="As in `lensaudit eval`. [default: demo for demo/… models]"
)
@click.option("--forget-split", default="forget10", show_default=True)
@click.option("--forget", type=_FILE, help="Own forget rows, with prefix and entity for UDS.")
@click.option("--holdout", type=_FILE, help="Own rows the model never saw.")
@click.option("--retain-set", type=_FILE, help="Own rows that should be kept.")
@click.option("--question-key", default="question", show_default=True)
@click.option("--relearn-on", metavar="NAME|FILE", help="Rows relearned. [default: the forget set]")
@click.option("--max-new-tokens", type=click.IntRange(min=1), help="[default: the suite's]")
@click.option("--classifier", help="Text classifier whose class 0 is clean text.")
@click.option("--mask", type=click.Choice(["true", "upstream"]), default="true", show_default=True)
@click.option("--batch-size", type=BatchSize(), default="auto", show_default=True)
@shared("limit", "registry", "dtype", "device", "attn", "memory")
@click.option("--out", "-o", type=click.Path(path_type=Path), required=True, help="Sweep folder.")
@shared("json", "dry_run")
def plan(models: tuple[str, ...], files: tuple[Path, ...], **options: Any) -> None:
    """Write the plan of a sweep: MODELS are names, folders, patterns or role:NAME.

    idknll_*_ep10 is a pattern, role:pool_knows all of a role. The anchors are added. A plan never
    changes; the same command gives the same plan.
    """
    from lensaudit.cli.sweeps import make

    make(models, files, **options)


@sweep.command("run")
@FOLDER
@click.option(
    "--engine", type=click.Choice(["serial", "pool", "ray", "slurm"]), default="serial",
    show_default=True, help="Here one by one, local processes, Ray, or Slurm through submitit.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(min=1), help="At once. [default: one per GPU or 4 cores]"
)
@click.option("--gpus", help="pool: indices with commas, e.g. 0,1.")
@click.option("--per-gpu", type=click.IntRange(min=1), default=1, show_default=True,
              help="Workers that share a GPU, each with its part of the memory.")  # fmt: skip
@click.option("--address", help="ray: the cluster's address. [default: a new one on this machine]")
@click.option(
    "--slurm", "slurm", multiple=True, metavar="KEY=VALUE",
    help="slurm: parameters for submitit, e.g. slurm_partition=a100. Repeatable.",
)  # fmt: skip
@click.option(
    "--cluster", type=click.Choice(["slurm", "local", "debug"]), default="slurm",
    show_default=True, help="slurm: where submitit runs jobs; local needs no Slurm.",
)  # fmt: skip
@click.option("--max-hours", type=click.FloatRange(min=0, min_open=True),
              help="Stop after the pass that is running then.")  # fmt: skip
@click.option("--quota", type=ByteSize(), help="Fetched weights at most. [default: 4 checkpoints]")
@click.option("--offline", is_flag=True, help="Fetch nothing; `sweep fetch` was run before.")
@shared("json", "dry_run")
def run(folder: Path, as_json: bool, dry_run: bool, **options: Any) -> None:
    """Do what is left of a sweep. Run it again after an interruption, or beside another run."""
    from lensaudit.cli.sweeps import dry, go

    if dry_run:
        dry(folder, as_json=as_json)
    else:
        go(folder, as_json=as_json, **options)


@sweep.command("status")
@FOLDER
@click.option("--watch", is_flag=True, help="Again every 10 seconds until nothing runs.")
@shared("json")
def status(folder: Path, watch: bool, as_json: bool) -> None:
    """Say how many units are done, running, failed and left, and why some failed."""
    from lensaudit.cli.sweeps import show_status

    show_status(folder, watch=watch, as_json=as_json)


@sweep.command("retry")
@FOLDER
@click.argument("models", nargs=-1)
@click.option("--redo", is_flag=True, help="Finished units of MODELS too: their results go.")
def retry(folder: Path, models: tuple[str, ...], redo: bool) -> None:
    """Let failed units be tried again by the next run: all, or those of MODELS."""
    from lensaudit.cli.sweeps import set_back

    set_back(folder, models, redo=redo)


@sweep.command("collect")
@FOLDER
@click.option("--out", "-o", type=click.Path(path_type=Path), help="[default: FOLDER/results]")
@click.option("--allow-missing", is_flag=True, help="Go on where planned units have no result.")
@shared("json")
def collect(folder: Path, out: Path | None, allow_missing: bool, as_json: bool) -> None:
    """Write one table of all numbers, and the folders that `meta` and `report` read."""
    from lensaudit.cli.sweeps import gather

    gather(folder, out, allow_missing=allow_missing, as_json=as_json)


@sweep.command("gc")
@FOLDER
@click.option("--others", is_flag=True, help="Results of other plans too.")
@shared("dry_run")
def gc(folder: Path, others: bool, dry_run: bool) -> None:
    """Remove leftovers of finished units and dead workers; results stay."""
    from lensaudit.cli.sweeps import clean

    clean(folder, others=others, dry_run=dry_run)


@sweep.command("fetch")
@FOLDER
@click.option("--quota", type=ByteSize(), help="At most. [default: all that is needed]")
def fetch(folder: Path, quota: int | None) -> None:
    """Fetch the checkpoints of all units that are left, for `run --offline` without a network."""
    from lensaudit.cli.sweeps import fetch_all

    fetch_all(folder, quota)


@sweep.command("verify")
@FOLDER
@click.option("--sample", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--tolerance", type=click.FloatRange(min=0), help="[default: by dtype]")
@shared("json")
def verify(folder: Path, sample: int, seed: int, tolerance: float | None, as_json: bool) -> None:
    """Compute random finished units again from nothing and compare. Exit code 4: they differ."""
    from lensaudit.cli.sweeps import check_again

    check_again(folder, sample=sample, seed=seed, tolerance=tolerance, as_json=as_json)
