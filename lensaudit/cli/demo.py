"""`lensaudit demo`: the embedded family, audited from nothing."""

from pathlib import Path

import click

from lensaudit.cli.options import ProgressBar, notice, shared
from lensaudit.cli.terminal import emit, tell


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
    from lensaudit.auditing.demo import demo_into
    from lensaudit.screen.demo import of_demo

    with ProgressBar() as bar:
        found = demo_into(out, activations=activations, notice=notice, progress=bar.tell)
    if as_json:
        results = found.patched.results
        emit([{**one.summary, "answers": found.answers[one.source]} for one in results])
    else:
        tell(of_demo(found))
