"""`lensaudit report`: results on disk become one page."""

from pathlib import Path

import click

from lensaudit.cli.options import shared
from lensaudit.cli.terminal import notice, say, written


@click.command()
@click.argument(
    "results", nargs=-1, required=True, metavar="RESULTS…", type=click.Path(path_type=Path)
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("audit.html"),
    show_default=True,
    help="The page.",
)
@click.option("--title", help="Heading of the page. [default: what was audited]")
@click.option(
    "--data",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Forget set, for questions that older results do not hold.",
)
@click.option(
    "--figures",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also pictures (PDF, PNG) and LaTeX tables, for a paper.",
)
@shared("force")
def report(
    results: tuple[Path, ...],
    out: Path,
    title: str | None,
    data: Path | None,
    figures: Path | None,
    force: bool,
) -> None:
    """Write one HTML page of everything found in the RESULTS folders.

    The page needs no network, no server and no lensaudit: send it to a colleague. It holds the
    questions and answers of the forget set.
    """
    from lensaudit.data.facts import load_facts
    from lensaudit.report.render import write_report

    examples = load_facts(data) if data else []
    for one in write_report(results, out, title=title, examples=examples, force=force):
        notice(f"left out {one.path}: {one.reason}")
    written(out)
    if figures is not None:
        from lensaudit.report.figures import write_figures

        made = write_figures(results, figures, force=force)
        say(f"written: {figures} ({len(made)} files)")
