"""CSV files of the upstream fork: its runs as studies of ours, and our runs as its files.

    unlearning/*.csv    a row an unlearned model: its accuracy on every split after every epoch (A)
    ft/*.csv            a row a retrained model: its accuracy on one split (B, C; N is ours)

A cell is (loss, lr, epoch), of runs of one length. `per_v`, which the fork's protocol asks for
(`docs/PAPER.md`), takes the best of each V, and `global` one for all V, as of our own log. The
fork's code (`select_best_rtt_mean` of dsjoint/unlearning_evaluation-1 @ 68bde1f) compares runs by
their last epoch, or by their best one: a V then keeps an epoch of its own, and the outcome is
called `fork`. By the last epoch it is `global`.
"""

import ast
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import numpy as np

from lensaudit.attacks.rtt.log import CONDITIONS, RATIOS, Condition, HeldSplit, Log, StudyRecord
from lensaudit.attacks.rtt.marks import GridCell, done
from lensaudit.attacks.rtt.selection import RULE_NAMES, Selected, select, unequal
from lensaudit.attacks.settings import EpochRule, Selection, SummarySettings
from lensaudit.errors import InputError
from lensaudit.files import make_folder, write_csv
from lensaudit.kinds.rtt import Accuracy, RttOutcome, RttRecord
from lensaudit.results.reading import csv_rows
from lensaudit.scores.estimate import Estimate

CSVS = {one: f"evals/pipeline/{one}/lensaudit--num0.csv" for one in ("unlearning", "ft")}
"""Written beside our log, where the fork's scripts look (`evals/pipeline/*/*.csv`)."""
RETRAINED: Mapping[str, Condition] = {"unlearn+rtt": "B", "baseline+rtt": "C", "control+rtt": "N"}
"""`rtt_condition` -> ours; the fork has no control."""
WANTED = {
    "unlearning": ("forget_accs", "val_files"),
    "ft": (
        "forget_accs_local",
        "rtt_eval_split_id",
        "rtt_train_split_ids",
        "rtt_condition",
        "rtt_start_model_path",
        "lr",
        "epochs",
        "rtt_signature",
    ),
}
ForkSelection = Literal["per_v", "global", "fork"]
"""The last is what the fork's code computes by the best epoch."""
NO_LIMITS = "the files hold accuracies, not items: no interval"
_BARE = re.compile(r"\b(?:nan|null)\b", re.IGNORECASE)
_NUMPY = re.compile(r"\bnp\.float\d+\(([^()]*)\)")


@dataclass(frozen=True, order=True)
class ForkCell(GridCell):
    """A model of the grid: a run after an epoch, or, where `epoch` is `length`, the whole run."""

    loss: str = ""
    length: int = 0
    """Epochs that the run was to take."""


@dataclass(frozen=True)
class RetrainedRow:
    """One row of `ft/*.csv`."""

    path: Path
    condition: Condition
    dataset: str
    signature: str
    start: str
    """Model that was retrained."""
    split: int
    cell: ForkCell
    curve: Mapping[int, float | None]
    """Epoch -> accuracy; None where the file has none."""
    held_out: tuple[int, ...] = ()
    """`eval_split_ids`; empty: the file does not say it."""
    remarks: tuple[str, ...] = ()
    """What of the row could not be used."""


@dataclass(frozen=True)
class UnlearnedRow:
    """One row of `unlearning/*.csv`."""

    model: str
    method: str
    dataset: str
    held_out: tuple[int, ...]
    """`eval_split_ids`; empty: the file does not say it."""
    accuracies: Mapping[int, float | None]
    """Split -> accuracy after the last epoch."""
    remarks: tuple[str, ...] = ()


