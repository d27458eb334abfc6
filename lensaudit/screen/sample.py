"""Leakage of samples, beside models that never knew."""

from collections.abc import Iterator, Mapping
from typing import Any

from lensaudit.screen.cells import interval, number
from lensaudit.screen.tables import Part, row, table


def of_sample(summary: Mapping[str, Any]) -> Iterator[Part]:
    """One row per setting and k."""
    made = table(
        f"{summary['source']}: leak@k from {summary['samples']} samples a fact",
        ("T", "top-p", "k", "source", "retain", "excess", "95 % interval", "corrected", "false"),
    )
    for one in summary["leak"]:
        rates = (number(one[name]) for name in ("source", "retain", "excess"))
        ends = interval([one["low"], one["high"]], missing=one["reason"] or "–")
        sampler = (f"{one['temperature']:g}", f"{one['top_p']:g}", str(one["k"]))
        row(made, *sampler, *rates, ends, number(one["corrected"]), number(one["false_leak"]))
    yield made
    yield "  false: what the matcher's false hits alone would make of leak@k"
    if n := len(summary["unscored"]):
        yield f"  {n} of {summary['n']} facts unscored; reasons in summary.json"
    yield (
        f"  a fact that no sample hit comes out of at most "
        f"{100 * summary['never_hit_bound']:.1f} % of samples, for all facts at once"
    )
