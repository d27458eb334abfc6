"""`lensaudit verdict`: what may be said of a model after all that was measured?"""

from pathlib import Path

import click

from lensaudit.cli.options import shared
from lensaudit.cli.terminal import emit, tell
from lensaudit.errors import VerificationError


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--gate",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML: which verdicts pass; exit code 4 if one does not.",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Of `gym table --calibration`. [default: the one that is shipped]",
)
@shared("json")
def verdict(
    runs: tuple[Path, ...], gate: Path | None, calibration: Path | None, as_json: bool
) -> None:
    """One verdict a model, from all that was measured of it.

    RUNS: folders of patch, audit and rtt. Views are grouped by what they read, each group has one
    voice, and what disagrees is printed.
    """
    from lensaudit.gym.verdict import read_gate, verdicts
    from lensaudit.screen.verdict import sentences

    policy = None if gate is None else read_gate(gate)
    found = verdicts(runs, calibration)
    if as_json:
        emit([one.document() for one in found])
    else:
        tell(sentences(found))
    problems = [problem for one in found if policy and (problem := policy.problem(one))]
    if problems:
        raise VerificationError(f"{len(problems)} of {len(found)} fail the gate\n{problems[0]}")
