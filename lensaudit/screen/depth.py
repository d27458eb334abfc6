"""A patching run: scores of all sources, a layer profile, sentences, what was lost beside it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from lensaudit.report.names import labels
from lensaudit.screen.cells import by_rule, interval, no_interval, number, profile
from lensaudit.screen.tables import Part, dim, row, styled, table
from lensaudit.verdict.words import said

WIDTH = 24
"""Characters of the longest bar."""


def audit_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Calibration rows first, then one row per source."""
    score = summaries[0]["score"]
    with_lens = score == "uds" and "lens" in summaries[0]
    title = "Unlearning depth" if score == "uds" else "Logit Lens depth"
    heading = "UDS" if score == "uds" else "lens"
    columns = ["model", heading, "95 % interval", "scored", "erasure by layer"]
    extra = {"lens": _lens} if with_lens else {}
    shown = {"aligned": _aligned, "unread": _unread}
    extra |= {
        name: read
        for name, read in shown.items()
        if any(read(summary) is not None for summary in summaries)
    }
    made = table(
        f"{title}: 0 intact, 1 erased to the level of retain",
        [*columns, *extra],
        left=("model", "erasure by layer"),
    )
    calibration = summaries[0]["calibration"]
    for anchor in ("full", "retain"):
        row(made, dim(anchor), number(calibration[anchor]), "", "calibration", "")
    made.add_section()
    label = labels(summary["source"] for summary in summaries)
    for summary in summaries:
        erasure = [one["erasure"] for one in summary["per_layer"]]
        row(
            made,
            label[summary["source"]],
            number(summary[score]),
            interval(summary["ci95"], no_interval(summary)),
            f"{summary['n_scored']}/{summary['n']}",
            f"▕{profile(erasure, 1.0)}▏",
            *(number(read(summary)) for read in extra.values()),
        )
    return made


def _lens(summary: Mapping[str, Any]) -> float | None:
    return summary["lens"]


def _aligned(summary: Mapping[str, Any]) -> float | None:
    """UDS after a linear map to the basis of `full`."""
    return summary.get("aligned", {}).get("uds")


def _unread(summary: Mapping[str, Any]) -> float | None:
    """Drop on facts the source still says: 0 where `full` reads it, 1 where nothing fits."""
    return summary.get("validity", {}).get("d_share")


def pair_table(pairs: Sequence[Sequence[Any]]) -> Table:
    """Differences between sources, on the examples that both score."""
    made = table(
        "Differences: a minus b, on the same examples, intervals by authors",
        ("a", "b", "difference", "95 % interval", "examples", "authors"),
        left=("a", "b"),
    )
    label = labels(name for pair in pairs for name in pair[:2])
    for first, second, _, _, difference, low, high, n, n_groups, why in pairs:
        gap = number(None if difference == "" else difference)
        row(
            made,
            label[first],
            label[second],
            gap,
            interval([low, high], why),
            str(n),
            str(n_groups),
        )
    return made


def layer_table(summary: Mapping[str, Any]) -> Table:
    """Mean deltas and erasure per layer."""
    made = table(
        f"{summary['source']}: nats per token, by layer",
        ("layer", "S1", "S2", "KE", "erasure", "S1 ▏S2"),
        left=("S1 ▏S2",),
    )
    rows = summary["per_layer"]
    shown = [(one["s1"], one["s2"] if one["s2"] is not None else one["s2_ke"]) for one in rows]
    top = max([abs(v) for pair in shown for v in pair if v is not None], default=1.0)
    for one, (s1, s2) in zip(rows, shown, strict=True):
        bars = styled(_bar(s1, top), "cyan") + "\n" + styled(_bar(s2, top), "magenta")
        numbers = (number(s1), number(s2), str(one["n_ke"]), number(one["erasure"], 2))
        row(made, str(one["layer"]), *numbers, bars)
    return made


def _bar(value: float | None, top: float) -> str:
    return "" if value is None else "▬" * round(WIDTH * max(0.0, value) / top if top else 0)


def depths(
    summaries: Sequence[Mapping[str, Any]],
    pairs: Sequence[Sequence[Any]] = (),
    sentences: Sequence[str] = (),
) -> Iterator[Part]:
    """Tables and verdicts of a run with `--score uds` or `lens`.

    `sentences`: where more than the run itself was asked, the verdicts after all of it.
    """
    yield audit_table(summaries)
    if pairs:
        yield pair_table(pairs)
    if len(summaries) == 1:
        yield layer_table(summaries[0])
    for at, summary in enumerate(summaries):
        lens = summary["score"] == "lens"
        yield sentences[at] if sentences and not lens else said(summary)
        if unscored := summary["unscored"]:
            (why, *others) = dict.fromkeys(unscored.values())
            shared = summary["n_scored"] == 0 and not others
            reason = f": {why}" if shared else "; reasons in summary.json"
            yield f"  {len(unscored)} unscored{reason}"
    yield from by_rule(summaries[0])
    if summaries[0]["score"] == "lens":
        yield "A screen: it sees what can be read out directly. --score uds patches."


def collateral(summaries: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    """What was lost of facts to keep; nothing where that was not asked."""
    if not any(one.get("collateral") for one in summaries):
        return
    made = table(
        "facts to keep: depth 0 kept, 1 lost; selectivity: UDS minus depth",
        ("source", "facts", "depth", "95 % interval", "scored", "selectivity", "beyond", "against"),
        left=("source", "facts", "95 % interval", "against"),
    )
    for summary in summaries:
        for facts, one in summary.get("collateral", {}).items():
            row(
                made,
                summary["source"],
                facts,
                number(one["depth"]),
                interval(one["ci95"]),
                f"{one['n_scored']}/{one['n']}",
                number(one["selectivity"]["value"]),
                number(one["over_erasure_nats"]),
                one["anchor"],
            )
    yield made
