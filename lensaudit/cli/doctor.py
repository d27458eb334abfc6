"""`lensaudit doctor`: is this installation fit for use?"""

from pathlib import Path

import click

from lensaudit.cli.options import ModelName, check_names, shared


@click.command()
@click.option(
    "--model", type=ModelName(), default="demo/full", show_default=True,
    help="Compare the bridge with Hugging Face on this model.",
)  # fmt: skip
@shared("registry", "dtype", "device", "activations", "json")
def doctor(model: str, registry: Path | None, **options) -> None:
    """Check versions, device, disk, caches, and that the bridge computes what Hugging Face does.

    Exit code 4 if a check fails; notes do not fail. `lensaudit activations verify` reads every
    byte of the caches, doctor only their listings.
    """
    check_names([model], registry)
    from lensaudit.cli.checkup import examine

    examine(model, registry=registry, **options)
