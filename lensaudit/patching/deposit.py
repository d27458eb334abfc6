"""The files a run leaves: written when everything is finished, the manifest last."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lensaudit.data.facts import Fact
from lensaudit.files import write_csv, write_json, write_jsonl
from lensaudit.groups import unit_of
from lensaudit.patching.outcome import Outcome, finite
from lensaudit.results.owners import COMPARISON, COMPARISON_MANIFEST
from lensaudit.results.records import Manifest
from lensaudit.scores.intervals import NO_ROWS, clustered_mean, ends_of

FILES = ("results.jsonl", "layers.csv", "summary.json")
LAYER_COLUMNS = ("idx", "group", "layer", "s1", "s2", "ke", "erasure")
PAIR_COLUMNS = ("a", "b", "score_a", "score_b", "difference", "low", "high", "n", "n_groups", "why")


def clear(folder: Path) -> None:
    """Take away the verdict of an earlier run: what is found here belongs to one finished run."""
    for name in ("summary.json", "manifest.json"):
        (folder / name).unlink(missing_ok=True)


def deposit(
    folder: Path,
    outcome: Outcome,
    summary: Mapping[str, Any],
    manifest: Manifest,
    *,
    rows: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write results.jsonl, layers.csv, summary.json and, last, manifest.json."""
    write_jsonl(folder / "results.jsonl", outcome.rows() if rows is None else rows)
    write_csv(folder / "layers.csv", LAYER_COLUMNS, _layer_rows(outcome))
    write_json(folder / "summary.json", dict(summary))
    manifest.write(folder, FILES)


def with_texts(rows: Iterable[Mapping[str, Any]], examples: Iterable[Fact]) -> list[dict[str, Any]]:
    """Rows with what was asked, so that a result can be read without its forget set."""
    asked = {
        e.idx: {"question": e.question, "answer": e.answer, "prefix": e.prefix, "entity": e.entity}
        for e in examples
    }
    return [{"idx": row["idx"], **asked.get(row["idx"], {}), **row} for row in rows]


def _layer_rows(outcome: Outcome) -> list[list[Any]]:
    tables = (outcome.s1, outcome.s2, outcome.depth.ke, outcome.depth.erasure)
    rows = []
    for e, *parts in zip(outcome.encoded, *(table.tolist() for table in tables), strict=True):
        for layer, s1, s2, ke, erasure in zip(outcome.options.layers, *parts, strict=True):
            numbers = ["" if v is None else v for v in finite([s1, s2, erasure])]
            rows.append([e.idx, e.group, layer, *numbers[:2], int(ke), numbers[2]])
    return rows


def differences(outcomes: Sequence[Outcome]) -> list[list[Any]]:
    """Paired differences of the score between all pairs of sources, on the examples both score.

    The interval is that of the mean of the differences by authors (95 %); the same examples enter
    on both sides. Without one its ends are empty, and the last column says why.
    """
    rows = []
    for at, first in enumerate(outcomes):
        for second in outcomes[at + 1 :]:
            both = (first.depth.uds.isfinite() & second.depth.uds.isfinite()).nonzero().squeeze(1)
            if not len(both):
                rows.append(
                    [
                        first.source,
                        second.source,
                        first.uds,
                        second.uds,
                        *[""] * 3,
                        0,
                        0,
                        NO_ROWS.why,
                    ]
                )
                continue
            gaps = (first.depth.uds - second.depth.uds)[both].double()
            groups = [first.encoded[i].group for i in both.tolist()]
            found = clustered_mean(gaps.tolist(), groups, bounds=(-1.0, 1.0), unit=unit_of(groups))
            low, high = ends_of(found) or ("", "")
            rows.append(
                [
                    first.source,
                    second.source,
                    first.uds,
                    second.uds,
                    float(gaps.mean()),
                    low,
                    high,
                    len(both),
                    len(set(groups)),
                    getattr(found, "why", ""),
                ]
            )
    return rows


def deposit_comparison(
    folder: Path, outcomes: Sequence[Outcome], manifest: Manifest
) -> list[list[Any]]:
    """Write comparison.csv, one row per pair of sources, and its manifest; returns its rows."""
    rows = differences(outcomes)
    score = outcomes[0].score
    header = [column.replace("score_", f"{score}_") for column in PAIR_COLUMNS]
    write_csv(folder / COMPARISON, header, rows)
    manifest.write(folder, (COMPARISON,), COMPARISON_MANIFEST)
    return rows
