"""All scores of one model, into one folder: `eval/` as `lensaudit eval`, `patch/` as `patch`."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lensaudit.errors import WorkError
from lensaudit.files import make_folder, read_json
from lensaudit.metrics.measure.job import Evaluated, Job, run_job
from lensaudit.metrics.registry import Entry, Metric, ordered, retain_names
from lensaudit.models.registry import load_registry
from lensaudit.patching.deposit import clear, deposit, with_texts
from lensaudit.patching.outcome import beside, summary_of
from lensaudit.patching.prepare import prepare
from lensaudit.patching.session import manifest_of, score_all, score_lens
from lensaudit.sweep.plan import Conditions
from lensaudit.sweep.planning import patched_data
from lensaudit.sweep.room import Room

LENS = "logit_lens"
FAILED = "patching failed"
"""How `eval` begins the reason of a patched score that broke; other reasons are answers."""


@dataclass(frozen=True)
class Subject:
    """One model among its anchors, by the names of a registry file."""

    name: str
    full: str
    retain: str
    registry: Path
    retain_log: Path | None
    """Of the retain model; None while that is what is measured."""


def measure(subject: Subject, conditions: Conditions, out: Path, room: Room) -> dict[str, Any]:
    """Measure into `out`; the values by metric, as a result file holds them.

    Patched scores come first: their errors are errors, while in an evaluation they would become
    a reason beside the other metrics.

    Raises:
        LensAuditError: the unit has no result; finished passes are kept in `out`.
    """
    values: dict[str, Any] = {}
    data = patched_data(conditions)
    if data is not None:
        values |= _patch(subject, conditions, data, out / "patch", room)
    job = _job(subject, conditions, out / "eval", room)
    if job.retain_log is None:
        # the retain model itself: its log is its own reference; no pass is run twice
        wanted = retain_names(ordered(job.suite, job.metrics))
        if wanted:
            run_job(replace(job, retain=None, metrics=tuple(wanted)), room.report)
            job = replace(job, retain_log=job.folder)
    found = run_job(job, room.report)
    for name, entry in found.entries.items():
        if (entry.reason or "").startswith(FAILED):
            raise WorkError(f"{name}: {entry.reason}")
    return {**{name: _value(found.metrics[name], e) for name, e in entries(found)}, **values}


def entries(found: Evaluated) -> list[tuple[str, Entry]]:
    """Metrics by name, sorted."""
    return sorted(found.entries.items())


def _job(subject: Subject, conditions: Conditions, out: Path, room: Room) -> Job:
    shared: dict[str, Any] = {
        key: getattr(conditions, key)
        for key in (
            "suite", "metrics", "data", "forget_split", "question_key", "limit", "classifier",
            "mask", "dtype", "device", "attn", "max_new_tokens",
        )
    }  # fmt: skip
    for key in ("forget", "holdout", "retain_set"):
        path = getattr(conditions, key)
        shared[key] = None if path is None else Path(path)
    return Job(
        model=subject.name,
        retain=subject.retain,
        full=subject.full,
        retain_log=subject.retain_log,
        registry=subject.registry,
        activations=room.activations,
        batch_size=room.batch_size(conditions),
        out=out,
        **shared,
    )


def _patch(
    subject: Subject, conditions: Conditions, data: str, out: Path, room: Room
) -> dict[str, Any]:
    """UDS of every example and layer, as `lensaudit patch` leaves it; the lens's value, if any."""
    started = time.monotonic()
    megabytes = max(256, _megabytes(conditions.memory) >> room.halvings)
    audit = prepare(
        [subject.name], registry=load_registry(subject.registry), full=subject.full,
        retain=subject.retain, data=data, limit=conditions.limit, activations=room.activations,
        notice=room.report, progress=lambda what, done, total: room.report(""),
        dtype=conditions.dtype, device=conditions.device, attn=conditions.attn,
        memory=f"{megabytes}M",
    )  # fmt: skip
    clear(make_folder(out))
    (outcome,), calibration = score_all(audit)
    summary, rows = summary_of(outcome, calibration), outcome.rows()
    values = {}
    if conditions.lens:
        (lens,), _ = score_lens(audit)
        summary, rows = beside(outcome, lens, calibration)
        low, high = summary["lens_ci95"] or (None, None)
        n_scored = summary["lens_n_scored"]
        values[LENS] = {
            "value": summary["lens"], "low": low, "high": high, "n_scored": n_scored,
            "n_unscored": summary["n"] - n_scored, "reason": None, "high_means": "forgot",
            "family": "depth",
        }  # fmt: skip
    made = manifest_of(audit, subject.name, asdict(outcome.options), started)
    deposit(out, outcome, summary, made, rows=with_texts(rows, audit.examples))
    return values


def _megabytes(text: str) -> int:
    from lensaudit.patching.options import parse_memory

    return parse_memory(text) >> 20


def _value(metric: Metric, entry: Entry) -> dict[str, Any]:
    """One metric as plain JSON."""
    finite = math.isfinite(entry.value)
    bounds = entry.interval if finite and entry.interval else None
    sides = list(entry.parts.values()) or [entry]
    return {
        "value": entry.value if finite else None,
        "low": bounds.low if bounds and math.isfinite(bounds.low) else None,
        "high": bounds.high if bounds and math.isfinite(bounds.high) else None,
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
    return {**options, "weights": manifest["inputs"]["model"]["weights"],
            "versions": manifest["versions"]}  # fmt: skip
