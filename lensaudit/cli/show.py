"""What a person reads in the terminal: tables, a layer profile, and a sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from lensaudit.files import printable

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


def verdict(summary: Mapping[str, Any]) -> str:
    """What the score says, in words.

    >>> verdict({"source": "x", "uds": 0.05, "ci95": [0.03, 0.08]})
    'x: hidden. UDS 0.050 [0.030, 0.080]: about 5 % of what full encodes and retain lacks is gone.'
    """
    uds = summary["uds"]
    if uds is None:
        return f"{summary['source']}: no verdict. No example could be scored."
    low, high = summary["ci95"]
    word = "erased" if uds >= 0.75 else "partly erased" if uds >= 0.25 else "hidden"
    return (
        f"{summary['source']}: {word}. UDS {uds:.3f} [{low:.3f}, {high:.3f}]: "
        f"about {round(100 * uds)} % of what full encodes and retain lacks is gone."
    )


def audit_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Calibration rows first, then one row per source."""
    table = Table(title="Unlearning depth: 0 intact, 1 erased to the level of retain")
    for name in ("model", "UDS", "95 % interval", "scored", "erasure by layer"):
        table.add_column(name, justify="left" if name in ("model", "erasure by layer") else "right")
    calibration = summaries[0]["calibration"]
    for anchor in ("full", "retain"):
        table.add_row(f"[dim]{anchor}[/]", number(calibration[anchor]), "", "calibration", "")
    table.add_section()
    for summary in summaries:
        interval = summary["ci95"]
        erasure = [row["erasure"] for row in summary["per_layer"]]
        table.add_row(
            printable(summary["source"]),
            number(summary["uds"]),
            f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "–",
            f"{summary['n_scored']}/{summary['n']}",
            f"▕{profile(erasure, 1.0)}▏",
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


def print_audit(summaries: Sequence[Mapping[str, Any]]) -> None:
    """Tables and verdicts on stdout."""
    console = Console(highlight=False)
    console.print(audit_table(summaries))
    if len(summaries) == 1:
        console.print(layer_table(summaries[0]))
    for summary in summaries:
        console.print(verdict(summary), markup=False)
        if summary["unscored"]:
            n = len(summary["unscored"])
            console.print(f"  {n} unscored; reasons in summary.json", markup=False)
