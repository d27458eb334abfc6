"""The metrics of a suite, computed from the passes they share, and the rows they score."""

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lensaudit.data.chat import folds_system
from lensaudit.data.suites import Suite
from lensaudit.evaluation.passes import ModelPasses
from lensaudit.evaluation.texts import notes_on
from lensaudit.groups import Group
from lensaudit.metrics.records import finished
from lensaudit.metrics.registry import (
    Conventions,
    Metric,
    MetricContext,
    MetricResult,
    Read,
    all_metrics,
    ordered,
    unscored,
)

_ORDER = ("trace", "gradient", "text", "jailbreak", "fluency", "reference", "patched")
"""Of the passes: the quick and most read ones first, those that need other models last."""


def evaluate(
    passes: ModelPasses,
    suite: Suite,
    names: Iterable[str] = (),
    *,
    retain: Mapping[str, MetricResult] | None = None,
    conventions: Conventions | None = None,
) -> dict[str, MetricResult]:
    """The named metrics with what they need, or all of the suite; an entry for each.

    Passes of the audited model run first, then those of the reference model, so that only one of
    the two is in memory. A metric that cannot be computed is an entry with a reason.
    """
    metrics = ordered(suite, names)
    run_passes(passes, reads_of(metrics, passes, suite))
    done: dict[str, MetricResult] = {}
    for metric in metrics:
        done[metric.name] = _computed(
            metric, suite, passes, done, retain or {}, conventions or Conventions()
        )
    return done


def reads_of(metrics: Sequence[Metric], passes: ModelPasses, suite: Suite) -> list[Read]:
    """Every pass that some computable metric reads, the reference model's last."""
    reads: dict[Read, None] = {}
    for metric in metrics:
        if obstacle(metric, suite, passes) is None:
            reads |= dict.fromkeys(metric.reads[suite])
    return sorted(reads, key=lambda read: _ORDER.index(read.kind))


def run_passes(passes: ModelPasses, reads: Sequence[Read]) -> None:
    """Run each pass; one model leaves memory before another enters."""
    kinds = [read.kind for read in reads]
    for place, read in enumerate(reads):
        if read.kind in ("reference", "patched") and read.kind not in kinds[:place]:
            passes.release()
        passes.run(read)
    passes.release()


def obstacle(metric: Metric, suite: Suite, passes: ModelPasses) -> str | None:
    """Why a metric's passes cannot be run."""
    if metric.package and importlib.util.find_spec(metric.package) is None:
        return f"needs the package {metric.package}, which is not installed"
    found = (passes.missing(read) for read in metric.reads[suite])
    return next((reason for reason in found if reason), None)


def _computed(
    metric: Metric,
    suite: Suite,
    passes: ModelPasses,
    done: Mapping[str, MetricResult],
    retain: Mapping[str, MetricResult],
    conventions: Conventions,
) -> MetricResult:
    reason = obstacle(metric, suite, passes)
    needs = {need: done[need] for need in metric.local_needs}
    for name, need in needs.items():
        if reason is None and need.value is None and not need.records:
            reason = f"needs {name}: {need.reason}"
    if reason is not None:
        broken = next(filter(None, map(passes.failed, metric.reads[suite])), None)
        return unscored(reason, broken.kind if broken else None)
    context = MetricContext(suite, metric.reads[suite], passes, needs, retain, conventions)
    return finished(metric, metric.fn(context), groups_of(metric, suite, passes))


def split_of(metric: Metric, suite: Suite, metrics: Mapping[str, Metric]) -> str | None:
    """The split whose rows a metric scores; None for one without rows of its own."""
    if metric.reads[suite]:
        return metric.reads[suite][0].split
    if metric.row_value is None or not metric.local_needs:
        return None
    return split_of(metrics[metric.local_needs[0]], suite, metrics)


def groups_of(metric: Metric, suite: Suite, passes: ModelPasses) -> list[dict[int, Group]]:
    """The author of each row of a metric's split; of both of an attack."""
    metrics = {one.name: one for one in ordered(suite)}
    own = [read.split for read in metric.reads[suite]] if metric.combine else []
    splits = passes.all_splits
    return [
        {row.idx: row.group for row in splits[split].rows} if split and split in splits else {}
        for split in own or [split_of(metric, suite, metrics)]
    ]


def notes(passes: ModelPasses, reads: Sequence[Read]) -> list[str]:
    """What a reader should know about how texts were encoded and continued."""
    views = {
        (read.split, read.field): passes.view(read) for read in reads if read.kind != "patched"
    }
    said = notes_on(list(views.values()))
    if folds_system(passes.asked.tokenizer, passes.asked.template):
        said.append(
            "the chat template takes no system text; it stands before the first question instead"
        )
    if obeyed := passes.subject.obeyed:
        listed = ", ".join(f"{key} {value}" for key, value in obeyed.items())
        said.append(f"generations follow the checkpoint's generation configuration: {listed}")
    spoken = {(read.split, read.kind): read for read in reads if read.kind in ("text", "jailbreak")}
    cut = {f"{split} {kind}": len(passes.cut(read)) for (split, kind), read in spoken.items()}
    if any(cut.values()):
        where = ", ".join(f"{n} of {name}" for name, n in cut.items() if n)
        said.append(f"generations cut at the limit of new tokens: {where}; raise --max-new-tokens")
    return said


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
