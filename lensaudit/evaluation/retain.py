"""Does a retain model's log belong to this run? Another split or template gives another number."""

import re
from collections.abc import Iterator, Mapping

from lensaudit.data.suites import Split, Suite
from lensaudit.errors import InputError
from lensaudit.evaluation.log import MetricLog
from lensaudit.evaluation.passes import ModelPasses
from lensaudit.files import digest, read_json
from lensaudit.metrics.registry import MetricResult, Read
from lensaudit.results.reading import part

_TEXTS = {
    "forget_Q_A_ROUGE": Read("text", "forget"),
    "forget_Q_A_PARA_ROUGE": Read("text", "forget", "paraphrased_answer"),
    "retain_Q_A_ROUGE": Read("text", "retain"),
    "forget_verbmem_ROUGE": Read("text", "verbmem", "gt"),
    "forget_knowmem_ROUGE": Read("text", "forget_qa"),
}
"""Metrics whose records quote prompt and gold answer, and where this run has them."""
_ROWS = {
    "forget_truth_ratio": "forget",
    "forget_Q_A_Prob": "forget",
    "exact_memorization": "forget",
}
_SIDES = {"tofu": ("forget", "holdout"), "muse": ("members", "non_members")}


def retain_reference(
    log: MetricLog, passes: ModelPasses, suite: Suite
) -> Mapping[str, MetricResult]:
    """The metrics of a retain model's log, once it is known to belong to this run.

    Raises:
        InputError: the log belongs to another suite, split, template or mask.
    """
    if log.suite != suite:
        raise InputError(f"{log.path}: is a log of suite {log.suite}, this run is {suite}")
    check_retain(log, passes)
    return log.complete


def conditions(passes: ModelPasses) -> dict[str, object]:
    """What must be equal for two models' logs to be compared, as content hashes."""
    return {
        "mask": passes.asked.mask,
        "template": digest(vars(passes.asked.template)),
        # whichever question key asks for it
        "answers": {
            name: digest([[row.idx, dict(row.answers)] for row in split.rows])
            for name, split in passes.splits.items()
        },
    }


def check_retain(log: MetricLog, passes: ModelPasses) -> None:
    """Refuse a log of other rows, another template or another mask, as far as it can be told.

    A log of ours is told by the manifest beside it; one of open-unlearning by the texts its ROUGE
    records quote, and by its row numbers. The question key may differ, as in the published runs
    with paraphrased questions.

    Raises:
        InputError: names the first difference.
    """
    manifest = log.path.parent / "manifest.json"
    if manifest.exists():
        _check_manifest(log, read_json(manifest), passes)
    for name, read in _TEXTS.items():
        if name in log.entries and passes.missing(read) is None:
            _check_texts(log, name, log.entries[name], passes, read)
    for found, split, what in _numbered(log):
        if split in passes.splits:
            _check_rows(log, found, passes.splits[split], what)


def _check_manifest(log: MetricLog, manifest: object, passes: ModelPasses) -> None:
    made = part(manifest, "inputs", "conditions")
    if not made:
        return
    wanted = conditions(passes)
    for key in ("mask", "template"):
        if made.get(key) != wanted[key]:
            raise InputError(
                f"{log.path}: made with another {key}; make the retain log again with this one"
            )
    answers = made.get("answers", {})
    for name, found in part(wanted, "answers").items():
        if name in answers and answers[name] != found and name not in ("ra", "wf", "retain"):
            raise InputError(f"{log.path}: made with other rows of {name}; name the right log")


def _check_texts(
    log: MetricLog, name: str, entry: MetricResult, passes: ModelPasses, read: Read
) -> None:
    split = passes.splits[read.split]
    view = passes.view(read)
    for row in split.rows:
        record = entry.records.get(row.idx)
        if record is None or row.idx not in view.rows or isinstance(record["ground_truth"], list):
            continue
        asked, wanted = passes.asked_and_wanted(split, view.rows[row.idx][0])
        if _bare(record["ground_truth"]) != _bare(wanted):
            raise InputError(
                f"{log.path}: made with another split: {name} row {row.idx} has the answer "
                f"{record['ground_truth'][:40]!r}, this run {wanted[:40]!r}"
            )
        head, found, tail = _bare(asked).partition(_bare(row.question))
        made = _bare(record["input"])
        if found and made and not (made.startswith(head) and made.endswith(tail)):
            raise InputError(
                f"{log.path}: made with another template: {name} row {row.idx} was asked "
                f"{record['input'][:40]!r}, here {asked[:40]!r}"
            )


def _bare(text: str) -> str:
    """Without blanks, which clean-up and trimming move."""
    return re.sub(r"\s+", "", text)


def _numbered(log: MetricLog) -> Iterator[tuple[MetricResult, str, str]]:
    """Entries with rows, and the split whose row numbers they should have."""
    for name, split in _ROWS.items():
        if name in log.entries and log.suite == "tofu":
            yield log.entries[name], split, name
    attack = log.entries.get("mia_min_k")
    if attack and attack.parts:
        for side, split in zip(("forget", "holdout"), _SIDES[log.suite], strict=True):
            yield attack.parts[side], split, f"mia_min_k.{side}"


def _check_rows(log: MetricLog, entry: MetricResult, split: Split, what: str) -> None:
    found = entry.records.keys() | entry.unscored.keys()
    wanted = {row.idx for row in split.rows}
    if found and found != wanted:
        raise InputError(
            f"{log.path}: made with another split: {what} has {len(found)} rows, {split.source} "
            f"gives {len(wanted)} here; make the log with the same data and --limit"
        )
