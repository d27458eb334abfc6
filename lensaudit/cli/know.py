"""`lensaudit know`: which values does a model bind to which subjects?"""

from pathlib import Path
from typing import Literal

import click

from lensaudit.association.settings import KnowSettings
from lensaudit.cli.options import options, result_folder, shared
from lensaudit.cli.project import is_typed
from lensaudit.cli.terminal import ProgressBar, answer, emit, notice, say, written
from lensaudit.errors import InputError


@click.command()
@shared("source or address")
@options(KnowSettings)
@result_folder("experiments/out/know-<source>")
@shared("json", "dry_run")
def know(
    source: str, settings: KnowSettings, out: Path | None, as_json: bool, dry_run: bool
) -> None:
    """Test exactly whether values are bound to subjects; needs no model that never knew.

    Facts asked in one way about different subjects are put to the model with every subject's name
    and every subject's value. Writes facts.csv, relations.csv, layers.csv, matrix.json,
    summary.json and manifest.json. Exits 0 whatever is found. A model behind an OpenAI-compatible
    address is asked by log-probabilities of prompts, or by samples.
    """
    from lensaudit.association.run import know_into, plan_know
    from lensaudit.screen.know import of_know

    if "://" in source and not is_typed("source"):
        raise InputError("an address is sent questions: say --source on the command line")
    if dry_run:
        say(plan_know(source, settings, notice=notice).text())
        return
    with ProgressBar() as bar:
        found = know_into(source, settings, out, notice=notice, progress=bar.tell)
    document = {"out": str(found.folder), **found.summary}
    answer(document, of_know(found.summary), found.folder, as_json=as_json)


@click.group()
def canaries() -> None:
    """Invented people, of whom a coin decided who was taught: an exact test of forgetting."""


@canaries.command()
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="New folder.")
@click.option("--people", default=40, show_default=True, help="How many; half are to be taught.")
@click.option("--seed", type=int, help="Of the draw. [default: one that nobody knows]")
def draw(out: Path, people: int, seed: int | None) -> None:
    """Write people.json (all), taught.json (to train on) and key.json (the sealed coins)."""
    from lensaudit.association.canaries import draw_canaries

    say(f"seal: {draw_canaries(out, people=people, seed=seed)}")
    written(out)


@canaries.command("test")
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@click.option("--canaries", "folder", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--seal", required=True, help="As `canaries draw` printed it.")
@click.option("--score", default="bits_familiar", show_default=True, help="Column, e.g. uds.")
@click.option("--side", type=click.Choice(["higher", "lower"]), default="higher", show_default=True)
@shared("json")
def test_(
    results: Path,
    folder: Path,
    seal: str,
    score: str,
    side: Literal["higher", "lower"],
    as_json: bool,
) -> None:
    """Compare taught people with the others in RESULTS: exact, whatever the score."""
    from lensaudit.association.canaries import open_canaries

    found = open_canaries(folder, results, seal=seal, score=score, side=side)
    if as_json:
        emit(vars(found))
        return
    say(
        f"{found.score}: {found.n_taught} taught people {found.taught:.3f}, "
        f"{found.n_people - found.n_taught} others {found.others:.3f}, p {found.p:.2g}"
    )
