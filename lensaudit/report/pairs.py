"""Which source differs from which? The table that a run of several sources left."""

from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.report.reading import csv_rows

_NUMBERS = ("difference", "low", "high", "n", "n_groups")


def read_pairs(path: Path) -> list[dict[str, Any]]:
    """Rows of comparison.csv.

    Raises:
        InputError: a column is missing or a cell is no number.
    """
    pairs = []
    for n, row in enumerate(csv_rows(path), 2):
        if missing := [name for name in ("a", "b", *_NUMBERS) if name not in row]:
            raise InputError(f"{path}: has no column {missing[0]!r}; is it lensaudit's?")
        try:
            cells = {name: float(row[name]) if row[name] else None for name in _NUMBERS}
        except ValueError as error:
            raise InputError(f"{path}: line {n} holds a cell that is no number") from error
        score = "lens" if "lens_a" in row else "uds"
        pairs.append({"a": row["a"], "b": row["b"], "score": score, **cells})
    return pairs
