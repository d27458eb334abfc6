"""`lensaudit gym`: which auditor is right about models whose truth is planted?"""

from pathlib import Path

import click

from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import emit, notice, say, tell
from lensaudit.gym.settings import (
    GymTableSettings,
    MakeSettings,
    ScoreSettings,
    SubmitSettings,
    gym_folder,
)


@click.group()
def gym() -> None:
    """Judge auditors on models whose truth is planted and proven."""


@gym.command("ls")
@options(MakeSettings, "mechanism", "seeds", "first_seed", "own")
@shared("json")
def ls(settings: MakeSettings, as_json: bool) -> None:
    """List the models that `gym make` plants: mechanism, truth, strength and seed."""
    from lensaudit.gym.make import listing
    from lensaudit.screen.gym import of_plan

    found = listing(settings)
    if as_json:
        emit([one.document() for one in found])
        return
    tell(of_plan(found))


@gym.command()
@options(MakeSettings)
@shared("json")
def make(settings: MakeSettings, as_json: bool) -> None:
    """Plant models into a pair, with a certificate of truth each; those there are kept.

    Seed 0 plants into the pair as it is; each further seed retrains both anchors and all that is
    trained. A model whose certificate fails is named, is not scored, and the exit code is 4.
    """
    from lensaudit.gym.make import make as made

    found = made(settings, notice=notice)
    if as_json:
        emit([one.document() for one in found])
        return
    for one in found:
        say(f"{one.folder}: {one.truth}; {one.certificate.kind}: {one.certificate.says}")


@gym.command()
@options(ScoreSettings)
@shared("json")
def score(settings: ScoreSettings, as_json: bool) -> None:
    """Let auditors judge the planted models; what is judged already is kept."""
    from lensaudit.gym.scoring import score as scored

    found = scored(settings, notice=notice)
    if as_json:
        emit({"ledger": str(found.path), "new": found.n_new, "left": found.n_left})
        return
    left = f", {found.n_left} left to do" if found.n_left else ""
    say(f"{found.path}: {found.n_new} new scores{left}")


@gym.command("table")
@options(GymTableSettings)
@shared("json")
def table_(settings: GymTableSettings, as_json: bool) -> None:
    """Judge the auditors: by mechanism, left out in turn, held out, fact by fact."""
    from lensaudit.gym.errors import document, text
    from lensaudit.gym.table import rows_of

    rows = rows_of(gym_folder(settings.gym), settings.limit)
    found = document(rows, calibration=settings.calibration, picture=settings.picture)
    if as_json:
        emit(found.content)
        return
    say(text(found))


@gym.command()
@click.argument("recipe", type=click.Path(path_type=Path, dir_okay=False))
@options(SubmitSettings)
@shared("json")
def submit(settings: SubmitSettings, recipe: Path, as_json: bool) -> None:
    """Try to fool the auditors: RECIPE is a Python file with own recipes, and is run.

    A recipe enters the next version if its certificate holds and the best auditor is fooled by a
    model as useful as full.
    """
    from lensaudit.gym.submit import submit as submitted
    from lensaudit.screen.gym import of_submission

    found = submitted(settings, recipe, notice=notice)
    if as_json:
        emit([one.document() for one in found])
        return
    tell(of_submission(found))
