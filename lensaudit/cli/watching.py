"""`lensaudit watch`: audit a training run while it trains."""

import time
from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import BatchSize, notice, shared


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--full", help="Model patched into. [default: full, or demo/full with --data demo]")
@click.option("--retain", help="Model that never saw the forget set. [default: retain]")
@click.option("--metrics", default="all", show_default=True, help="Names with commas, or all.")
@click.option("--data", metavar="DIR|NAME", help="As in `lensaudit eval`.")
@click.option("--forget", type=click.Path(path_type=Path, dir_okay=False), help="Own forget rows.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), help="[default: the suite's]")
@click.option(
    "--batch-size", type=BatchSize(), default="auto", show_default=True, help="Texts per batch."
)
@shared("limit", "registry", "dtype", "device", "memory")
@click.option("--every", type=click.FloatRange(min=0.1), default=30.0, show_default=True,
              help="Seconds between looks.")  # fmt: skip
@click.option("--settled", type=click.FloatRange(min=0), default=5.0, show_default=True,
              help="Seconds a checkpoint must be unchanged.")  # fmt: skip
@click.option("--once", is_flag=True, help="Audit what is there and end.")
@click.option("--max-hours", type=click.FloatRange(min=0), help="End after so long.")
@click.option("--out", type=click.Path(path_type=Path),
              help="[default: experiments/out/watch-<folder>]")  # fmt: skip
@shared("json")
def watch(
    folder: Path,
    every: float,
    settled: float,
    once: bool,
    max_hours: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Audit each new checkpoint-N, step_N or epoch-N under FOLDER as it appears.

    Keeps curve.csv and curve.json: UDS, erasure, utility and the other metrics by step. Run it
    again to go on; what is audited is not audited again.
    """
    from lensaudit.cli.watches import run_watch

    end = time.monotonic() + 3600 * max_hours if max_hours is not None else None

    def follow() -> bool:
        return not once and (end is None or time.monotonic() < end)

    run_watch(folder, follow, every, settled, as_json=as_json, notice=notice, **options)