def read_csvs(settings: SummarySettings) -> list[RttRecord]:
    """One study for each unlearned model and signature of the fork's files.

    Raises:
        InputError: no such files, columns that are missing, cells that cannot be read, or two
            runs of one place that differ.
    """
    assert settings.from_csv is not None
    if settings.selection == "nested":
        raise InputError("--selection nested halves the items of a split; the CSV files hold none")
    folder = _pipeline(Path(settings.from_csv))
    unlearned = [row for path in _files(folder, "unlearning") for row in _unlearned_rows(path)]
    retrained = _once([row for path in _files(folder, "ft") for row in _retrained_rows(path)])
    named = dict.fromkeys(
        (row.start, row.dataset, row.signature) for row in retrained if row.condition == "B"
    )
    if not named:
        raise InputError(f"{folder / 'ft'}: no row has rtt_condition unlearn+rtt")
    return [_study(*one, unlearned, retrained, settings) for one in named]


def _pipeline(folder: Path) -> Path:
    for inside in ("", "pipeline", "evals/pipeline"):
        if (folder / inside / "ft").is_dir():
            return folder / inside
    raise InputError(
        f"{folder}: no folder ft in it; wanted evals/pipeline of the fork, with unlearning/ and ft/"
    )


def _files(folder: Path, inside: str) -> list[Path]:
    return sorted((folder / inside).glob("*.csv"))


def _rows(path: Path) -> list[dict[str, str]]:
    rows, wanted = csv_rows(path), WANTED[path.parent.name]
    if missing := [name for name in wanted if rows and name not in rows[0]]:
        raise InputError(f"{path}: no column {', '.join(missing)}; wanted {', '.join(wanted)}")
    return rows


def _retrained_rows(path: Path) -> Iterator[RetrainedRow]:
    for number, row in enumerate(_rows(path), 2):
        where, remarks = f"{path}, line {number}", list[str]()
        if (called := row["rtt_condition"]) not in RETRAINED:
            wanted = " or ".join(RETRAINED)
            raise InputError(f"{where}: rtt_condition is {called!r:.40}, wanted {wanted}")
        split = _whole(row["rtt_eval_split_id"], "rtt_eval_split_id", where)
        rate = _number(row["lr"], "lr", where)
        length = _whole(row["epochs"], "epochs", where)
        yield RetrainedRow(
            path,
            RETRAINED[called],
            row.get("dataset", ""),
            row["rtt_signature"],
            row["rtt_start_model_path"],
            split,
            ForkCell(rate, length, row.get("loss_type", ""), length),
            _curve(_cell(row, "forget_accs_local", dict, where), where, remarks),
            _held_out(row, where),
            tuple(remarks),
        )


def _unlearned_rows(path: Path) -> Iterator[UnlearnedRow]:
    for number, row in enumerate(_rows(path), 2):
        where, remarks = f"{path}, line {number}", list[str]()
        names = [_stem(one) for one in _cell(row, "val_files", list, where)]
        found: dict[int, float | None] = {}
        for file, curve in _cell(row, "forget_accs", dict, where).items():
            if _stem(file) not in names or not isinstance(curve, dict):
                raise InputError(
                    f"{where}: forget_accs holds {file!r}, wanted accuracies of files of val_files"
                )
            found[names.index(_stem(file))] = _last(_curve(curve, where, remarks))
        yield UnlearnedRow(
            row.get("model_path") or row.get("save_name", ""),
            row.get("unlearn_type", ""),
            row.get("dataset", ""),
            _held_out(row, where),
            found,
            tuple(remarks),
        )


def _held_out(row: Mapping[str, str], where: str) -> tuple[int, ...]:
    """The splits that a study holds out, in order; none where the file does not say it."""
    held = _cell(row, "eval_split_ids", list, where) if row.get("eval_split_ids") else ()
    return tuple(sorted(_whole(str(one), "eval_split_ids", where) for one in held))


def _stem(file: Any) -> str:
    return PurePosixPath(str(file)).name.removesuffix(".jsonl")


def _cell(row: Mapping[str, str], column: str, kind: type, where: str) -> Any:
    """A list or dictionary as Python or JSON writes it."""
    text = _BARE.sub("None", _NUMPY.sub(r"\1", row[column]))
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, kind):
        raise InputError(f"{where}: {column} is {row[column]!r:.60}, wanted a {kind.__name__}")
    return found


