"""Tables over models and metrics that `lensaudit meta` wrote."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.report.reading import Row, brief, json_object


def read_meta(path: Path) -> dict[str, Any]:
    """The table of the meta-evaluation: one row per metric.

    Raises:
        InputError: no rows.
    """
    rows = _rows(path, "metrics", "metric")
    joined = [
        {**row, "notes": "; ".join(map(str, row["notes"]))}
        if isinstance(row.get("notes"), list)
        else row
        for row in rows
    ]
    return brief({"folder": str(path.parent), "rows": joined})


def read_aggregates(path: Path) -> list[Row]:
    """Aggregates of many models: one row per model.

    Raises:
        InputError: no rows.
    """
    return _rows(path, "models", "model")


def _rows(path: Path, name: str, key: str) -> list[Row]:
    rows = json_object(path).get(name)
    if not isinstance(rows, list) or not all(isinstance(r, Mapping) and key in r for r in rows):
        raise InputError(f"{path}: wanted a list of {name}; was it written by lensaudit meta?")
    if not rows:
        raise InputError(f"{path}: its list of {name} is empty")
    return [dict(row) for row in rows]
