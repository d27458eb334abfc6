"""`lensaudit demo`: the embedded family, audited from nothing."""

from pathlib import Path

import click

from lensaudit.cli.options import ProgressBar, notice, shared


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("experiments/out/demo"),
    show_default=True,
    help="Result folder.",
)
@shared("activations", "json")
def demo(out: Path, activations: Path, as_json: bool) -> None:
    """Audit every unlearned model of the embedded family, and say what was found.

    No network and no GPU. The family was trained on fictional authors, so the truth is known.
    """
    from lensaudit.cli.demos import run_demo

    with ProgressBar() as progress:
        run_demo(out, root=activations, as_json=as_json, notice=notice, progress=progress)
