"""A log as tables and JSON, again and again: nothing is trained, nothing of torch is needed.

Accuracies are fractions; names are those of the upstream fork.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lensaudit.attacks.rtt.log import MEANINGS, Condition, Log, read_log
from lensaudit.attacks.rtt.select import done
from lensaudit.attacks.rtt.settings import SummarySettings
from lensaudit.attacks.rtt.summary import Accuracy, SelectionOutcome, Summary, summarize
from lensaudit.errors import InputError, LensAuditError, VerificationError
from lensaudit.files import write_csv, write_json
from lensaudit.results.records import BEGUN, check_whole, renew
from lensaudit.scores.estimate import UNMEASURED, Estimate

ACCURACIES: Mapping[str, Condition] = {
    "forget_acc_baseline": "0",
    "forget_acc_unlearn": "A",
    "forget_acc_control": "N0",
    "forget_acc_unlearn_rtt": "B",
    "forget_acc_baseline_rtt": "C",
    "forget_acc_control_rtt": "N",
}
"""Column -> condition; `control` is new here, the rest are the upstream fork's."""
RATIOS: Mapping[str, Callable[[SelectionOutcome], Estimate]] = {
    "recovery_rate": lambda one: one.recovery,
    "recovery_adjusted": lambda one: one.adjusted,
    "gap_closed": lambda one: one.gap_closed,
}
SUMMARIES = ("summary.csv", "summary.json")
RULE_NAMES = {"max": "max_epoch", "final": "final_epoch"}


def write_summaries(summaries: Sequence[Summary], log: Log, folder: Path) -> tuple[Path, Path]:
    """Write `summary.csv`, one row per study, and `summary.json`, with everything else."""
    rows = [csv_row(one, log) for one in summaries]
    header = list(rows[0])
    table = write_csv(folder / "summary.csv", header, [list(row.values()) for row in rows])
    return table, write_json(folder / "summary.json", [as_json(one) for one in summaries])


def csv_row(summary: Summary, log: Log) -> dict[str, Any]:
    """One line of the summary; an empty cell is a number that there is none of."""
    study, main = summary.study, summary.main
    accuracies = {**summary.as_they_are, **main.accuracies}
    row: dict[str, Any] = {
        "dataset": study.data,
        "unlearn_type": study.method,
        "model_id": study.models["unlearned"],
        "original_id": study.models["original"],
        "control_id": study.models.get("control"),
        "loss_type": study.sweep["loss_on"],
        "lrs": " ".join(f"{lr:g}" for lr in study.sweep["lrs"]),
        "epochs": study.sweep["n_epochs"],
        "eval_splits": " ".join(study.held_out),
        "readout": summary.readout,
        "selection": main.selection,
        "acc_selection_rule": RULE_NAMES[main.rule],
    }
    for name, condition in ACCURACIES.items():
        row |= _cells(name, accuracies.get(condition))
    for name, condition in ACCURACIES.items():
        if condition in summary.all_splits:
            row[f"{name}_all_splits"] = summary.all_splits[condition].value
    for name, of in RATIOS.items():
        row |= _cells(name, of(main))
    runs = {
        f"num_rtt_splits_{condition.lower()}": main.accuracies[condition].n_splits
        if condition in main.accuracies
        else 0
        for condition in ("B", "C", "N")
    }
    failed = sum(
        job.status == "diverged"
        for condition in ("B", "C", "N")
        for _, job in done(study, log, condition)
    )
    return {
        **row,
        **runs,
        "num_diverged": failed,
        "gate": "failed" if summary.failure else "passed",
        "rtt_signature": study.signature,
        "study_id": study.study_id,
    }


