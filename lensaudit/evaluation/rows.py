"""One line per example: what was asked, wanted and said, and every score it got."""

from collections.abc import Iterator, Mapping
from typing import Any

from lensaudit.data.suites import Suite
from lensaudit.evaluation.passes import ModelPasses
from lensaudit.evaluation.suite import split_of
from lensaudit.metrics.registry import MetricResult, all_metrics


def result_rows(
    suite: Suite, passes: ModelPasses, entries: Mapping[str, MetricResult]
) -> Iterator[dict[str, Any]]:
    """The rows of `results.jsonl`, split by split."""
    scored = _by_split(suite, entries)
    for name, split in passes.all_splits.items():
        theirs = scored.get(name, {})
        for row in split.rows:
            scores = {
                m: e.per_example[row.idx] for m, e in theirs.items() if row.idx in e.per_example
            }
            gaps = {m: e.unscored[row.idx] for m, e in theirs.items() if row.idx in e.unscored}
            if scores or gaps:
                yield {
                    "split": name,
                    "idx": row.idx,
                    "question": row.question,
                    **{field: answer for field, answer in row.answers.items()},
                    **_said(theirs, row.idx),
                    "scores": scores,
                    "unscored": gaps,
                }


def _by_split(
    suite: Suite, entries: Mapping[str, MetricResult]
) -> dict[str, dict[str, MetricResult]]:
    """Entries with rows, under the split whose rows they score."""
    metrics = all_metrics()
    found: dict[str, dict[str, MetricResult]] = {}
    for name, entry in entries.items():
        metric = metrics[name]
        for read, part in zip(metric.reads[suite], entry.parts.values(), strict=False):
            found.setdefault(read.split, {})[name] = part
        split = split_of(metric, suite, metrics)
        if split is not None and not entry.parts:
            found.setdefault(split, {})[name] = entry
    return found


def _said(entries: Mapping[str, MetricResult], idx: int) -> dict[str, str]:
    """What the model generated for a row, with and without a forced beginning."""
    said: dict[str, str] = {}
    for name, entry in entries.items():
        text = entry.records.get(idx, {}).get("generation")
        if isinstance(text, list):
            text = text[0]
        if text is not None:
            key = "jailbreak_generation" if "jailbreak" in name else "generation"
            said.setdefault(key, text)
    return said
