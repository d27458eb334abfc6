"""What a person reads of an EM audit: categories, a layer table, and a sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from lensaudit.cli.show import number, profile
from lensaudit.files import printable
from lensaudit.scores.erasure import CATEGORIES

CATEGORIES_HEAD = "over/exact/\nunder/known"


def verdict(summary: Mapping[str, Any]) -> str:
    """What the rates say, in words.

    >>> verdict({"source": "x", "udr": 0.25, "ci95": [0.2, 0.3], "retention": 0.7})
    'x: UDR 0.250 [0.200, 0.300]: lost at 25 % of the layers where retain loses it; 70 % of the answer is still given there.'
    """  # noqa: E501
    if summary["udr"] is None:
        return f"{summary['source']}: no verdict. No example could be scored."
    low, high = summary["ci95"]
    return (
        f"{summary['source']}: UDR {summary['udr']:.3f} [{low:.3f}, {high:.3f}]: lost at "
        f"{round(100 * summary['udr'])} % of the layers where retain loses it; "
        f"{round(100 * summary['retention'])} % of the answer is still given there."
    )


def em_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Calibration rows first, then one row per source."""
    first = summaries[0]
    table = Table(
        title=f"Exact match ({first['em_form']}), KEPT from {first['threshold']:g}\n"
        "UDR 0 intact, 1 lost wherever retain loses it"
    )
    for name in ("model", "UDR", "95 % interval", "retention", CATEGORIES_HEAD, "scored"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for anchor, rates in first["calibration"].items():
        table.add_row(
            f"[dim]{anchor}[/]", number(rates["udr"]), "calibration", number(rates["retention"])
        )
    table.add_section()
    for summary in summaries:
        interval, count = summary["ci95"], summary["categories"]
        table.add_row(
            printable(summary["source"]),
            number(summary["udr"]),
            f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "–",
            number(summary["retention"]),
            " ".join(f"{count[name]:3d}" for name in CATEGORIES),
            f"{summary['n_scored']}/{summary['n']}",
        )
    return table


def layer_table(summary: Mapping[str, Any]) -> Table:
    """Mean exact match and share of LOST examples per layer."""
    table = Table(title=f"{printable(summary['source'])}: exact match with one layer patched")
    for name in ("layer", "S1", "S2", "S1 lost", "S2 lost", "status"):
        table.add_column(name, justify="left" if name == "status" else "right")
    for row in summary["per_layer"]:
        table.add_row(
            str(row["layer"]), number(row["s1_em"]), number(row["s2_em"]),
            *(percent(row[name]) for name in ("s1_lost", "s2_lost")), row["status"],
        )  # fmt: skip
    return table


def percent(share: float | None) -> str:
    """A share as whole percent.

    >>> percent(0.256), percent(None)
    ('26 %', '–')
    """
    return "–" if share is None else f"{100 * share:.0f} %"


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """What a reader should know before using the numbers."""
    said = []
    if n := len(summary["unscored"]):
        said.append(f"{n} unscored; reasons in summary.json")
    if n := summary.get("n_reference_cut"):
        said.append(
            f"{n} references are longer than --max-new-tokens {summary['max_new_tokens']}: "
            "their match stays below 1"
        )
    if n := summary.get("n_full_lost"):
        said.append(f"{n} answers full itself does not give: LOST there says nothing")
    return said


def print_em(summaries: Sequence[Mapping[str, Any]]) -> None:
    """Tables, verdicts and remarks on stdout."""
    console = Console(highlight=False)
    console.print(em_table(summaries))
    if len(summaries) == 1:
        console.print(layer_table(summaries[0]))
    for summary in summaries:
        console.print(verdict(summary), markup=False)
        by_layer = profile([row["s2_em"] for row in summary["per_layer"]], 1.0)
        console.print(f"  match by layer with the source patched in ▕{by_layer}▏", markup=False)
        for line in remarks(summary):
            console.print(f"  {line}", markup=False)
