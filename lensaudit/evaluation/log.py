"""Logs on disk, ours, open-unlearning's and the older TOFU's: read, write, recompute."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.data.suites import Suite
from lensaudit.errors import Failure, InputError, WorkError
from lensaudit.files import read_json, write_json
from lensaudit.metrics.probability import probability_record
from lensaudit.metrics.records import finished
from lensaudit.metrics.registry import (
    MetricContext,
    MetricResult,
    Record,
    ordered,
    unscored,
)
from lensaudit.results.eval_runs import LogEntry, entries_of
from lensaudit.results.reading import checked_as, null, part
from lensaudit.results.records import MANIFEST, check_result

_OLD_FILES = {
    "eval_log_forget.json": "forget",
    "eval_log.json": "retain",
    "eval_real_author_wo_options.json": "ra",
    "eval_real_world_wo_options.json": "wf",
}
"""Tasks of locuslab/tofu @ 8c49eee `eval_log_aggregated.json`."""
_SIDES = ("forget", "holdout")


@dataclass(frozen=True)
class EvaluationResult:
    """What an evaluation found of one model, as its log holds it."""

    source: str
    path: Path
    """Of the log, <SUITE>_EVAL.json; beside it results.jsonl and manifest.json."""
    suite: Suite
    entries: Mapping[str, MetricResult]
    """Metric -> what was found of it; a reason where that is nothing."""
    notes: tuple[str, ...] = ()
    """How texts were encoded, where that needs saying."""

    @property
    def folder(self) -> Path:
        """Of the log."""
        return self.path.parent

    @property
    def summary(self) -> Mapping[str, float | None]:
        """Metric -> value; None where it has none: see `why_not`."""
        return {name: entry.value for name, entry in self.entries.items()}

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Metrics whose pass broke; the others are there."""
        entries = self.entries.items()
        return tuple(Failure(self.source, n, e.failed, e.why or "") for n, e in entries if e.failed)

    def why_not(self, metric: str) -> str | None:
        """Why a metric has no value; None where it has one."""
        return self.entries[metric].reason

    @property
    def uds(self) -> float | None:
        """Unlearning Depth Score, where a retain model was named; else None: see `reason`."""
        return self.summary.get("uds")

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % interval of `uds` by authors; None where there is none."""
        return None if self.uds is None else self.entries["uds"].ends

    @property
    def reason(self) -> str | None:
        """Why there is no UDS; None where there is one."""
        return self.why_not("uds") if "uds" in self.entries else "UDS was not asked for"

    def checked(self) -> "EvaluationResult":
        """Itself, if any metric has a value.

        Raises:
            WorkError: none has; the first reason is named.
        """
        if any(entry.value is not None for entry in self.entries.values()):
            return self
        first = next(iter(self.entries.values()))
        raise WorkError(f"no metric has a value; {first.reason}; see {self.folder}")

    @property
    def complete(self) -> Mapping[str, MetricResult]:
        """Its metrics and those that its rows determine: an older log has no truth ratio."""
        again = recomputed(self)
        return {**self.entries, **{n: e for n, e in again.items() if e.value is not None}}


def read_log(path: Path) -> EvaluationResult:
    """A log in any of the three layouts; a folder means the log in it.

    Raises:
        InputError: not a log, or a record that is not one.
    """
    if path.is_dir():
        present = [*path.glob("TOFU_EVAL.json"), *path.glob("MUSE_EVAL.json")]
        if len(present) != 1:
            raise InputError(f"{path}: wanted one of TOFU_EVAL.json, MUSE_EVAL.json in it")
        path = present[0]
    check_result(path)
    content = read_json(path)
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path}: is not a log; wanted TOFU_EVAL.json, MUSE_EVAL.json or older")
    if set(content) & set(_OLD_FILES):
        return EvaluationResult(str(path), path, "tofu", _old_entries(content, path))
    found = entries_of(content, path)
    entries = {name: _entry(one, f"{path}: {name}") for name, one in found.items()}
    muse = any("mem_ROUGE" in name for name in entries) or path.name.startswith("MUSE")
    made = path.parent / MANIFEST
    notes = part(read_json(made), "inputs").get("notes", ()) if made.exists() else ()
    return EvaluationResult(str(path), path, "muse" if muse else "tofu", entries, tuple(notes))


def write_log(folder: Path, suite: Suite, entries: Mapping[str, MetricResult]) -> Path:
    """Write `<SUITE>_EVAL.json` and `<SUITE>_SUMMARY.json`, which holds what has a value."""
    content = {name: _json(entries[name]) for name in sorted(entries)}
    summary = {n: entry.value for n, entry in entries.items() if entry.value is not None}
    write_json(folder / f"{suite.upper()}_SUMMARY.json", summary)
    return write_json(folder / f"{suite.upper()}_EVAL.json", content)


def recomputed(
    log: EvaluationResult,
    *,
    retain: Mapping[str, MetricResult] | None = None,
    retain_value: float | None = None,
    names: Collection[str] = (),
) -> dict[str, MetricResult]:
    """Every aggregate that the rows of a log determine, computed again from those rows.

    What follows from other metrics is computed from them where the log has them, else from its
    own rows; a comparison with the retain model needs its log again, or the value in its place.
    """
    done: dict[str, MetricResult] = {}
    for metric in ordered(log.suite, names):
        needs = {need: done[need] for need in metric.local_needs if need in done}
        own = log.entries.get(metric.name)
        if metric.needs and len(needs) == len(metric.local_needs):
            context = MetricContext(
                log.suite, (), None, needs, retain or {}, retain_value=retain_value
            )
            done[metric.name] = finished(metric, metric.fn(context))
        elif own is not None and (own.records or own.parts):
            done[metric.name] = finished(metric, own)
        elif metric.name in names:
            done[metric.name] = unscored(f"{log.path.name} has no rows it could be computed from")
    return done


def _json(entry: MetricResult) -> dict[str, Any]:
    """An entry in open-unlearning's layout, with reasons where it has gaps."""
    rows = {str(idx): null(record) for idx, record in entry.records.items()}
    fields = next(iter(rows.values()), {"score": None})
    headline = {key: None for key in fields if key not in ("input", "ground_truth", "generation")}
    gaps = {str(idx): headline for idx in entry.unscored if str(idx) not in rows}
    out: dict[str, Any] = {name: _json(part) for name, part in entry.parts.items()}
    out |= {name: null(value) for name, value in entry.details.items()}
    out["agg_value"] = null(entry.value)
    if rows or (gaps and not entry.parts):
        out["value_by_index"] = dict(sorted((rows | gaps).items(), key=lambda row: int(row[0])))
    if entry.unscored:
        out["unscored"] = {str(idx): reason for idx, reason in sorted(entry.unscored.items())}
    out |= {name: one for name in ("reason", "failed") if (one := getattr(entry, name))}
    if entry.ends:
        out["interval_95"] = list(entry.ends)
    elif entry.value is not None and entry.why:
        out |= entry.limits("interval_95")
    if entry.assumes:
        out["interval_95_assumes"] = entry.assumes
    return out


