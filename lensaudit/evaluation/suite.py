"""The metrics of a suite, from the passes they share, beside a retain log that belongs to them."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lensaudit.data.chat import folds_system
from lensaudit.data.suites import Suite
from lensaudit.errors import InputError
from lensaudit.evaluation.forward import notes_on
from lensaudit.evaluation.log import completed
from lensaudit.evaluation.passes import ModelPasses
from lensaudit.metrics.privacy import ATTACKS
from lensaudit.metrics.registry import (
    EmptyRow,
    Metric,
    MetricContext,
    Read,
    alternatives,
    finished,
    metric_of,
    ordered,
    unscored,
)
from lensaudit.results.kinds.eval import EvaluationResult, MetricResult
from lensaudit.results.manifest import mark_of, model_in
from lensaudit.results.reading import part
from lensaudit.results.roles import InRole, ModelRole, check_roles
from lensaudit.text import digest

_OTHERS = ("reference", "patched")
"""Passes that need other models."""
_ORDER = ("trace", "gradient", "text", "jailbreak", "fluency", *_OTHERS)
"""Of the passes: the quick and most read ones first, those that need other models last."""


def evaluate(
    passes: ModelPasses,
    suite: Suite,
    names: Iterable[str] = (),
    *,
    retain: Mapping[str, MetricResult] | None = None,
    empty: EmptyRow = "unscored",
    retain_value: float | None = None,
) -> dict[str, MetricResult]:
    """The named metrics with what they need, or all of the suite; an entry for each.

    Passes of the audited model run first, then those of the reference model, so that only one of
    the two is in memory. A metric that cannot be computed is an entry with a reason. `retain`,
    `empty` and `retain_value` are those of `MetricContext`.
    """
    metrics = ordered(suite, names)
    reads = reads_of(metrics, passes, suite)
    for place, read in enumerate(reads):
        # one model leaves memory before another enters
        if read.kind in _OTHERS and all(one.kind != read.kind for one in reads[:place]):
            passes.release()
        passes.run(read)
    passes.release()
    done: dict[str, MetricResult] = {}
    how = {"empty": empty, "retain_value": retain_value}
    for one in metrics:
        done[one.name] = _computed(one, one.context(suite, passes, done, retain or {}, **how))
    return done


def reads_of(metrics: Sequence[Metric], passes: ModelPasses, suite: Suite) -> list[Read]:
    """Every pass that some computable metric reads, the reference model's last."""
    able = (metric for metric in metrics if obstacle(metric, suite, passes) is None)
    reads = dict.fromkeys(read for metric in able for read in metric.reads[suite])
    return sorted(reads, key=lambda read: _ORDER.index(read.kind))


def obstacle(metric: Metric, suite: Suite, passes: ModelPasses) -> str | None:
    """Why a metric's passes cannot be run."""
    return next(filter(None, map(passes.missing, metric.reads[suite])), None)


def _computed(metric: Metric, context: MetricContext) -> MetricResult:
    suite, passes = context.suite, context.passes
    reason = obstacle(metric, suite, passes)
    for name, need in context.done.items():
        if reason is None and need.value is None and not need.records:
            reason = f"needs {name}: {need.reason}"
    if reason is not None:
        broken = next(filter(None, map(passes.failed, context.reads)), None)
        return unscored(reason, broken.kind if broken else None)
    known = passes.all_splits
    rows = [known[one].rows if one in known else () for one in splits_of(metric, suite)]
    groups = [{row.idx: row.group for row in own} for own in rows]
    return finished(metric, metric.fn(context), groups)


def splits_of(metric: Metric, suite: Suite) -> list[str]:
    """The splits whose rows a metric scores, of an attack both; none without rows of its own."""
    if metric.reads[suite]:
        splits = [read.split for read in metric.reads[suite]]
        return splits[: 2 if metric.combine else 1]
    if metric.row_value is None or not metric.local_needs:
        return []
    return splits_of(metric_of(metric.local_needs[0]), suite)


