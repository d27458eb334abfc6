"""Tables over models and metrics that `lensaudit meta` wrote."""

from pathlib import Path
from typing import Annotated, Any

from annotated_types import Len

from lensaudit.results.reading import brief, checked_as, json_object, need


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


def read_aggregates(path: Path) -> list[dict[str, Any]]:
    """Aggregates of many models: one row per model.

    Raises:
        InputError: no rows.
    """
    return _rows(path, "models", "model")


def _rows(path: Path, name: str, key: str) -> list[dict[str, Any]]:
    content = json_object(path)
    need(content, path, name)
    where = f"{path}: {name}"
    rows = checked_as(Annotated[list[dict[str, Any]], Len(1)], content[name], where)
    for at, row in enumerate(rows):
        need(row, f"{where}.{at}", key)
    return rows
