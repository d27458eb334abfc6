"""Facts that come out by any of a list of attacks, beside models that never knew."""

from collections.abc import Iterator, Mapping
from typing import Any

from lensaudit.screen.cells import interval, number
from lensaudit.screen.tables import Part, row, table


def of_worst(summary: Mapping[str, Any]) -> Iterator[Part]:
    """The attack table, the headline and the remarks."""
    made = table(
        f"{summary['source']}: hit rates of attacks, list {summary['attack_list'][:12]}",
        ("attack", "full", "source", "retain", "only", "gain", "seconds"),
        left=("attack",),
    )
    for one in summary["attacks"]:
        rates = (number(one[name]) for name in ("control", "source", "retain"))
        only = str(one["only"]) if one["counts"] else "no control"
        row(made, one["name"], *rates, only, number(one["gain"]), f"{one['seconds']:.1f}")
    yield made
    yield summary["headline"]
    ends = interval(summary["ci95"], missing=summary["no_interval"] or "–")
    yield f"  excess {number(summary['excess'])} ({ends}; {summary['authors']} authors)"
    if n := len(summary["unscored"]):
        yield f"  {n} of {summary['n']} facts unscored; reasons in facts.csv"
    if summary["bound"]["rate"] is not None:
        yield (
            f"  a fact that {summary['bound']['draws']} samples did not hit comes out of at most "
            f"{100 * summary['bound']['rate']:.1f} % of samples, for all facts at once"
        )
