"""What a person reads in the terminal: tables, a layer profile, and a sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from lensaudit.files import printable
from lensaudit.report.names import labels
from lensaudit.report.words import verdict

BLOCKS = " ▁▂▃▄▅▆▇█"


def number(value: float | None, digits: int = 3) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def profile(values: Sequence[float | None], top: float) -> str:
    """One character per layer, from blank (0) to full (`top`).

    >>> profile([0.0, 0.5, 1.0, None], 1.0)
    ' ▄█·'
    """
    scale = len(BLOCKS) - 1
    return "".join(
        "·" if v is None else BLOCKS[round(scale * min(1.0, max(0.0, v / top if top else 0.0)))]
        for v in values
    )


def audit_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Calibration rows first, then one row per source."""
    score = summaries[0]["score"]
    with_lens = score == "uds" and "lens" in summaries[0]
    title = "Unlearning depth" if score == "uds" else "Logit Lens depth"
    table = Table(title=f"{title}: 0 intact, 1 erased to the level of retain")
    heading = "UDS" if score == "uds" else "lens"
    for name in ("model", heading, "95 % interval", "scored", "erasure by layer"):
        table.add_column(name, justify="left" if name in ("model", "erasure by layer") else "right")
    if with_lens:
        table.add_column("lens", justify="right")
    calibration = summaries[0]["calibration"]
    for anchor in ("full", "retain"):
        table.add_row(f"[dim]{anchor}[/]", number(calibration[anchor]), "", "calibration", "")
    table.add_section()
    label = labels(summary["source"] for summary in summaries)
    for summary in summaries:
        erasure = [row["erasure"] for row in summary["per_layer"]]
        table.add_row(
            printable(label[summary["source"]]),
            number(summary[score]),
            _interval(summary["ci95"]),
            f"{summary['n_scored']}/{summary['n']}",
            f"▕{profile(erasure, 1.0)}▏",
            *([number(summary["lens"])] if with_lens else []),
        )
    return table


def _interval(ends: Sequence[float | str] | None) -> str:
    if not ends or "" in ends:
        return "–"
    return f"{ends[0]:.3f} to {ends[1]:.3f}"


def pair_table(pairs: Sequence[Sequence[Any]]) -> Table:
    """Differences between sources, on the examples that both score."""
    table = Table(title="Differences: a minus b, on the same examples, authors resampled")
    for name in ("a", "b", "difference", "95 % interval", "examples", "authors"):
        table.add_column(name, justify="left" if name in ("a", "b") else "right")
    label = labels(name for pair in pairs for name in pair[:2])
    for first, second, _, _, difference, low, high, n, n_groups in pairs:
        gap = number(None if difference == "" else difference)
        table.add_row(
            printable(label[first]),
            printable(label[second]),
            gap,
            _interval([low, high]),
            str(n),
            str(n_groups),
        )
    return table


def layer_table(summary: Mapping[str, Any]) -> Table:
    """Mean deltas and erasure per layer."""
    table = Table(title=f"{printable(summary['source'])}: nats per token, by layer")
    for name in ("layer", "S1", "S2", "KE", "erasure", "S1 ▏S2"):
        table.add_column(name, justify="left" if "▏" in name else "right")
    rows = summary["per_layer"]
    shown = [(row["s1"], row["s2"] if row["s2"] is not None else row["s2_ke"]) for row in rows]
    top = max([abs(v) for pair in shown for v in pair if v is not None], default=1.0)
    for row, (s1, s2) in zip(rows, shown, strict=True):
        table.add_row(
            str(row["layer"]), number(s1), number(s2), str(row["n_ke"]), number(row["erasure"], 2),
            f"[cyan]{_bar(s1, top)}[/]\n[magenta]{_bar(s2, top)}[/]",
        )  # fmt: skip
    return table


def _bar(value: float | None, top: float, width: int = 24) -> str:
    return "" if value is None else "▬" * round(width * max(0.0, value) / top if top else 0)


def print_audit(
    summaries: Sequence[Mapping[str, Any]], pairs: Sequence[Sequence[Any]] = ()
) -> None:
    """Tables and verdicts on stdout."""
    console = Console(highlight=False)
    console.print(audit_table(summaries))
    if pairs:
        console.print(pair_table(pairs))
    if len(summaries) == 1:
        console.print(layer_table(summaries[0]))
    for summary in summaries:
        console.print(verdict(summary), markup=False)
        if summary["unscored"]:
            n = len(summary["unscored"])
            console.print(f"  {n} unscored; reasons in summary.json", markup=False)
    if summaries[0]["score"] == "lens":
        console.print("A screen: it sees what can be read out directly. --score uds patches.")