def as_json(summary: Summary) -> dict[str, Any]:
    """Everything in a summary, as plain JSON."""
    study = summary.study
    return {
        "study_id": study.study_id,
        "rtt_signature": study.signature,
        "data": study.data,
        "data_digest": study.data_digest,
        "defects": dict(study.defects),
        "n_left_out": study.n_left_out,
        "models": dict(study.models),
        "method": study.method,
        "held_out": list(study.held_out),
        "sweep": dict(study.sweep),
        "chance": 1 / study.n_choices,
        "readout": summary.readout,
        "gate": {**study.gate, "passed": not summary.failure, "reason": summary.failure},
        "conditions": dict(MEANINGS),
        "as_they_are": _accuracies(summary.as_they_are),
        "all_splits": _accuracies(summary.all_splits),
        "checks": {condition: asdict(one) for condition, one in summary.checks.items()},
        "main": _outcome(summary.main),
        "others": [_outcome(one) for one in summary.others],
        "reading": summary.reading,
        "notes": list(summary.notes),
        "versions": dict(study.versions),
    }


def _outcome(outcome: SelectionOutcome) -> dict[str, Any]:
    return {
        "selection": outcome.selection,
        "acc_selection_rule": RULE_NAMES[outcome.rule],
        "accuracies": _accuracies(outcome.accuracies),
        "chosen": {
            condition: [
                {"split": one.split, "lr": one.cell.lr, "epoch": one.cell.epoch}
                for one in selected.choices
            ]
            for condition, selected in outcome.chosen.items()
        },
        **{name: _ratio(of(outcome)) for name, of in RATIOS.items()},
    }


def _accuracies(accuracies: Mapping[Condition, Accuracy]) -> dict[str, Any]:
    return {
        condition: _limits(one) | {"n": one.n, "n_splits": one.n_splits}
        for condition, one in accuracies.items()
    }


def _ratio(one: Estimate) -> dict[str, Any]:
    found = _limits(one)
    why = found.pop("interval_why")
    return found | {
        "reason": "" if one.value is not None else one.why,
        "interval_why": None if one.value is None else why,
    }


def _limits(one: Estimate) -> dict[str, Any]:
    ends = one.ends and dict(zip(("low", "high"), one.ends, strict=True))
    return {"value": one.value, "interval": ends, "interval_why": one.why}


def _cells(name: str, one: Estimate | None) -> dict[str, float | None]:
    one = one or UNMEASURED
    return {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high}


@dataclass(frozen=True)
class Summarized:
    """What a log says."""

    summaries: tuple[Summary, ...]
    folder: Path
    n_added: int = 0
    """Jobs done by this run."""
    n_known: int = 0
    """Jobs of its studies that were in the log before."""
    failure: LensAuditError | None = None
    """A gate that failed, or runs that did, of the studies together."""


def summarize_log(settings: SummarySettings) -> Summarized:
    """Read and write the summaries of a log again.

    Raises:
        InputError: there is no log, it holds no study, or it is not as it was written.
    """
    log = read_log(settings.log, must_exist=True)
    check_log(log)
    found = summarize(
        log, selection=settings.selection, rule=settings.rule, readout=settings.readout
    )
    if not found:
        raise InputError(f"{log.path}: holds no study; `lensaudit rtt run` writes them")
    assert log.path is not None
    folder = log.path.parent
    write_summaries(found, log, folder)
    renew(folder, SUMMARIES)
    failed = [one for one in found if one.failure]
    failure = None
    if failed:
        failure = VerificationError(f"{failed[0].study.models['unlearned']}: {failed[0].failure}")
    return Summarized(tuple(found), folder, failure=failure)


def check_log(log: Log) -> None:
    """Refuse a log whose lines are not all there, each as it was written.

    While a run is unfinished no manifest can say how many lines there are; its summary says how
    many jobs are not done.

    Raises:
        InputError: a line was edited, or one is missing; the manifest was edited or is missing.
    """
    assert log.ledger is not None
    path = log.ledger.path
    log.ledger.check("run the `lensaudit rtt run` that made it again")
    if not (path.parent / BEGUN).exists():
        check_whole(path, beside=False)