def notes(passes: ModelPasses, reads: Sequence[Read]) -> list[str]:
    """What a reader should know about how texts were encoded and continued."""
    seen = {f"{one.split}.{one.field}": one for one in reads if one.kind != "patched"}
    said = notes_on({name: passes.view(one) for name, one in seen.items()})
    if folds_system(passes.asked.tokenizer, passes.asked.template):
        said.append(
            "the chat template takes no system text; it stands before the first question instead"
        )
    if obeyed := passes.subject.obeyed:
        listed = ", ".join(f"{key} {value}" for key, value in obeyed.items())
        said.append(f"generations follow the checkpoint's generation configuration: {listed}")
    spoken = {(read.split, read.kind): read for read in reads if read.kind in ("text", "jailbreak")}
    for (split, kind), read in spoken.items():
        n_thoughts, n_cut = passes.thoughts(read)
        if n_thoughts:
            more = "; raise --max-new-tokens, or ask with --think empty" if n_cut else ""
            said.append(
                f"{n_thoughts} answers of {split} {kind} begin with a thought, which is left out; "
                f"{n_cut} of these thoughts were cut and have no answer: unscored{more}"
            )
    cut = {f"{split} {kind}": len(passes.cut(read)) for (split, kind), read in spoken.items()}
    if any(cut.values()):
        where = ", ".join(f"{n} of {name}" for name, n in cut.items() if n)
        said.append(f"generations cut at the limit of new tokens: {where}; raise --max-new-tokens")
    return said


def result_rows(
    suite: Suite, passes: ModelPasses, entries: Mapping[str, MetricResult]
) -> Iterator[dict[str, Any]]:
    """The rows of `results.jsonl`, split by split."""
    scored = dict[str, dict[str, MetricResult]]()
    for name, entry in entries.items():
        sides = tuple(entry.parts.values()) or (entry,)
        for split, side in zip(splits_of(metric_of(name), suite), sides, strict=False):
            scored.setdefault(split, {})[name] = side
    for name, split in passes.all_splits.items():
        theirs = scored.get(name, {})
        numbers = {m: metric_of(m).numbers(e) for m, e in theirs.items()}
        for row in split.rows:
            scores = {m: own[row.idx] for m, own in numbers.items() if row.idx in own}
            gaps = {m: e.unscored[row.idx] for m, e in theirs.items() if row.idx in e.unscored}
            if scores or gaps:
                yield {
                    "split": name,
                    "idx": row.idx,
                    "question": row.question,
                    **row.answers,
                    **_said(theirs, row.idx),
                    "scores": scores,
                    "unscored": gaps,
                }


def _said(entries: Mapping[str, MetricResult], idx: int) -> dict[str, str]:
    """What the model generated for a row, with and without a forced beginning."""
    said: dict[str, str] = {}
    for name, entry in entries.items():
        key = "jailbreak_generation" if "jailbreak" in name else "generation"
        for text in alternatives(entry.records.get(idx, {}).get("generation", ())):
            said.setdefault(key, text)
    return said


_TEXTS = {
    "forget_Q_A_ROUGE": Read("text", "forget"),
    "forget_Q_A_PARA_ROUGE": Read("text", "forget", "paraphrased_answer"),
    "retain_Q_A_ROUGE": Read("text", "retain"),
    "forget_verbmem_ROUGE": Read("text", "verbmem", "gt"),
    "forget_knowmem_ROUGE": Read("text", "forget_qa"),
}
"""Metrics whose records quote prompt and gold answer, and where this run has them."""
Place = tuple[str, str | None]
"""A metric, or a side of an attack, with rows of its own in a log."""
_ROWS: Mapping[Suite, Mapping[Place, str]] = {
    "tofu": {
        ("forget_truth_ratio", None): "forget",
        ("forget_Q_A_Prob", None): "forget",
        ("exact_memorization", None): "forget",
        **{(attack, side): side for attack in ATTACKS.values() for side in ("forget", "holdout")},
    },
    "muse": {
        (attack, side): split
        for attack in ATTACKS.values()
        for side, split in {"forget": "members", "holdout": "non_members"}.items()
    },
}
"""Metrics, and sides of attacks, with the split whose row numbers they should have."""


def conditions(passes: ModelPasses) -> dict[str, object]:
    """What must be equal for two models' logs to be compared, as content hashes."""
    return {
        "mask": passes.asked.mask,
        "template": digest(passes.asked.template.keys),
        # whichever question key asks for it
        "answers": {
            name: digest([[row.idx, dict(row.answers)] for row in split.rows])
            for name, split in passes.splits.items()
        },
        "n_new": {name: passes.n_new(split) for name, split in passes.splits.items()},
    }


