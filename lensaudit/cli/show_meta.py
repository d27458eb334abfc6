"""The tables of `lensaudit meta`, as a person reads them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from lensaudit.files import printable
from lensaudit.meta.faithfulness import Faithfulness, Histogram

WIDTH = 132
_BARS = " ▁▂▃▄▅▆▇█"
Document = Mapping[str, Any]


def show(table: Table) -> None:
    """Print a table; a pipe has no width, and 80 columns would cut the names."""
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    console = Console(**plain)
    (console if console.is_terminal else Console(**plain, width=WIDTH)).print(table)


def number(value: float | None, digits: int = 3) -> str:
    """A number, or a dash.

    >>> number(0.5), number(None), number(float("nan"))
    ('0.500', '–', '–')
    """
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def bars(histogram: Histogram | None, side: str) -> str:
    """Counts as a line of bars, scaled to the tallest of either pool.

    >>> bars(Histogram((0.0, 0.5, 1.0), (0, 2), (4, 0)), "knows")
    ' ▄'
    """
    if histogram is None:
        return ""
    tallest = max(*histogram.knows, *histogram.forgot)
    return "".join(_BARS[math.ceil(8 * n / tallest)] for n in getattr(histogram, side))


def faithfulness_table(results: Sequence[Faithfulness]) -> Table:
    """AUC, interval, means, threshold, and what is missing."""
    table = _table(
        "AUC of more knowledge, pool that knows against pool that forgot; means are raw values",
        metric="left", AUC="right", interval="left", n="right", knows="right", forgot="right",
        t="right", accuracy="right", histogram="left", remark="left",
    )  # fmt: skip
    order = sorted(results, key=lambda one: math.inf if math.isnan(one.auc) else -one.auc)
    for one in order:
        ends, threshold = one.interval, one.threshold
        table.add_row(
            printable(one.metric.key),
            number(one.auc) if math.isnan(one.preliminary) else f"({number(one.preliminary)})",
            f"{ends.low:.3f} to {ends.high:.3f}" if ends else "",
            f"{one.n_knows}+{one.n_forgot}",
            number(one.knows_mean), number(one.forgot_mean),
            number(one.raw_threshold, 4), number(threshold.accuracy if threshold else None),
            f"{bars(one.histogram, 'knows')}│{bars(one.histogram, 'forgot')}",
            _remark(one.reason, one.excluded),
        )  # fmt: skip
    return table


def robustness_table(document: Document) -> Table:
    """Stability, the number of models behind it, and the value on the common ones."""
    kind = "Q" if document["attack"] == "quantize" else "R"
    common = document["common"]
    table = _table(
        f"{kind} under {document['attack']}, {document['form']}, filter {document['filter']}; "
        f"common: {len(common)} models of every metric",
        metric="left", **{kind: "right"}, n="right", usable="left", common="right", remark="left",
    )  # fmt: skip
    for row in sorted(document["metrics"], key=lambda row: -(row["value"] or -1)):
        value = row["value"]
        shown = number(value) if value is not None else f"({number(row['preliminary'])})"
        table.add_row(
            printable(row["metric"]),
            shown if shown != "(–)" else "–",
            str(row["n"]),
            f"{row['n_utility']} of {row['n_candidates']} by utility",
            number(row["common_value"]),
            _remark(row["reason"], row["excluded"]),
        )
    return table


def ranking_table(document: Document) -> Table:
    """The best configuration of each method, with and without UDS."""
    table = _table(
        "methods by their best Overall without UDS",
        method="left", best="left", without="right", with_UDS="right", UDS="right",
        best_with_UDS="left", UDS_mean="right", range="left",
    )  # fmt: skip
    for row in document["ranking"]:
        best, other = row["best_without_uds"] or {}, row["best_with_uds"] or {}
        table.add_row(
            printable(f"{row['method']} ({row['n_models']})"),
            printable(best.get("model", "–")),
            number(best.get("overall_without_uds")), number(best.get("overall")),
            number(best.get("uds")),
            "same" if other == best and best else printable(other.get("model", "–")),
            number(row["uds_mean"]),
            f"{number(row['uds_low'])} to {number(row['uds_high'])}",
        )  # fmt: skip
    return table


def aggregate_table(document: Document) -> Table:
    """Every model with its aggregates; why one is missing."""
    shown = ("mem", "privacy", "utility_rel", "overall", "overall_without_uds")
    columns = {"model": "left", "uds": "right"} | dict.fromkeys(shown, "right") | {"remark": "left"}
    table = _table("aggregates: memorisation, privacy, utility, overall", **columns)
    for row in document["models"]:
        missing = row["reasons"]
        remark = next((f"{name}: {why}" for name, why in missing.items()), "")
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        numbers = (number(row[name]) for name in shown)
        name = printable(row["model"])
        table.add_row(name, number(row["uds"]), *numbers, printable(remark + more))
    return table


def meta_table(document: Document) -> Table:
    """One row per metric."""
    forms = [
        f"{attack} {form}, filter {document['filters'].get(attack)}"
        for attack, form in document["forms"].items()
    ]
    table = _table(
        printable(
            "Robustness = HM(Q, R), Overall = HM(faithfulness, robustness); "
            + "; ".join(["n: models behind Q and R", *forms])
        ),
        metric="left", faithfulness="right", interval="left", Q="right", n_Q="right", R="right",
        n_R="right", robustness="right", common="right", overall="right", remark="left",
    )  # fmt: skip
    for row in document["metrics"]:
        low, high = row["faithfulness_low"], row["faithfulness_high"]
        table.add_row(
            printable(row["label"]),
            number(row["faithfulness"]),
            f"{low:.3f} to {high:.3f}" if low is not None else "",
            number(row["quantization"]), _count(row["n_quantization"]),
            number(row["relearning"]), _count(row["n_relearning"]),
            number(row["robustness"]), number(row["common_robustness"]), number(row["overall"]),
            printable("; ".join(row["notes"])),
        )  # fmt: skip
    return table


def _count(n: int | None) -> str:
    return "–" if n is None else str(n)


def _remark(reason: str | None, excluded: Mapping[str, str]) -> str:
    """Why there is no number, and which models have none."""
    parts = [reason] if reason else []
    if excluded:
        first, why = next(iter(excluded.items()))
        parts.append(f"without {len(excluded)}: {first}: {why}")
    return printable("; ".join(parts))


def _table(title: str, **columns: Any) -> Table:
    table = Table(title=title)
    for name, justify in columns.items():
        table.add_column(name.replace("_", " "), justify=justify, overflow="fold")
    return table
