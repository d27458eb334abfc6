"""`lensaudit effort`: how long must a model be trained until forgotten facts come back?"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lensaudit.attacks.effort.settings import EffortSettings
from lensaudit.cli.options import ProgressBar, check_names, notice, options, shared
from lensaudit.cli.terminal import (
    brief,
    emit,
    name,
    number,
    profile,
    row,
    say,
    show,
    table,
    written,
)

if TYPE_CHECKING:
    from lensaudit.attacks.effort.runs import EffortResult


@click.command()
@shared("sources")
@options(EffortSettings)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Result folder. [default: experiments/out/<source>-effort]",
)
@shared("json", "dry_run")
def effort(
    sources: tuple[str, ...],
    settings: EffortSettings,
    out: Path | None,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Retrain on rows that do not tell the facts; read the facts after 1, 2, 4 … steps.

    The same attacks on full and on every retain model give rho: 0 what the attack teaches anyway,
    1 all that full knows. E50 and E80 are the steps until rho is .5 and .8. Writes summary.json,
    manifest.json and attacks.jsonl; run the same command again to resume.
    """
    check_names(sources, settings.registry)
    from lensaudit.attacks.effort.runs import plan_lines, prepare, run, workers_of

    ready = prepare(sources, settings, out, notice)
    if dry_run:
        say("\n".join(plan_lines(ready)))
        return
    with ProgressBar() as bar:
        found = run(ready, workers=workers_of(ready), progress=bar.tell)
    print_efforts(found, as_json=as_json)


def print_efforts(found: "list[EffortResult]", *, as_json: bool) -> None:
    """E50 and E80 of every model and arm, with the curve as a row of blocks."""
    if as_json:
        shown = [dict(one.summary) for one in found]
        emit(shown[0] if len(shown) == 1 else shown)
        return
    for one in found:
        steps = one.summary["steps"]
        made = table(
            f"{name(one.source)}: steps until the facts are back, by {one.summary['by']}",
            ("arm", "E50", "tokens", "E80", "tokens ", "FLOP", "lr", f"rho at 0 to {steps[-1]}"),
            left=("arm", f"rho at 0 to {steps[-1]}"),
        )
        for arm, found_in in one.arms.items():
            cells = (_steps(found_in, "e50"), _cost(found_in, "e50", "tokens"))
            cells += (_steps(found_in, "e80"), _cost(found_in, "e80", "tokens"))
            cells += (_cost(found_in, "e80", "flop"), f"{found_in['lr']:g}")
            row(made, arm, *cells, profile([at["rho"] for at in found_in["curve"]], 1.0))
        show(made)
        for said in one.summary["notes"]:
            say(f"- {said}")
        written(one.folder)


def _steps(arm: Mapping[str, Any], key: str) -> str:
    """E_x; `> 256` where no attack was long enough."""
    if arm[key] is None:
        return number(None)
    return f"> {arm[key]}" if arm["censored"][key] else str(arm[key])


def _cost(arm: Mapping[str, Any], key: str, unit: str) -> str:
    cost = arm["cost"][key]
    if cost is None:
        return number(None)
    shown = brief(float(cost[unit]))
    return f"> {shown}" if arm["censored"][key] else shown
