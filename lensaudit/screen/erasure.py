"""An audit by exact match: categories, a layer table, and a sentence."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from lensaudit.report.names import labels
from lensaudit.screen.cells import by_rule, interval, no_interval, number, profile
from lensaudit.screen.tables import Part, dim, row, table
from lensaudit.verdict.words import with_limits

CATEGORIES_HEAD = "over/exact/\nunder/known"


def verdict(summary: Mapping[str, Any]) -> str:
    """What the rates say, in words.

    >>> verdict({"source": "x", "udr": 0.25, "ci95": [0.2, 0.3], "retention": 0.7})
    'x: UDR 0.250 [0.200, 0.300]: lost at 25 % of the layers where retain loses it; 70 % of the answer is still given there.'
    """  # noqa: E501
    if summary["udr"] is None:
        return f"{summary['source']}: no verdict. No example could be scored."
    shown, without = with_limits(summary["udr"], summary)
    return (
        f"{summary['source']}: UDR {shown}: lost at "
        f"{round(100 * summary['udr'])} % of the layers where retain loses it; "
        f"{round(100 * summary['retention'])} % of the answer is still given there.{without}"
    )


def em_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Calibration rows first, then one row per source."""
    first = summaries[0]
    made = table(
        f"Exact match ({first['em_form']}), KEPT from {first['threshold']:g}\n"
        "UDR 0 intact, 1 lost wherever retain loses it",
        ("model", "UDR", "95 % interval", "retention", CATEGORIES_HEAD, "scored"),
        left=("model",),
    )
    for anchor, rates in first["calibration"].items():
        row(made, dim(anchor), number(rates["udr"]), "calibration", number(rates["retention"]))
    made.add_section()
    label = labels(summary["source"] for summary in summaries)
    for summary in summaries:
        count = summary["categories"]
        row(
            made,
            label[summary["source"]],
            number(summary["udr"]),
            interval(summary["ci95"], no_interval(summary)),
            number(summary["retention"]),
            " ".join(f"{n:3d}" for n in count.values()),
            f"{summary['n_scored']}/{summary['n']}",
        )
    return made


def layer_table(summary: Mapping[str, Any]) -> Table:
    """Mean exact match and share of LOST examples per layer."""
    made = table(
        f"{summary['source']}: exact match with one layer patched",
        ("layer", "S1", "S2", "S1 lost", "S2 lost", "status"),
        left=("status",),
    )
    for one in summary["per_layer"]:
        match = (number(one[name]) for name in ("s1_em", "s2_em"))
        lost = (percent(one[name]) for name in ("s1_lost", "s2_lost"))
        row(made, str(one["layer"]), *match, *lost, one["status"])
    return made


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


def erasures(summaries: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    """Tables, verdicts and remarks of a run with `--score em`."""
    yield em_table(summaries)
    if len(summaries) == 1:
        yield layer_table(summaries[0])
    for summary in summaries:
        yield verdict(summary)
        by_layer = profile([one["s2_em"] for one in summary["per_layer"]], 1.0)
        yield f"  match by layer with the source patched in ▕{by_layer}▏"
        for line in remarks(summary):
            yield f"  {line}"
    yield from by_rule(summaries[0])
