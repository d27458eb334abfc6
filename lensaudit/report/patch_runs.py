"""What did `lensaudit patch` find? One run: a source under one set of conditions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lensaudit.errors import InputError
from lensaudit.files import digest
from lensaudit.report.reading import Row, json_lines, json_object, need, number, numbers
from lensaudit.scores.stats import Interval

Numbers = NDArray[np.float64]
SCORES = {"uds": "uds", "lens": "lens", "em": "udr"}
"""What `summary.json` calls its score -> the field that holds the number."""

_SAME = ("tau", "threshold", "em_form", "scope", "component", "last_layer", "layers")
"""Fields of the summary that make runs comparable, beside the models and the forget set."""


@dataclass(frozen=True)
class Texts:
    """One example as it was asked; empty where the run did not keep it."""

    idx: int
    group: str
    question: str
    answer: str
    prefix: str
    entity: str


@dataclass(frozen=True)
class PatchRun:
    """A finished run of one source."""

    folder: Path
    source: str
    weights: str
    """Content hash of the source: what results of one model are joined by."""
    score: str
    """`uds`, `lens` or `em`."""
    value: float | None
    interval: Interval | None
    summary: Row
    manifest: Row
    examples: tuple[Texts, ...]
    rows: tuple[Row, ...]
    """As in results.jsonl, in the order of `examples`."""
    layers: tuple[int, ...]
    s1: Numbers
    """Deltas by example and layer, nats per token; shares for EM."""
    s2: Numbers
    scores: Numbers
    """By example; NaN where unscored."""
    baseline: Numbers
    condition: str
    """Hash of everything that runs must share to be compared row by row."""


def read_patch(summary_file: Path, texts: Mapping[int, Texts]) -> PatchRun:
    """A run from its folder; `texts` fills in what the rows do not hold.

    Raises:
        InputError: a file is missing, damaged or of another tool.
    """
    folder = summary_file.parent
    summary = json_object(summary_file)
    need(summary, summary_file, "source", "score", "n", "n_scored", "layers", "calibration")
    score = summary["score"]
    if score not in SCORES:
        raise InputError(f"{summary_file}: score {str(score)[:40]!r}; wanted {', '.join(SCORES)}")
    _check_summary(summary, summary_file)
    manifest = json_object(folder / "manifest.json")
    need(manifest, folder / "manifest.json", "command", "inputs", "options", "versions")
    rows = tuple(json_lines(folder / "results.jsonl"))
    if not rows:
        raise InputError(f"{folder / 'results.jsonl'}: holds no example")
    layers = _layers(summary["layers"], summary_file)
    return PatchRun(
        folder=folder,
        source=str(summary["source"]),
        weights=str(_part(manifest, "source").get("weights") or summary["source"]),
        score=score,
        value=number(summary.get(SCORES[score]), f"{summary_file}: {SCORES[score]}"),
        interval=interval_of(summary.get("ci95"), f"{summary_file}: ci95"),
        summary=summary,
        manifest=manifest,
        examples=tuple(_texts(row, texts, folder) for row in rows),
        rows=rows,
        layers=layers,
        s1=_numbers(rows, "s1_em" if score == "em" else "s1", folder, width=len(layers)),
        s2=_numbers(rows, "s2_em" if score == "em" else "s2", folder, width=len(layers)),
        scores=_numbers(rows, SCORES[score], folder),
        baseline=_numbers(rows, "baseline", folder),
        condition=_condition(summary, manifest, rows),
    )


def _check_summary(summary: Row, path: Path) -> None:
    """Refuse what the page could not draw."""
    n, n_scored, rows = summary["n"], summary["n_scored"], summary.get("per_layer")
    if type(n) is not int or type(n_scored) is not int:
        raise InputError(f"{path}: n and n_scored are not whole numbers")
    if not isinstance(summary["calibration"], Mapping):
        raise InputError(f"{path}: calibration is not an object")
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(f"{path}: per_layer is not a list of layers")
    columns = _EM_COLUMNS if summary["score"] == "em" else _COLUMNS
    for row in rows:
        need(row, path, *columns)
        numbers([row[name] for name in columns], None, f"{path}: per_layer")


_COLUMNS = ("layer", "n_ke", "s1", "s2", "s1_ke", "s2_ke", "erasure")
_EM_COLUMNS = ("layer", "s1_em", "s2_em")


def interval_of(ends: Any, where: str) -> Interval | None:
    """Two numbers, or None for null.

    Raises:
        InputError: something else.
    """
    if ends is None:
        return None
    low, high = numbers(ends, 2, where)
    return None if low is None or high is None else Interval(low, high)


def unscored_of(summary: Row) -> dict[str, list[int]]:
    """Reason -> examples."""
    reasons: dict[str, list[int]] = {}
    found = summary.get("unscored")
    for idx, reason in (found if isinstance(found, Mapping) else {}).items():
        if str(idx).isdigit():
            reasons.setdefault(str(reason), []).append(int(idx))
    return reasons


def role_of(manifest: Row, role: str) -> str:
    """The name of `full` or `retain`."""
    return str(_part(manifest, role).get("name", "?"))


def _part(manifest: Row, role: str) -> Row:
    inputs = manifest["inputs"]
    part = inputs.get(role) if isinstance(inputs, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _layers(found: Any, path: Path) -> tuple[int, ...]:
    if not isinstance(found, Sequence) or not found:
        raise InputError(f"{path}: layers is {str(found)[:60]!r}, wanted a list of layer numbers")
    if not all(type(layer) is int for layer in found):
        raise InputError(f"{path}: layers holds something other than whole numbers")
    return tuple(found)


def _numbers(rows: Sequence[Row], name: str, folder: Path, *, width: int = 0) -> Numbers:
    """A field of every row, of one number or of `width`; gaps are NaN."""
    gap = [None] * width if width else None
    found = [gap if row.get(name) is None else row[name] for row in rows]
    wanted = f"{width} numbers" if width else "a number"
    try:
        values = np.array(found, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise InputError(f"{folder / 'results.jsonl'}: a row's {name} is not {wanted}") from error
    if values.shape != ((len(rows), width) if width else (len(rows),)) or np.isinf(values).any():
        raise InputError(f"{folder / 'results.jsonl'}: a row's {name} is not {wanted}")
    return values


def _texts(row: Row, given: Mapping[int, Texts], folder: Path) -> Texts:
    idx = row.get("idx")
    if type(idx) is not int:
        raise InputError(f"{folder / 'results.jsonl'}: a row has no idx")
    known = given.get(idx)
    names = ("question", "answer", "prefix", "entity")
    words = {name: str(row.get(name) or (getattr(known, name) if known else "")) for name in names}
    return Texts(idx=idx, group=str(row.get("group", known.group if known else "")), **words)


def _condition(summary: Row, manifest: Row, rows: Sequence[Row]) -> str:
    """Runs with the same hash share S1, baseline and examples."""
    models = [_part(manifest, role).get("weights") for role in ("full", "retain")]
    settings = {name: summary.get(name) for name in _SAME}
    engine = "lens" if summary["score"] == "lens" else summary["score"]
    options = manifest["options"]
    dtype = options.get("dtype") if isinstance(options, Mapping) else None
    idx = [row.get("idx") for row in rows]
    return digest([models, settings, engine, dtype, idx, _part(manifest, "examples").get("hash")])
