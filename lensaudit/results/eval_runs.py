"""What did `lensaudit eval` find of one model, `meta` of its metrics, and `steer` of a trait?"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import Strict

from lensaudit.errors import FailureKind, InputError
from lensaudit.results.reading import (
    JsonObject,
    Number,
    brief,
    check_inside,
    checked,
    checked_as,
    json_object,
    need,
    part,
)
from lensaudit.results.records import check_result, model_in
from lensaudit.scores.estimate import Estimate

_SHARE = re.compile(
    r"uds|logit_lens|em_erasure|mia_.+|\w+_(Prob|ROUGE)|exact_memorization|extraction_strength\w*|"
    r"forget_quality|model_utility"
)
"""Metrics that are a share, a probability or an area: from 0 to 1."""


@dataclass(frozen=True)
class LogEntry:
    """A metric as a log in open-unlearning's layout has it, and what its manifest says of it."""

    agg_value: Annotated[float, Strict()] | None
    """NaN and null are no value."""
    value_by_index: dict[str, Any] | None = None
    unscored: dict[str, Any] | None = None
    reason: str | None = None
    failed: FailureKind | None = None
    """How a pass that it reads broke; `reason` is no answer then."""
    interval_95: tuple[Number | None, Number | None] | None = None
    interval_95_why: str | None = None
    forget: "LogEntry | None" = None
    holdout: "LogEntry | None" = None
    family: str = "other"
    high_means: Literal["knows", "forgot"] | None = None
    """None where no manifest says."""
    source: str = ""

    @property
    def sides(self) -> "tuple[LogEntry, ...]":
        """Of an attack: what it says of members and of strangers."""
        return tuple(one for one in (self.forget, self.holdout) if one)

    @property
    def n_unscored(self) -> int:
        """Rows without a score; of an attack on both sides."""
        return sum(len(one.unscored or {}) for one in self.sides or (self,))

    @property
    def estimate(self) -> Estimate:
        """The number with its interval, over the rows that are scored."""
        value = self.agg_value
        asked = sum(
            len({**(one.value_by_index or {}), **(one.unscored or {})})
            for one in self.sides or (self,)
        )
        return Estimate.within(
            None if value is None or not isfinite(value) else value,
            self.interval_95,
            n=asked - self.n_unscored,
            why=self.reason or self.interval_95_why,
        )


@dataclass(frozen=True)
class EvalRun:
    """A finished evaluation of one model."""

    folder: Path
    model: str
    weights: str
    suite: str
    entries: Mapping[str, LogEntry]
    manifest: JsonObject | None
    """None for a log of another tool, which has none."""


def entries_of(content: Mapping[str, Any], where: object) -> dict[str, LogEntry]:
    """The metrics of a log by name.

    Raises:
        InputError: one of them is no metric.
    """
    found = {name: checked(LogEntry, raw, f"{where}: {name}") for name, raw in content.items()}
    for name, one in found.items():
        check_inside(Estimate.within(one.agg_value, one.interval_95), f"{where}: {name}")
        check_share(name, one.agg_value, f"{where}: {name}")
    return found


def check_share(name: str, value: float | None, where: object) -> None:
    """Refuse a share, a probability or an area that is none; other metrics pass.

    Raises:
        InputError: it is not from 0 to 1.
    """
    if value is None or not isfinite(value) or not _SHARE.fullmatch(name):
        return
    if not -1e-6 <= value <= 1 + 1e-6:
        raise InputError(f"{where} is {value:g}, wanted 0 to 1")


def read_eval(log_file: Path) -> EvalRun:
    """A log in open-unlearning's layout, with the manifest beside it where there is one.

    Raises:
        InputError: it is not a log.
    """
    check_result(log_file)
    entries = entries_of(json_object(log_file), log_file)
    if not entries:
        raise InputError(f"{log_file}: holds no metric")
    manifest_file = log_file.parent / "manifest.json"
    manifest = json_object(manifest_file) if manifest_file.exists() else None
    model = model_in(manifest, "model", manifest_file)
    for name, one in entries.items():
        told = part(manifest, "inputs", "metrics", name)
        high, family = told.get("high_means"), str(told.get("family", one.family))
        high = high if high in ("knows", "forgot") else None
        source = str(told.get("source", ""))
        entries[name] = replace(one, family=family, high_means=high, source=source)
    return EvalRun(
        folder=log_file.parent,
        model=model.name or log_file.parent.name,
        weights=model.weights or model.name or log_file.parent.name,
        suite=log_file.name.partition("_")[0].lower(),
        entries=entries,
        manifest=manifest,
    )


