"""What is shown of a result beside its summary: rows of its tables, texts, points of a curve."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lensaudit.errors import InputError
from lensaudit.kinds.curve import CurveRow
from lensaudit.results.kinds.eval import EvaluationResult, MetricResult
from lensaudit.results.kinds.know import KnowMatrix
from lensaudit.results.reading import checked_as, csv_rows, json_lines, need, read_as

SERIES = ("uds", "model_utility")
"""Series of a training run that are drawn; all lie between 0 and 1."""


@dataclass(frozen=True)
class CurvePoint:
    """A value after so many optimiser steps."""

    source: str
    """The training run's folder, or the model under attack."""
    series: str
    """A metric, or `recovery` with the arm of the attack."""
    step: int
    value: float
    epoch: float | None = None
    """As the trainer counted them; None: it did not say."""


def points_of(rows: Sequence[CurveRow], source: str) -> list[CurvePoint]:
    """What is drawn of a training run; gaps are left out."""
    return [
        CurvePoint(source, name, row.step, value, row.epoch)
        for row in rows
        for name in SERIES
        if (value := row.metrics.get(name)) is not None
    ]


def answers_in(run: EvaluationResult) -> dict[int, tuple[str, str]]:
    """Question and answer by idx of the forget set, where the log has them."""
    said = run.entries.get("forget_Q_A_ROUGE", MetricResult())
    return {
        idx: (str(row.get("input", "")), str(row["generation"]))
        for idx, row in said.records.items()
        if "generation" in row
    }


def matrix_beside(path: Path) -> KnowMatrix:
    """What a reader says of one relation.

    Raises:
        InputError: the file is missing, or holds something else.
    """
    return read_as(KnowMatrix, path.with_name("matrix.json"))


def bits_beside(path: Path) -> dict[str, tuple[float | None, str]]:
    """Idx -> bits of a fact, and why it has none; nothing without the file.

    Raises:
        InputError: a row lacks one of them.
    """
    return {
        row["idx"]: (number_in(row["bits_associated"], path), row["unscored"])
        for row in rows_beside(path, "idx", "bits_associated", "unscored")
    }


def hits_beside(path: Path) -> Iterator[tuple[str, int, int, str]]:
    """Idx, hits, samples and what was said, of facts that came out; nothing without the file.

    Raises:
        InputError: a row lacks one of them, or a count is none.
    """
    for row in rows_beside(path, "idx", "n", "hits"):
        hits, n = (
            checked_as(int, row[name], f"{path.parent}/facts.csv: {name}") for name in ("hits", "n")
        )
        if hits:
            yield row["idx"], hits, n, row.get("said", "")


def evidence_beside(path: Path) -> Iterator[tuple[str, str, str]]:
    """Idx, attack and what was said, of every hit; nothing without the file.

    Raises:
        InputError: a row lacks one of them.
    """
    table = path.with_name("evidence.jsonl")
    for row in json_lines(table) if table.exists() else ():
        need(row, table, "idx", "attack", "hit", "evidence")
        if row["hit"]:
            yield str(row["idx"]), row["attack"], str(row["evidence"])


def rows_beside(path: Path, *columns: str) -> list[dict[str, str]]:
    """Rows of `facts.csv` beside a summary, which have these columns; none without the file.

    Raises:
        InputError: a column is missing.
    """
    table = path.with_name("facts.csv")
    rows = csv_rows(table) if table.exists() else []
    for row in rows:
        need(row, table, *columns)
    return rows


def number_in(text: str | None, path: Path) -> float | None:
    """A number of a table; None of an empty cell.

    Raises:
        InputError: the cell holds something else.
    """
    if not text:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{path}: {text[:40]!r} is no number") from error
