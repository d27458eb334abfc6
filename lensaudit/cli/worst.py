"""`lensaudit worst`: which facts come out, by any of a list of attacks, beside a control arm?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import ModelName, ProgressBar, check_names, notice, options, shared
from lensaudit.worstcase.settings import WorstSettings


@click.command()
@click.option("--source", required=True, help="Model to audit.", type=ModelName())
@options(WorstSettings)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Result folder. [default: experiments/out/worst-<source>]",
)
@shared("json", "dry_run")
def worst(
    source: str, settings: WorstSettings, out: Path | None, as_json: bool, dry_run: bool
) -> None:
    """Attack every fact in many ways; count what comes out in excess of models that never knew.

    Writes facts.csv, matrix.csv, attacks.csv, evidence.jsonl, summary.json and manifest.json. The
    same list of attacks is run on --full, which knows (the positive control), and on every
    --retain, which never knew (the control arm).
    """
    check_names([source], settings.registry)
    from lensaudit.cli.terminal import emit, say, written
    from lensaudit.worstcase.folder import plan_worst, worst_into

    if dry_run:
        say(plan_worst(source, settings, notice=notice).text())
        return
    with ProgressBar() as bar:
        found = worst_into(source, settings, out, notice=notice, progress=bar.tell)
    if as_json:
        emit({"out": str(found.folder), **found.summary})
        return
    _print(found.summary)
    written(found.folder)


def _print(summary: Mapping[str, Any]) -> None:
    """The attack table, the headline and the remarks."""
    from lensaudit.cli.terminal import interval, number, row, say, show, table

    made = table(
        f"{summary['source']}: hit rates of attacks, list {summary['attack_list'][:12]}",
        ("attack", "full", "source", "retain", "only", "gain", "seconds"),
        left=("attack",),
    )
    for one in summary["attacks"]:
        rates = (number(one[name]) for name in ("control", "source", "retain"))
        only = str(one["only"]) if one["counts"] else "no control"
        row(made, one["name"], *rates, only, number(one["gain"]), f"{one['seconds']:.1f}")
    show(made)
    say(summary["headline"])
    ends = interval(summary["ci95"], missing=summary["no_interval"] or "–")
    say(f"  excess {number(summary['excess'])} ({ends}; {summary['authors']} authors)")
    if n := len(summary["unscored"]):
        say(f"  {n} of {summary['n']} facts unscored; reasons in facts.csv")
    if summary["bound"]["rate"] is not None:
        say(
            f"  a fact that {summary['bound']['draws']} samples did not hit comes out of at most "
            f"{100 * summary['bound']['rate']:.1f} % of samples, for all facts at once"
        )
