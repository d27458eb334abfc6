"""Logs on disk, ours, open-unlearning's and the older TOFU's: read, write, recompute."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lensaudit.data.suites import Suite
from lensaudit.errors import InputError
from lensaudit.files import write_json
from lensaudit.metrics.options import with_rest
from lensaudit.metrics.probability import record_of
from lensaudit.metrics.records import with_sound_rows
from lensaudit.metrics.registry import (
    all_names,
    finished_again,
    metric_of,
    ordered,
    unscored,
)
from lensaudit.results.integrity import check_result
from lensaudit.results.kinds.eval import (
    LOGS,
    EvaluationResult,
    MetricResult,
    Record,
    entries_of,
    log_in,
    log_name,
)
from lensaudit.results.reading import checked_as, document, json_object, part

_OLD_FILES = {
    "eval_log_forget.json": "forget",
    "eval_log.json": "retain",
    "eval_real_author_wo_options.json": "ra",
    "eval_real_world_wo_options.json": "wf",
}
"""Tasks of locuslab/tofu @ 8c49eee `eval_log_aggregated.json`."""


def read_log(path: Path) -> EvaluationResult:
    """A log in any of the three layouts; a folder means the log in it.

    Raises:
        InputError: not a log, or a record that is not one.
    """
    if path.is_dir():
        present = [one for name in LOGS for one in path.glob(name)]
        if len(present) != 1:
            raise InputError(f"{path}: wanted one of {', '.join(LOGS)} in it")
        path = present[0]
    check_result(path)
    content = json_object(path)
    found = (
        EvaluationResult(path.parent.name, path, "tofu", _old_entries(content, path))
        if set(content) & set(_OLD_FILES)
        else log_in(content, path)
    )
    return replace(
        found, entries={n: with_sound_rows(n, one, path) for n, one in found.entries.items()}
    )


def completed(log: EvaluationResult) -> Mapping[str, MetricResult]:
    """The metrics of a log and those that its rows determine: an older one has no truth ratio."""
    again = recomputed(log)
    return {**log.entries, **{n: e for n, e in again.items() if e.value is not None}}


def write_log(folder: Path, suite: Suite, entries: Mapping[str, MetricResult]) -> Path:
    """Write `<SUITE>_EVAL.json` and `<SUITE>_SUMMARY.json`, which holds what has a value."""
    content = {name: document(entries[name]) for name in sorted(entries)}
    summary = {n: entry.value for n, entry in entries.items() if entry.value is not None}
    write_json(folder / f"{suite.upper()}_SUMMARY.json", summary)
    return write_json(folder / log_name(suite), content)


def recomputed(
    log: EvaluationResult,
    *,
    retain: Mapping[str, MetricResult] | None = None,
    retain_value: float | None = None,
    names: Collection[str] = (),
) -> dict[str, MetricResult]:
    """Every aggregate that the rows of a log determine, computed again from those rows.

    Without names: all of the suite, and what else the log has. A log does not say whose its rows
    are: intervals and tests that it has stay while the value is the same, see `finished_again`.
    What follows from other metrics is computed from them where the log has them, else from its
    own rows; a comparison with the retain model needs its log again, or the value in its place.
    """
    done: dict[str, MetricResult] = {}
    named = {metric_of(one).name for one in with_rest(names)}
    for metric in ordered(log.suite, names or all_names(log.suite, log.entries)):
        before = log.entries.get(metric.name)
        own = before or log.entries.get(metric.rows_of)
        if metric.needs and done.keys() >= {*metric.local_needs}:
            context = metric.context(log.suite, None, done, retain or {}, retain_value=retain_value)
            done[metric.name] = finished_again(metric, metric.fn(context), before)
        elif own is not None and (own.records or own.parts or own.unscored):
            done[metric.name] = finished_again(metric, own, before)
        elif metric.name in named:
            done[metric.name] = unscored(f"{log.path.name} has no rows it could be computed from")
    return done


def _old_entries(content: Mapping[str, Any], path: Path) -> dict[str, MetricResult]:
    """Rows of the older TOFU log under the names they have now."""
    entries: dict[str, MetricResult] = {}
    for file, split in _OLD_FILES.items():
        task = checked_as(dict[str, Any], content.get(file, {}), f"{path}: {file}")
        kinds = {"Prob": "avg_gt_loss", "PERT_Prob": "average_perturb_loss"}
        # the others have no paraphrases: it is the answer again
        kinds |= {"PARA_Prob": "avg_paraphrased_loss"} if split in ("forget", "retain") else {}
        found = {
            f"{split}_Q_A_{name}": {idx: record_of(loss) for idx, loss in part(task, key).items()}
            for name, key in kinds.items()
        } | {f"{split}_Q_A_ROUGE": _old_rouge(task, path)}
        layout = {n: {"agg_value": None, "value_by_index": rows} for n, rows in found.items()}
        entries |= entries_of({n: one for n, one in layout.items() if one["value_by_index"]}, path)
    return entries


def _old_rouge(task: Mapping[str, Any], path: Path) -> dict[str, Record]:
    """What was asked, said and wanted, with its scores, by row number as text."""
    texts, first = (part(task, name) for name in ("generated_text", "rouge1_recall"))
    texts = checked_as(dict[str, list[str | None] | None], texts, f"{path}: generated_text")
    found: dict[str, Record] = {}
    for idx, recall in part(task, "rougeL_recall").items():
        asked, said, wanted = (*(texts.get(idx) or ()), "", "", "")[:3]
        known = {"rouge1_recall": first[idx]} if idx in first else {}
        quoted = {"input": asked, "ground_truth": wanted, "generation": said}
        found[idx] = {"rougeL_recall": recall, **known, **quoted}
    return found
