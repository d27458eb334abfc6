"""`lensaudit gym`: which auditor is right about models whose truth is planted?"""

import click

from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import emit, notice, row, say, show, table
from lensaudit.gym.settings import MakeSettings, ScoreSettings, TableSettings


@click.group()
def gym() -> None:
    """Judge auditors on models whose truth is planted and proven."""


@gym.command("ls")
@options(MakeSettings, "mechanism", "seeds", "first_seed", "own")
@shared("json")
def ls(settings: MakeSettings, as_json: bool) -> None:
    """List the models that `gym make` plants: mechanism, truth, strength and seed."""
    from lensaudit.gym.make import listing

    found = listing(settings)
    if as_json:
        emit([one.document() for one in found])
        return
    columns = ["mechanism", "truth", "strength", "seed", "split", "how"]
    shown = table("", columns, left=("mechanism", "truth", "split", "how"))
    for one in found:
        strength = f"{one.strength:g} {one.unit}" if one.unit else ""
        split = "held out" if one.held_out else "tune"
        row(shown, one.mechanism, one.truth, strength, str(one.seed), split, one.how)
    show(shown)


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
@options(TableSettings)
@shared("json")
def table_(settings: TableSettings, as_json: bool) -> None:
    """Judge the auditors: by mechanism, left out in turn, held out, fact by fact."""
    from lensaudit.gym.scoring import rows_of
    from lensaudit.gym.table import markdown
    from lensaudit.gym.table import table as judged

    found = judged(rows_of(settings.gym, settings.limit))
    if settings.picture is not None:
        from lensaudit.gym.picture import heat_map

        heat_map(found, settings.picture)
    if as_json:
        emit([one.document() for one in found])
        return
    say(markdown(found))
