"""Steering, retraining attacks and meta-evaluation, as far as a results folder holds them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.report.reading import brief, csv_rows, json_object, need

_HEADER = (
    "trait", "layer", "layer_convention", "method", "positions", "baseline", "baseline_mean",
    "max_delta", "max_delta_coherent", "controllability", "spearman", "slope", "best_layer",
    "best_score", "best_layer_coherent", "delta_from_baseline", "coefficient", "ratio", "seed",
)  # fmt: skip


def read_steering(path: Path) -> dict[str, Any]:
    """A trait steering evaluation (`results.json`) or a sweep over layers.

    Raises:
        InputError: neither.
    """
    content = json_object(path)
    what = "layers" if "layers" in content else "coefficients"
    need(content, path, "trait", what)
    points = content[what]
    if not isinstance(points, Mapping) or not all(isinstance(p, Mapping) for p in points.values()):
        raise InputError(f"{path}: {what} is not an object of points")
    coherence = content.get("coherence")
    coherent = coherence if isinstance(coherence, Mapping) else {}
    return brief(
        {
            "kind": what,
            "folder": str(path.parent),
            "head": {name: content[name] for name in _HEADER if content.get(name) is not None},
            "points": sorted(
                (_point(key, one, coherent.get(key), path) for key, one in points.items()),
                key=lambda point: point["x"],
            ),
            "judge": content.get("judge"),
        }
    )


def _point(key: str, one: Mapping[str, Any], coherence: Any, path: Path) -> dict[str, Any]:
    """Score and coherence at one coefficient or layer; null where nothing could be judged."""
    try:
        x = float(key)
    except ValueError as error:
        raise InputError(f"{path}: {key[:40]!r} is no coefficient or layer") from error
    other = coherence if isinstance(coherence, Mapping) else {}
    return {
        "x": x,
        "mean": one.get("mean", one.get("trait_mean")),
        "ci95": one.get("ci95"),
        "n": one.get("n"),
        "n_invalid": one.get("n_invalid"),
        "coherence": other.get("mean", one.get("coherence_mean")),
        "ratio": one.get("ratio"),
    }


def read_interventions(path: Path) -> dict[str, Any]:
    """Directions added, ablated or clamped in an unlearned model: one row per setting.

    Raises:
        InputError: no rows.
    """
    content = json_object(path)
    rows = content.get("rows", content.get("summary", [content]))
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(f"{path}: wanted a list of settings under rows")
    return {"kind": "interventions", "folder": str(path.parent), "rows": [_flat(r) for r in rows]}


def read_rtt(path: Path) -> dict[str, Any]:
    """The summary of retraining attacks: one row per model, shares from 0 to 1.

    Raises:
        InputError: not a table.
    """
    if path.suffix == ".csv":
        rows: Any = [{key: _cell(value) for key, value in row.items()} for row in csv_rows(path)]
    else:
        content = json_object(path)
        rows = content.get("rows", [content])
    if not isinstance(rows, list) or not rows or not all(isinstance(r, Mapping) for r in rows):
        raise InputError(f"{path}: wanted at least one row")
    return {"folder": str(path.parent), "rows": [_flat(row) for row in rows]}


def read_meta(path: Path) -> dict[str, Any]:
    """The table of the meta-evaluation: one row per metric.

    Raises:
        InputError: no rows.
    """
    content = json_object(path)
    rows = content.get("metrics")
    if not isinstance(rows, list) or not rows or not all(isinstance(r, Mapping) for r in rows):
        raise InputError(f"{path}: wanted a list of metrics; was it written by lensaudit meta?")
    return brief({"folder": str(path.parent), "rows": [_flat(row) for row in rows]})


def read_aggregates(path: Path) -> list[dict[str, Any]]:
    """Aggregates of many models: one row per model.

    Raises:
        InputError: no rows.
    """
    rows = json_object(path).get("models")
    if not isinstance(rows, list) or not all(isinstance(r, Mapping) and "model" in r for r in rows):
        raise InputError(f"{path}: wanted a list of models; was it written by lensaudit meta?")
    return [dict(row) for row in rows]


def _flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested records as one level, `score.F` for F inside score; lists as text.

    >>> _flat({"kind": "add", "score": {"F": 1.0}, "ci95": [0.1, 0.2]})
    {'kind': 'add', 'score.F': 1.0, 'ci95': '0.1, 0.2'}
    """
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{key}.")
        elif isinstance(value, list):
            flat[before + key] = ", ".join(
                f"{v:.4g}" if type(v) is float else str(v) for v in value
            )
        else:
            flat[before + key] = value
    return brief(flat)


def _cell(text: str) -> Any:
    """A cell of a CSV file as the number it spells, or as text; empty is null."""
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        return text
