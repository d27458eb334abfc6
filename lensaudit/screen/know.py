"""Which values are bound to which subjects: relations, the headline, controls."""

from collections.abc import Iterator, Mapping
from typing import Any

from lensaudit.screen.cells import interval, number
from lensaudit.screen.tables import Part, table


def of_know(summary: Mapping[str, Any]) -> Iterator[Part]:
    """The table of relations, the headline, bits, names and controls."""
    yield table(
        f"{summary['source']}: who has what",
        ("relation", "subjects", "z", "p"),
        (
            (one["relation"], str(one["n"]), number(one["z"], 1), f"{one['p']:.2g}")
            for one in summary["relations"]
        ),
        left=("relation",),
    )
    yield summary["headline"]
    for name, said in (("bits", "associated"), ("bits_familiar", "familiar")):
        if found := summary[name]:
            ends = interval((found["low"], found["high"]), found["why"] or "–", ".2f")
            yield f"  {said} {number(found['value'], 2)} bits a fact ({ends}; {found['n']} facts)"
    naming = summary["naming"]
    yield f"  {len(summary['named'])} facts named" + (f": {naming['why']}" if naming["why"] else "")
    for one in summary["controls"]:
        yield f"  control: {'' if one['passed'] else 'FAILED: '}{one['said']}"
    if n := len(summary["unscored"]):
        yield f"  {n} facts unscored; reasons in facts.csv"
