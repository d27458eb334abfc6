"""Recovery effort: E50 and E80 of every arm, with the curve as a row of blocks."""

from collections.abc import Iterator, Mapping
from typing import Any

from lensaudit.screen.cells import brief, name, number, profile
from lensaudit.screen.tables import Part, row, table


def of_effort(source: str, summary: Mapping[str, Any]) -> Iterator[Part]:
    """A line an arm, and what should be known of the numbers."""
    steps = summary["steps"]
    made = table(
        f"{name(source)}: steps until the facts are back, by {summary['by']}",
        ("arm", "E50", "tokens", "E80", "tokens ", "FLOP", "lr", f"rho at 0 to {steps[-1]}"),
        left=("arm", f"rho at 0 to {steps[-1]}"),
    )
    for arm, found in summary["arms"].items():
        cells = (_steps(found, "e50"), _cost(found, "e50", "tokens"))
        cells += (_steps(found, "e80"), _cost(found, "e80", "tokens"))
        cells += (_cost(found, "e80", "flop"), f"{found['lr']:g}")
        row(made, arm, *cells, profile([at["rho"] for at in found["curve"]], 1.0))
    yield made
    for said in summary["notes"]:
        yield f"- {said}"


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
