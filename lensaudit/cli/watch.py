"""`lensaudit watch`: audit a training run while it trains."""

from pathlib import Path

import click

from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import emit, notice, say, written
from lensaudit.screen.cells import number
from lensaudit.sweep.settings import WatchSettings


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@options(WatchSettings)
@shared("json")
def watch(settings: WatchSettings, as_json: bool) -> None:
    """Audit each new checkpoint-N, step_N or epoch-N under FOLDER as it appears.

    Keeps curve.csv and curve.json: UDS, erasure, utility and the other metrics by step. Run it
    again to go on; what is audited is not audited again.
    """
    from lensaudit.sweep.watch import CURVE, follow_run

    curve = follow_run(settings, notice)
    if as_json:
        emit(curve.rows)
        return
    for one in curve.rows:
        shown = [f"{key} {number(one[key])}" for key in CURVE if one.get(key) is not None]
        say(f"step {one['step']}: {one['failure'] or ', '.join(shown)}")
    written(curve.folder)