def retain_reference(
    log: EvaluationResult, passes: ModelPasses, suite: Suite, empty: EmptyRow = "unscored"
) -> Mapping[str, MetricResult]:
    """The metrics of a retain model's log, once it is known to belong to this run.

    A log of other rows, another template, mask or score of empty rows is refused, as far as it can
    be told: one of ours by the manifest beside it, one of open-unlearning by the texts that its
    ROUGE records quote and by its row numbers. The question key may differ, as in the published
    runs with paraphrased questions.

    Raises:
        InputError: names the first difference.
    """
    own = InRole("source", passes.subject.name, passes.subject.conditions.weights)
    rows = {
        place: (passes.splits[split].source, {row.idx for row in passes.splits[split].rows})
        for place, split in _ROWS[suite].items()
        if split in passes.splits
    }
    check_beside(log, suite, own, {**conditions(passes), "empty": empty}, rows)
    for name, read in _TEXTS.items():
        if name in log.entries and passes.missing(read) is None:
            _check_texts(log, name, log.entries[name], passes, read)
    return completed(log)


def model_in_log(role: ModelRole, log: EvaluationResult) -> InRole:
    """The model of a log: by its weights, or by the log's content where no manifest says them."""
    weights = model_in(log.manifest, "model").weights or mark_of(log.path)["blake2b"]
    return InRole(role, str(log.path), weights)


def check_beside(
    log: EvaluationResult,
    suite: Suite,
    own: InRole,
    made: Mapping[str, Any],
    rows: Mapping[Place, tuple[object, Collection[int]]],
) -> None:
    """Refuse a log of another suite, of the model itself, or made with other rows or settings.

    Args:
        log: of a retain model.
        suite: of the run that it stands beside.
        own: the model of that run.
        made: its `conditions`; nothing where they are not known.
        rows: where it has rows, whose they are and their numbers.
    """
    if log.suite != suite:
        raise InputError(f"{log.path}: is a log of suite {log.suite}, this run is {suite}")
    check_roles([own, model_in_log("retain", log)])
    _check_conditions(log, made)
    for (name, side), found in rows_in(log).items():
        source, wanted = rows.get((name, side), ("", found))
        if found != wanted:
            what = f"{name}.{side}" if side else name
            raise InputError(
                f"{log.path}: made with another split: {what} has {len(found)} rows, {source} "
                f"gives {len(wanted)} here; make the log with the same data and --limit"
            )


def rows_in(log: EvaluationResult) -> dict[Place, set[int]]:
    """The row numbers of a log, where it has rows."""
    sides = {
        (name, side): log.entries[name].parts.get(side, MetricResult())
        if side
        else log.entries[name]
        for name, side in _ROWS[log.suite]
        if name in log.entries
    }
    found = {place: {*one.records, *one.unscored} for place, one in sides.items()}
    return {place: rows for place, rows in found.items() if rows}


def _check_conditions(log: EvaluationResult, wanted: Mapping[str, Any]) -> None:
    made = log.conditions
    if not made or not wanted:
        return
    for key in ("mask", "template", *({"empty"} & made.keys() & wanted.keys())):
        if made.get(key) != wanted[key]:
            what = "--set empty" if key == "empty" else key
            raise InputError(
                f"{log.path}: made with another {what}; make the retain log again with this one"
            )
    answers = made.get("answers", {})
    for name, found in part(wanted, "answers").items():
        if name in answers and answers[name] != found and name not in ("ra", "wf", "retain"):
            raise InputError(f"{log.path}: made with other rows of {name}; name the right log")


def _check_texts(
    log: EvaluationResult, name: str, entry: MetricResult, passes: ModelPasses, read: Read
) -> None:
    split, view = passes.splits[read.split], passes.view(read)
    for row in split.rows:
        record = entry.records.get(row.idx, {})
        if row.idx not in view.rows or not isinstance(record.get("ground_truth"), str):
            continue
        asked, wanted = passes.asked_and_wanted(split, view.rows[row.idx][0])
        if _bare(record["ground_truth"]) != _bare(wanted):
            raise InputError(
                f"{log.path}: made with another split: {name} row {row.idx} has the answer "
                f"{record['ground_truth'][:40]!r}, this run {wanted[:40]!r}"
            )
        head, found, tail = _bare(asked).partition(_bare(row.question))
        made = _bare(str(record.get("input", "")))
        if found and made and not (made.startswith(head) and made.endswith(tail)):
            raise InputError(
                f"{log.path}: made with another template: {name} row {row.idx} was asked "
                f"{record['input'][:40]!r}, here {asked[:40]!r}"
            )


def _bare(text: str) -> str:
    """Text without blanks, which clean-up and trimming move."""
    return re.sub(r"\s+", "", text)
