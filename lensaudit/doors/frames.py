"""Results on disk as pandas data frames: one row per run, example, layer or metric.

Every function takes files or folders, and looks into folders for what `lensaudit` wrote there. Two
results may name the same model: `folder`, `weights` (8 digits of their hash, as listings have it)
and `tau`, where the kind has one, tell them apart.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from lensaudit.errors import InputError
from lensaudit.kinds.effort import EffortRecord
from lensaudit.report.beside import CurvePoint, points_of
from lensaudit.results.kinds.table import Kind
from lensaudit.results.locate import Found, locate
from lensaudit.results.reading import place_in
from lensaudit.verdict.collect import Called, names_of, spoken, weights_in

Place = str | Path
PATCHED: tuple[Kind, ...] = ("patch", "counterfactual")
POINTS: Mapping[Kind, Callable[[Found], list[CurvePoint]]] = {
    "curve": lambda one: points_of(one.record, one.path.parent.name),
    "effort": lambda one: recovery_points(one.record),
}
"""Kinds that change by step -> their points."""


def recovery_points(run: EffortRecord) -> list[CurvePoint]:
    """Recovery rho by step of every arm of `lensaudit effort`."""
    return [
        CurvePoint(run.model, f"recovery {arm}", one.c, one.rho)
        for arm, found in run.arms.items()
        for one in found.curve
        if one.rho is not None
    ]


def summaries(*places: Place) -> pd.DataFrame:
    """One row per run of `lensaudit patch`: the score, its 95 % interval, and the calibration.

    `full` and `retain` are the scores of the two anchors: 0 and 1 where everything is right.
    """
    settings = ("tau", "scope", "component", "last_layer", "engine")
    return _frame(
        [
            {
                "source": name,
                "score": run.score,
                "value": run.estimate.value,
                "low": run.estimate.low,
                "high": run.estimate.high,
                "n": run.n,
                "n_scored": run.n_scored,
                **{name: run.calibration.get(name) for name in ("full", "retain")},
                **{name: run.summary.get(name) for name in settings},
                **_which(run.folder, run.weights),
            }
            for _, run, name in _records(places, *PATCHED)
        ]
    )


def examples(*places: Place) -> pd.DataFrame:
    """One row per source and example: its text, its score, or why it has none.

    `n_ke` counts the layers that encode the fact, or, of exact match, at which `retain` loses it.
    `told` names the ways of asking in which the source gives the fact away; None: nobody asked.
    """
    rows = [
        {
            "source": name,
            "score": run.score,
            "idx": text.idx,
            "group": row.get("group"),
            "question": text.question,
            "entity": text.entity,
            "baseline": baseline,
            "value": value,
            "n_ke": len(row.get("ke", row.get("ft", ()))),
            "unscored": row.get("unscored"),
            "told": _told(row),
            **_which(run.folder, run.weights),
            "tau": run.tau,
        }
        for _, run, name in _records(places, *PATCHED)
        for text, row, value, baseline in zip(
            run.examples, run.rows, run.scores, run.baselines, strict=True
        )
    ]
    return _frame(rows)


def _told(row: Mapping[str, Any]) -> str | None:
    asked = row.get("told")
    return asked and ", ".join(way for way, one in asked.items() if one["said"])


def layers(*places: Place) -> pd.DataFrame:
    """One row per source, example and layer: S1 and S2 deltas (nats per token) and erasure."""
    parts = []
    for _, run, name in _records(places, *PATCHED):
        part = pd.read_csv(run.folder / "layers.csv")
        # in the table 1 and "1" look alike, and "@ada" is quoted
        authors = {row["idx"]: row.get("group") for row in run.rows}
        part["group"] = [authors.get(idx) for idx in part["idx"]]
        part.insert(0, "score", run.score)
        part.insert(0, "source", name)
        parts.append(part.assign(**_which(run.folder, run.weights), tau=run.tau))
    return pd.concat(parts, ignore_index=True)


def metrics(*places: Place) -> pd.DataFrame:
    """One row per model and metric of `lensaudit eval`, with what a high value means."""
    rows = [
        {
            "model": model,
            "metric": name,
            "value": entry.value,
            "low": entry.low,
            "high": entry.high,
            "high_means": entry.high_means,
            "family": entry.family,
            "n_scored": entry.n,
            "n_unscored": entry.n_unscored,
            "reason": entry.reason,
            **_which(run.folder, run.weights),
        }
        for _, run, model in _records(places, "eval")
        for name, entry in run.entries.items()
    ]
    return _frame(rows)


def efforts(*places: Place) -> pd.DataFrame:
    """One row per model, arm and length of attack of `lensaudit effort`: recovery and its cost.

    `right`, `right_full` and `right_retain` are shares of the facts answered rightly.
    """
    rows = [
        {
            "source": model,
            "arm": name,
            **{key: getattr(point, key) for key in ("c", "tokens", "flop", "rho", "low")},
            "right": point.source,
            "right_full": point.full,
            "right_retain": point.retain,
            **_which(one.path.parent, weights_in(one.manifest or {}, run.model)),
        }
        for one, run, model in _records(places, "effort")
        for name, arm in run.arms.items()
        for point in arm.curve
    ]
    return _frame(rows)


def curves(*places: Place) -> pd.DataFrame:
    """One row per source, series and step: UDS and utility of `watch`, recovery of `effort`."""
    found, _ = locate([Path(place).expanduser() for place in places])
    chosen = [one for one in found if one.kind in POINTS]
    points = [
        asdict(point) | {"folder": str(one.path.parent)}
        for one in chosen
        for point in POINTS[one.kind](one)
    ]
    if not points:
        raise InputError("no curve of `lensaudit watch` or `lensaudit effort`; name its folder")
    return _frame(points)


def _which(folder: Path, weights: str) -> dict[str, str]:
    """Which of the results of a name this is: of which folder, and of which weights.

    >>> _which(Path("audited"), "sha256:2afdfd2973b1")
    {'folder': 'audited', 'weights': '2afdfd29'}
    >>> _which(Path("log"), "gpt")  # of another tool, which hashes none
    {'folder': 'log', 'weights': 'gpt'}
    """
    _, _, digits = weights.partition("sha256:")
    return {"folder": str(folder), "weights": digits[:8] or weights}


def called(found: Iterable[Found]) -> Called:
    """What verdict and page call each model of these results; of those that can be read."""
    told = []
    for one in found:
        with suppress(InputError):
            told += spoken(one)
    return names_of(told)


def _records(places: tuple[Place, ...], *kinds: Kind) -> list[tuple[Found, Any, str]]:
    """Results of some kinds, their records and models; one that cannot be read is a warning.

    Raises:
        InputError: none can; says why the first cannot.
    """
    runs, refused = [], []
    chosen, names = _found(places, *kinds)
    for one in chosen:
        try:
            runs += [(one, said, names[weights][0]) for said, weights, _ in spoken(one)]
        except InputError as error:
            refused.append(error)
            warnings.warn(str(error), stacklevel=4)
    if refused and not runs:
        raise refused[0]
    return runs


def _found(places: tuple[Place, ...], *kinds: Kind) -> tuple[list[Found], Called]:
    """The results of some kinds, and what all results call their models.

    What was met and cannot be read is a warning.

    Raises:
        InputError: a place does not exist, or none holds such a result.
    """
    found, left = locate([Path(place_in("frames", place)).expanduser() for place in places])
    for one in left:
        warnings.warn(f"{one.path}: {one.reason}", stacklevel=4)
    chosen = [one for one in found if one.kind in kinds]
    if not chosen:
        named = ", ".join(map(str, places)) or "nothing named"
        raise InputError(
            f"{named}: no result of `lensaudit {kinds[0]}`; run it, or name its folder"
        )
    return chosen, called(found)


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Numbers as numbers where there are gaps, too."""
    frame = pd.DataFrame(rows)
    numeric = [name for name in ("value", "low", "high", "baseline", "rho", "tau") if name in frame]
    return frame.astype(dict.fromkeys(numeric, float))
