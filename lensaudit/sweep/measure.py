"""All scores of one model, into one folder: `eval/` as `lensaudit eval`, `patch/` as `patch`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lensaudit.auditing.evaluate import EvaluationResult, evaluate_into
from lensaudit.auditing.patch import patch_into
from lensaudit.auditing.settings import EvaluateSettings, PatchSettings
from lensaudit.errors import WorkError
from lensaudit.files import read_json
from lensaudit.metrics.registry import Metric, MetricResult, ordered, retain_names
from lensaudit.sweep.plan import Conditions
from lensaudit.sweep.planning import patched_data
from lensaudit.sweep.room import Room

LENS = "logit_lens"


@dataclass(frozen=True)
class SweepSubject:
    """One model among its anchors, by the names of a registry file."""

    name: str
    full: str
    retain: str
    registry: Path
    retain_log: Path | None
    """Of the retain model; None while that is what is measured."""


def measure(subject: SweepSubject, conditions: Conditions, out: Path, room: Room) -> dict[str, Any]:
    """Measure into `out`; the values by metric, as a result file holds them.

    Patched scores come first: their errors are errors, while in an evaluation they would become
    a reason beside the other metrics.

    Raises:
        LensAuditError: the unit has no result; finished passes are kept in `out`.
    """
    values: dict[str, Any] = {}
    data = patched_data(conditions)
    if data is not None:
        settings = patching_of(subject, conditions, data, room)
        (found,) = patch_into(
            [subject.name], settings, out / "patch", notice=room.report, progress=room.tell
        ).results
        values |= {LENS: _lens(found.summary)} if conditions.lens else {}
        values |= _collateral(found.summary)
    settings = evaluation_of(subject, conditions, room)
    folder = out / "eval"
    if settings.retain_log is None:
        # the retain model itself: its log is its own reference; no pass is run twice
        wanted = retain_names(ordered(settings.suite, settings.metrics))
        if wanted:
            own = replace(settings, retain=None, metrics=tuple(wanted))
            _evaluated(subject.name, own, folder, room)
            settings = replace(settings, retain_log=folder)
    result = _evaluated(subject.name, settings, folder, room)
    if broken := next(iter(result.failures), None):
        raise WorkError(f"{broken.step}: patching failed: {broken.message}")
    return {**{name: _value(result.metrics[name], e) for name, e in entries(result)}, **values}


def _evaluated(
    model: str, settings: EvaluateSettings, folder: Path, room: Room
) -> EvaluationResult:
    found = evaluate_into(model, settings, folder, notice=room.report, progress=room.tell)
    return found.checked()


def entries(found: EvaluationResult) -> list[tuple[str, MetricResult]]:
    """Metrics by name, sorted."""
    return sorted(found.entries.items())


def evaluation_of(subject: SweepSubject, conditions: Conditions, room: Room) -> EvaluateSettings:
    """The output-level part, and its patched metrics."""
    return EvaluateSettings(
        suite=conditions.suite,
        metrics=conditions.metrics,
        data=conditions.data,
        forget_split=conditions.forget_split,
        forget=conditions.forget,
        holdout=conditions.holdout,
        retain_set=conditions.retain_set,
        question_key=conditions.question_key,
        limit=conditions.limit,
        retain_log=subject.retain_log,
        retain=subject.retain,
        full=subject.full,
        classifier=conditions.classifier,
        mask=conditions.mask,
        batch_size=room.batch_size(conditions),
        max_new_tokens=conditions.max_new_tokens,
        dtype=conditions.dtype,
        device=conditions.device,
        attn=conditions.attn,
        registry=subject.registry,
        activations=room.activations,
    )


def patching_of(
    subject: SweepSubject, conditions: Conditions, data: str, room: Room
) -> PatchSettings:
    """UDS of every example and layer, as `lensaudit patch` leaves it."""
    megabytes = max(256, _megabytes(conditions.memory) >> room.halvings)
    return PatchSettings(
        full=subject.full,
        retain=subject.retain,
        lens=conditions.lens,
        also=conditions.also,
        data=data,
        limit=conditions.limit,
        registry=subject.registry,
        dtype=conditions.dtype,
        device=conditions.device,
        memory=f"{megabytes}M",
        activations=room.activations,
    )


def _lens(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The Logit Lens depth as plain JSON."""
    low, high = summary["lens_ci95"] or (None, None)
    n_scored = summary["lens_n_scored"]
    return {
        "value": summary["lens"],
        "low": low,
        "high": high,
        "n_scored": n_scored,
        "n_unscored": summary["n"] - n_scored,
        "reason": None,
        "high_means": "forgot",
        "family": "depth",
    }


def _collateral(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Depth on facts to keep, and how much deeper the forgotten ones are erased, as plain JSON."""
    found: dict[str, Any] = {}
    for name, one in summary.get("collateral", {}).items():
        counts = {"n_scored": one["n_scored"], "n_unscored": one["n"] - one["n_scored"]}
        for key, value in (
            ("collateral", one | {"value": one["depth"]}),
            ("selectivity", one["selectivity"]),
        ):
            low, high = value["ci95"] or (None, None)
            found[f"{key}_{name}"] = {
                "value": value["value"],
                "low": low,
                "high": high,
                **counts,
                "reason": None if value["value"] is not None else "no fact could be scored",
                "high_means": "forgot",
                "family": "depth",
            }
    return found


def _megabytes(text: str) -> int:
    from lensaudit.patching.options import parse_memory

    return parse_memory(text) >> 20


def _value(metric: Metric, entry: MetricResult) -> dict[str, Any]:
    """One metric as plain JSON."""
    finite = math.isfinite(entry.value)
    low, high = (finite and entry.interval.ends) or (None, None)
    sides = list(entry.parts.values()) or [entry]
    return {
        "value": entry.value if finite else None,
        "low": low,
        "high": high,
        "n_scored": sum(len(one.records) for one in sides),
        "n_unscored": sum(len(one.unscored) for one in sides),
        "reason": None if finite else entry.reason or "no value",
        "high_means": metric.high_means,
        "family": metric.fn.__module__.rpartition(".")[2],
    }


def resolved(out: Path) -> Mapping[str, Any]:
    """What `auto` meant, and the weights that were measured."""
    manifest = read_json(out / "eval" / "manifest.json")
    options = {key: manifest["options"][key] for key in ("dtype", "device", "attn", "batch_size")}
    return {
        **options,
        "weights": manifest["inputs"]["model"]["weights"],
        "versions": manifest["versions"],
    }
