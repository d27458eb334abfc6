"""`lensaudit sample`: how often do samples give facts away, beyond models that never knew?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import ModelName, ProgressBar, check_names, notice, options, shared
from lensaudit.worstcase.settings import SampleSettings


@click.command()
@click.option("--source", required=True, help="Model to sample.", type=ModelName())
@options(SampleSettings)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Result folder. [default: experiments/out/sample-<source>]",
)
@shared("json", "dry_run")
def sample(
    source: str, settings: SampleSettings, out: Path | None, as_json: bool, dry_run: bool
) -> None:
    """Sample answers to every question; leak@k in excess of models that never knew.

    Writes leak.csv, facts.csv, samples.jsonl, summary.json and manifest.json. Each row draws the
    same random numbers for every model, in every batch and after a restart.
    """
    check_names([source], settings.registry)
    from lensaudit.cli.terminal import emit, say, written
    from lensaudit.worstcase.sampling import open_sample, plan_text, sample_into

    if dry_run:
        say(plan_text(open_sample(source, settings, notice=notice)[0], settings))
        return
    with ProgressBar() as bar:
        found = sample_into(source, settings, out, notice=notice, progress=bar.tell)
    if as_json:
        emit({"out": str(found.folder), **found.summary})
        return
    _print(found.summary)
    written(found.folder)


def _print(summary: Mapping[str, Any]) -> None:
    """One row per setting and k."""
    from lensaudit.cli.terminal import interval, number, row, say, show, table

    made = table(
        f"{summary['source']}: leak@k from {summary['samples']} samples a fact",
        ("T", "top-p", "k", "source", "retain", "excess", "95 % interval", "corrected", "false"),
    )
    for one in summary["leak"]:
        rates = (number(one[name]) for name in ("source", "retain", "excess"))
        ends = interval([one["low"], one["high"]], missing=one["reason"] or "–")
        sampler = (f"{one['temperature']:g}", f"{one['top_p']:g}", str(one["k"]))
        row(made, *sampler, *rates, ends, number(one["corrected"]), number(one["false_leak"]))
    show(made)
    say("  false: what the matcher's false hits alone would make of leak@k")
    if n := len(summary["unscored"]):
        say(f"  {n} of {summary['n']} facts unscored; reasons in summary.json")
    say(
        f"  a fact that no sample hit comes out of at most "
        f"{100 * summary['never_hit_bound']:.1f} % of samples, for all facts at once"
    )
