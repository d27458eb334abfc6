"""`lensaudit cache`: run a model once and keep its residual streams."""

from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import ModelName, ProgressBar, check_names, shared


@click.command()
@click.option(
    "--model", "name", type=ModelName(), required=True, help="Name, Hub id[@revision] or folder."
)
@click.option(
    "--positions",
    type=click.Choice(["span", "all"]),
    default="span",
    show_default=True,
    help="The read positions and the last prompt token, or every token.",
)
@shared(
    "data", "exclude", "limit", "registry", "dtype", "device", "attn", "batch_size", "memory",
    "activations", "json", "dry_run",
)  # fmt: skip
def cache(name: str, activations: Path, **options: Any) -> None:
    """Cache the residual stream after every block, with run_with_cache, as HDF5.

    A cache is found again by its content: weights, tokenizer, examples, type, attention. With a
    complete cache nothing is loaded.
    """
    check_names([name], options["registry"])
    from lensaudit.cli.caches import cache_model

    with ProgressBar() as progress:
        cache_model(name, root=activations, progress=progress, **options)