def answers_in(run: EvalRun) -> dict[int, tuple[str, str]]:
    """By idx of the forget set: what was asked and what was answered; where the log has it."""
    log = run.folder / f"{run.suite.upper()}_EVAL.json"
    rows = part(json_object(log), "forget_Q_A_ROUGE", "value_by_index")
    return {
        int(idx): (str(row.get("input", "")), str(row["generation"]))
        for idx, row in rows.items()
        if idx.isdecimal() and isinstance(row, Mapping) and "generation" in row
    }


def read_meta(path: Path) -> dict[str, Any]:
    """The table of the meta-evaluation: one row per metric.

    Raises:
        InputError: no rows.
    """
    joined = [
        {**row, "notes": "; ".join(map(str, row["notes"]))}
        if isinstance(row.get("notes"), list)
        else row
        for row in _rows(path, "metrics", "metric")
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


_HEADER = (
    "trait",
    "layer",
    "layer_convention",
    "method",
    "positions",
    "baseline",
    "baseline_mean",
    "max_delta",
    "max_delta_coherent",
    "controllability",
    "spearman",
    "slope",
    "best_layer",
    "best_score",
    "best_layer_coherent",
    "delta_from_baseline",
    "coefficient",
    "ratio",
    "seed",
)


def read_steering(path: Path) -> dict[str, Any]:
    """A trait steering evaluation (`results.json`) or a sweep over layers.

    Raises:
        InputError: neither.
    """
    content = json_object(path)
    what = "layers" if "layers" in content else "coefficients"
    need(content, path, "trait", what)
    points = checked_as(dict[str, dict[str, Any]], content[what], f"{path}: {what}")
    coherent = part(content, "coherence")
    listed = [_point(key, one, part(coherent, key), path) for key, one in points.items()]
    return brief(
        {
            "kind": what,
            "folder": str(path.parent),
            "head": {name: content[name] for name in _HEADER if content.get(name) is not None},
            "points": sorted(listed, key=lambda point: point["x"]),
        }
    )


def _point(key: str, one: JsonObject, coherence: JsonObject, path: Path) -> dict[str, Any]:
    """Score and coherence at one coefficient or layer; null where nothing could be judged."""
    try:
        x = float(key)
    except ValueError as error:
        raise InputError(f"{path}: {key[:40]!r} is no coefficient or layer") from error
    return {
        "x": x,
        "mean": one.get("mean", one.get("trait_mean")),
        "ci95": one.get("ci95"),
        "ci95_why": one.get("ci95_why"),
        "n": one.get("n"),
        "n_invalid": one.get("n_invalid"),
        "coherence": coherence.get("mean", one.get("coherence_mean")),
    }


def read_directions(path: Path) -> dict[str, Any]:
    """Directions added, ablated or clamped in an unlearned model: recovery beside its controls.

    Raises:
        InputError: no experiments.
    """
    content = json_object(path)
    need(content, path, "source", "experiments")
    where = f"{path}: experiments"
    experiments = checked_as(dict[str, dict[str, Any]], content["experiments"], where)
    found = [
        {
            "kind": kind,
            "unscored": one.get("unscored"),
            "reading": one.get("reading"),
            "warnings": one.get("warnings") or [],
            "above_control": one.get("recovery_above_control"),
            "kl_retain": one.get("kl_retain"),
            "utility_delta": one.get("utility_delta"),
            "arms": [
                {
                    "arm": name,
                    **{key: scored.get(key) for key in ("recovery", "ci95", "ci95_why", "n_items")},
                }
                for name in part(one, "arms")
                if (scored := part(one, "arms", name, str(one.get("score", "em"))))
            ],
        }
        for kind, one in experiments.items()
    ]
    counts = {name: content.get(name) for name in ("n_items", "n_groups", "n_folds", "score")}
    return brief(
        {"kind": "directions", "folder": str(path.parent), "source": str(content["source"])}
        | {"head": counts, "experiments": found}
    )