def _curve(found: Mapping[Any, Any], where: str, remarks: list[str]) -> dict[int, float | None]:
    """Accuracies by epoch; what is no share is None, with a remark."""
    curve: dict[int, float | None] = {}
    for epoch, value in sorted(found.items(), key=lambda one: _whole(str(one[0]), "epoch", where)):
        share = isinstance(value, int | float) and 0 <= value <= 1
        curve[int(epoch)] = float(value) if share else None
        if not share:
            said = "NaN" if value is None else value
            remarks.append(f"{where}: epoch {epoch} has the accuracy {said!s:.40}: left out")
    return curve


def _whole(text: str, column: str, where: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise InputError(f"{where}: {column} is {text!r:.40}, wanted a whole number from 0")
    return int(text)


def _number(text: str, column: str, where: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InputError(f"{where}: {column} is {text!r:.40}, wanted a number")
    return found


def _last(curve: Mapping[int, float | None]) -> float | None:
    return curve[max(curve)] if curve else None


def _once(rows: Sequence[RetrainedRow]) -> list[RetrainedRow]:
    """Each run once; a remark names a file that repeats another one.

    Raises:
        InputError: two runs of one place differ.
    """
    found: dict[Any, RetrainedRow] = {}
    for row in rows:
        place = (row.condition, row.dataset, row.signature, row.start, row.split, row.cell)
        other = found.setdefault(place, row)
        if other is row:
            continue
        what = f"{row.start}, split {row.split}, lr {row.cell.lr:g}, {row.cell.epoch} epochs"
        if other.curve != row.curve:
            raise InputError(
                f"{other.path} and {row.path} hold different runs of signature {row.signature} "
                f"({what}); move one of them away"
            )
        said = f"{row.path}: {what} is in {other.path.name} too, alike: counted once"
        found[place] = replace(other, remarks=(*other.remarks, said))
    return list(found.values())


def _study(
    start: str,
    dataset: str,
    signature: str,
    unlearned: Sequence[UnlearnedRow],
    retrained: Sequence[RetrainedRow],
    settings: SummarySettings,
) -> RttRecord:
    rows = [
        row
        for row in retrained
        if (row.dataset, row.signature) == (dataset, signature)
        and (row.condition != "B" or row.start == start)
    ]
    before = [row for row in unlearned if (row.model, row.dataset) == (start, dataset)]
    held = _held_by(rows, before)
    before = [row for row in before if row.held_out in (held, ())]
    accuracies = before[-1].accuracies if before else {}
    as_it_is = [accuracies.get(split) for split in held]
    tried = product(get_args(ForkSelection), get_args(EpochRule))
    ways = {way: _outcome(rows, held, *way, _mean(as_it_is)) for way in tried}
    del ways["fork", "final"]  # by the last epoch the fork's code takes what `global` does
    notes = [
        "the files do not hold the accuracy of the original before unlearning: whether unlearning "
        "lowered it is not known",
        *_apart(ways["per_v", settings.rule], ways["global", settings.rule], ways["fork", "max"]),
        *chain.from_iterable(row.remarks for row in (*before[-1:], *rows)),
    ]
    if len(before) > 1:
        notes.append(f"{start}: {len(before)} rows of unlearning; A is of the last")
    if _mean(as_it_is) is None:
        notes.append(f"A: no row of unlearning has {start} with an accuracy on each split held out")
    main = ways.pop((settings.selection, settings.rule))
    for condition in RETRAINED.values():
        if condition not in main.accuracies:
            there = {row.split for row in rows if row.condition == condition}
            lost = ", ".join(str(split) for split in held if split not in there)
            of_split = f" of split {lost}" if there and lost else ""
            notes.append(f"{condition}: no run{of_split} with an accuracy")
    starts = {row.condition: row.start for row in rows}
    roles = {"original": starts.get("C"), "control": starts.get("N")}
    return RttRecord(
        rtt_signature=signature,
        data=dataset,
        models={"unlearned": start, **{role: one for role, one in roles.items() if one}},
        method=before[-1].method if before else None,
        held_out=[f"split_{split}" for split in held],
        as_they_are=_accuracy("A", as_it_is),
        all_splits=_accuracy("A", [*accuracies.values()]),
        main=main,
        others=list(ways.values()),
        notes=notes,
    )


def _held_by(
    retrained: Sequence[RetrainedRow], unlearned: Sequence[UnlearnedRow]
) -> tuple[int, ...]:
    """The splits that a study holds out, by its own runs first.

    An unlearned model may be of several studies: its row counts where it holds the splits of B.
    """
    runs = [row for row in retrained if row.condition == "B"]
    splits = {row.split for row in runs}
    said = [row.held_out for row in runs if row.held_out]
    said += [row.held_out for row in reversed(unlearned) if splits <= {*row.held_out}]
    return next(iter(said), tuple(sorted(splits)))


def _apart(each: RttOutcome, one: RttOutcome, fork: RttOutcome) -> Iterator[str]:
    """How far the best cell of each V lies above the one cell for all, and what the fork says."""
    for condition in sorted(each.accuracies.keys() & one.accuracies.keys()):
        a, b, c = (way.accuracies[condition].point for way in (each, one, fork))
        said = f"{condition}: {a:.3f} by the best cell of each V, {b:.3f} by one cell for all V: "
        said += f"{a - b:.3f} apart"
        if one.acc_selection_rule == fork.acc_selection_rule:
            said += f"; {c:.3f} by the fork's code: one run for all V, the best epoch of each"
        yield said


def _mean(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _accuracy(condition: str, values: Sequence[float | None]) -> dict[str, Accuracy]:
    found = _mean(values)
    if found is None:
        return {}
    return {condition: Accuracy(found, why=NO_LIMITS, n_splits=len(values))}


def _outcome(
    rows: Sequence[RetrainedRow],
    held: Sequence[int],
    selection: ForkSelection,
    rule: EpochRule,
    unlearned: float | None,
) -> RttOutcome:
    chosen: dict[Condition, Selected] = {}
    for condition in RETRAINED.values():
        runs = {
            # a split as one item, which is answered to so great a part
            HeldSplit(f"split_{split}", (0,), (0,)): {
                cell: np.array([value])
                for row in rows
                if (row.condition, row.split) == (condition, split)
                for cell, value in _cells(row, selection, rule)
            }
            for split in held
        }
        shared: Selection = "per_v" if selection == "per_v" else "global"
        if found := select(runs, selection=shared, rule="max", n_epochs=0):  # type: ignore[arg-type]
            chosen[condition] = found
    read: dict[Condition, dict[HeldSplit, set[GridCell]]] = {
        name: _read(rows, name, held) for name in chosen
    }
    values: dict[Condition, float] = {name: one.accuracy for name, one in chosen.items()}
    if unlearned is not None:
        values["A"] = unlearned
    return RttOutcome(
        selection=selection,
        acc_selection_rule=RULE_NAMES[rule],
        accuracies={
            name: Accuracy(one.accuracy, why=NO_LIMITS, n_splits=len(held))
            for name, one in chosen.items()
        },
        chosen={
            name: [{"split": at, "lr": cell.lr, "epoch": cell.epoch} for at, cell in one.choices]
            for name, one in chosen.items()
        },
        **{name: _ratio(values, parts, read) for name, parts in RATIOS.items()},
    )


def _read(
    rows: Sequence[RetrainedRow], condition: Condition, held: Sequence[int]
) -> dict[HeldSplit, set[GridCell]]:
    """Every learning rate and epoch at which a split was read after training."""
    return {
        HeldSplit(f"split_{split}", (), ()): {
            replace(cell, length=0)
            for row in rows
            if (row.condition, row.split) == (condition, split)
            for cell, _ in _cells(row, "global", "max")
        }
        for split in held
    }


def _cells(
    row: RetrainedRow, selection: ForkSelection, rule: EpochRule
) -> Iterator[tuple[ForkCell, float]]:
    """What of a run is compared; epoch 0, which the fork counts too, is the model before it."""
    trained = {epoch: value for epoch, value in row.curve.items() if epoch > 0}
    known = {epoch: value for epoch, value in trained.items() if value is not None}
    if rule == "max" and selection != "fork":
        for epoch, value in known.items():
            yield replace(row.cell, epoch=epoch), value
        return
    of_run = _last(trained) if rule == "final" else max(known.values(), default=None)
    if of_run is not None:
        yield row.cell, of_run


def _ratio(
    values: Mapping[Condition, float],
    names: Sequence[Condition],
    read: Mapping[Condition, Mapping[HeldSplit, Collection[GridCell]]],
) -> Estimate:
    if missing := [name for name in names if name not in values]:
        return Estimate(None, why=f"condition {missing[0]} is missing")
    if apart := unequal({name: read[name] for name in names if name in read}):
        return Estimate(None, why=apart)
    floor = values[names[2]] if len(names) == 3 else 0.0
    if values["C"] - floor <= 1e-12:
        return Estimate(None, why=f"C is not above {names[2] if len(names) == 3 else '0'}")
    return Estimate((values["B"] - floor) / (values["C"] - floor), why=NO_LIMITS)


def write_csvs(log: Log, folder: Path) -> None:
    """Every run of a log as rows of the fork's files, of the readout that is reported."""
    places: dict[str, list[dict[str, Any]]] = {one: [] for one in CSVS}
    for study in log.studies.values():
        places["unlearning"].extend(_written_unlearned(study, log))
        places["ft"].extend(one for one in _written_runs(study, log) if one not in places["ft"])
    for one, rows in places.items():
        header = list(rows[0]) if rows else list(WANTED[one])
        make_folder((folder / CSVS[one]).parent)
        write_csv(folder / CSVS[one], header, [list(row.values()) for row in rows])


def _shared(study: StudyRecord) -> dict[str, Any]:
    names = [one.name for one in study.splits]
    return {
        "dataset": study.data,
        "eval_split_ids": [names.index(one) for one in study.held_out],
        "num_total_splits": len(names),
    }


def _written_unlearned(study: StudyRecord, log: Log) -> Iterator[dict[str, Any]]:
    readout = study.readouts[0]
    curves = {
        f"{place.split}.jsonl": {p.at: p.reading(readout).accuracy for p in job.curve}
        for place, job in done(study, log, "A")
    }
    if curves:
        yield {
            "model_path": study.models["unlearned"],
            "base_model": study.models["original"],
            "unlearn_type": study.method or "",
            "forget_accs": curves,
            "val_files": [f"{one.name}.jsonl" for one in study.splits],
            **_shared(study),
        }


def _written_runs(study: StudyRecord, log: Log) -> Iterator[dict[str, Any]]:
    names, readout = [one.name for one in study.splits], study.readouts[0]
    for role, (_, condition) in CONDITIONS.items():
        called = next(name for name, one in RETRAINED.items() if one == condition)
        for place, job in done(study, log, condition):
            at = names.index(place.split)
            yield {
                "rtt_condition": called,
                "rtt_start_model_path": study.models[role],
                "rtt_eval_split_id": at,
                "rtt_train_split_ids": [one for one in range(len(names)) if one != at],
                "rtt_signature": study.signature,
                "loss_type": study.sweep["loss_on"],
                "lr": place.lr,
                "epochs": study.sweep["n_epochs"],
                "batch_size": study.sweep["batch_size"],
                "warmup_steps": study.sweep["n_warmup"],
                "data_seed": study.sweep["seed"],
                "forget_accs_local": {p.at: p.reading(readout).accuracy for p in job.curve},
                **_shared(study),
            }