def _entry(found: LogEntry, where: str) -> MetricResult:
    reasons = {int(idx): str(why) for idx, why in (found.unscored or {}).items()}
    records: dict[int, Mapping[str, Any]] = {}
    for key, record in (found.value_by_index or {}).items():
        if not isinstance(record, dict) or not key.isdigit():
            raise InputError(f"{where}: row {key!r} is not a record under a row number")
        if any(value is None for value in record.values()):
            reasons.setdefault(int(key), "null in the log")
        else:
            records[int(key)] = record
    sides = zip(_SIDES, found.sides, strict=True) if len(found.sides) == len(_SIDES) else ()
    return MetricResult(
        null(found.agg_value),
        *(found.interval_95 or (None, None)),
        records=records,
        unscored=reasons,
        parts={side: _entry(one, f"{where}.{side}") for side, one in sides},
        why=found.reason or found.interval_95_why,
        failed=found.failed,
    )


def _old_entries(content: Mapping[str, Any], path: Path) -> dict[str, MetricResult]:
    """Rows of the older TOFU log under the names they have now."""
    entries: dict[str, MetricResult] = {}
    for file, split in _OLD_FILES.items():
        task = checked_as(dict[str, Any], content.get(file, {}), f"{path}: {file}")
        kinds = {"Prob": "avg_gt_loss", "PERT_Prob": "average_perturb_loss"}
        if split in ("forget", "retain"):  # the others have no paraphrases: it is the answer again
            kinds["PARA_Prob"] = "avg_paraphrased_loss"
        found = {
            f"{split}_Q_A_{name}": {
                idx: probability_record(
                    loss if isinstance(loss, list) else [loss], listed=isinstance(loss, list)
                )
                for idx, loss in part(task, key).items()
            }
            for name, key in kinds.items()
        }
        found[f"{split}_Q_A_ROUGE"] = _old_rouge(task)
        for name, rows in found.items():
            records = {int(idx): record for idx, record in rows.items()}
            entries |= {name: MetricResult(records=records)} if records else {}
    return entries


def _old_rouge(task: Mapping[str, Any]) -> dict[str, Record]:
    """What was asked, said and wanted, with its scores, by row number as text."""
    texts, first = part(task, "generated_text"), part(task, "rouge1_recall")
    found: dict[str, Record] = {}
    for idx, recall in part(task, "rougeL_recall").items():
        asked, said, wanted = (*texts.get(idx, ()), "", "", "")[:3]
        known = {"rouge1_recall": first[idx]} if idx in first else {}
        quoted = {"input": asked, "ground_truth": wanted, "generation": said}
        found[idx] = {"rougeL_recall": recall, **known, **quoted}
    return found
