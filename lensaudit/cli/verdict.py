"""`lensaudit verdict`: what may be said of a model after all that was measured?"""

from pathlib import Path

import click

from lensaudit.cli.options import shared
from lensaudit.cli.terminal import emit, say, tell
from lensaudit.errors import InputError, VerificationError


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--gate",
    "policy",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML: what must hold for a model to pass; exit code 4 if one does not.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown", "junit", "github"]),
    help="Of what --gate says. [default: text]",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Of `gym table --calibration`. [default: the one that is shipped]",
)
@shared("json")
def verdict(
    runs: tuple[Path, ...],
    policy: Path | None,
    form: str | None,
    calibration: Path | None,
    as_json: bool,
) -> None:
    """One verdict a model, from all that was measured of it.

    RUNS: folders of results, looked into to any depth. Nothing that lies beside a model changes
    what is said of it.
    """
    from lensaudit.screen.gate import FORMATS
    from lensaudit.screen.verdict import sentences
    from lensaudit.verdict.collect import verdicts
    from lensaudit.verdict.gate import gate, read_policy

    if form and policy is None:
        raise InputError("--format: is of what a gate says; name a policy with --gate")
    if policy is not None:
        asked = read_policy(policy)
        found = gate(verdicts(runs, calibration), asked)
        say(FORMATS[form or ("json" if as_json else "text")](found))
        if not found.passed:
            failed = [one for one in found.models if not one.passed]
            raise VerificationError(f"{len(failed)} of {len(found.models)} fail the gate")
        return
    judged = verdicts(runs, calibration)
    if as_json:
        emit(judged.document())
    else:
        tell(sentences(judged))
