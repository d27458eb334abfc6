"""The log of all work: what is read of which model and when, and all a summary is made from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from lensaudit.attacks.settings import Readout
from lensaudit.errors import InputError
from lensaudit.progress import Notice
from lensaudit.results.ledger import Ledger
from lensaudit.results.reading import Length, Number, Share, Whole, checked

FILE = "jobs.jsonl"
Condition = Literal["0", "A", "N0", "B", "C", "N"]
MEANINGS: Mapping[Condition, str] = {
    "0": "original",
    "A": "unlearned",
    "N0": "control, never saw the facts",
    "B": "unlearned, retrained on T",
    "C": "original, retrained on T",
    "N": "control, retrained on T",
}
Role = Literal["original", "unlearned", "control"]
CONDITIONS: Mapping[Role, tuple[Condition, Condition]] = {
    "original": ("0", "C"),
    "unlearned": ("A", "B"),
    "control": ("N0", "N"),
}
"""Role of a model -> its condition as it is, and retrained."""
RATIOS: Mapping[str, tuple[Condition, ...]] = {
    "recovery_rate": ("B", "C"),
    "recovery_adjusted": ("B", "C", "N"),
    "gap_closed": ("B", "C", "A"),
}
"""What is divided by what, both measured from the third condition where there is one."""


@dataclass(frozen=True)
class Reading:
    """One readout of one model on one split."""

    readout: Readout | Literal["said"]
    """`said` is the readout of `effort`."""
    n: Whole
    correct: tuple[Whole, ...]
    """Places in the split, from 0, of the items answered rightly."""
    calibrated: Number | None = None
    """Accuracy after each letter's mean score over the split is taken off. It looks at the whole
    split, so it is reported and never selected on."""
    option_mass: Number | None = None
    """Mean probability of all letters together; near 0 the model says something else."""

    @property
    def accuracy(self) -> float:
        """Share of the items answered rightly."""
        return len(self.correct) / self.n


@dataclass(frozen=True)
class Point:
    """Accuracy on V after some training; at 0 before any."""

    at: Annotated[Whole, Field(validation_alias=AliasChoices("at", "epoch"))]
    """Passes over T; of `effort`, which reads by steps, optimiser steps. Older logs: `epoch`."""
    readings: tuple[Reading, ...]
    train_loss: Number | None = None
    """Mean over the steps since the point before, nats per token."""

    def reading(self, readout: str) -> Reading:
        """Reading of one readout."""
        return next(one for one in self.readings if one.readout == readout)


@dataclass(frozen=True)
class Finished:
    """One job's outcome."""

    job_id: str
    status: Literal["ok", "diverged"]
    curve: tuple[Point, ...]
    """From epoch 0; of a diverged run what there is."""
    t_accuracy: Share | None = None
    """After the last epoch, on a sample of T as large as V: did the attack fit?"""
    reason: str = ""
    seconds: Length = 0.0


@dataclass(frozen=True)
class Place:
    """A job's place in a study."""

    condition: str
    split: str
    lr: Number | None
    job_id: str


@dataclass(frozen=True)
class HeldSplit:
    """A split's items, as far as statistics need them."""

    name: str
    idx: tuple[Whole, ...]
    groups: tuple[Whole | str, ...]


@dataclass(frozen=True)
class StudyRecord:
    """A study as the log knows it: everything a summary needs beside the jobs."""

    study_id: str
    signature: str
    data: str
    data_digest: str
    n_choices: Whole
    n_left_out: Whole
    defects: Mapping[str, Whole]
    """Of the data as they were run on."""
    models: Mapping[str, str]
    """Role -> name."""
    method: str | None
    splits: tuple[HeldSplit, ...]
    held_out: tuple[str, ...]
    sweep: Mapping[str, Any]
    readouts: tuple[str, ...]
    gate: Mapping[str, Number]
    places: tuple[Place, ...]
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Log:
    """Studies and finished jobs, in a file or in memory."""

    ledger: Ledger | None = None
    studies: dict[str, StudyRecord] = field(default_factory=dict)
    """By study_id, oldest first."""
    finished: dict[str, Finished] = field(default_factory=dict)
    """By job_id."""
    n_added: int = 0
    """Jobs done since the log was opened."""

    @property
    def path(self) -> Path | None:
        """Place of the log file."""
        return self.ledger.path if self.ledger else None

    def open(self, study: StudyRecord) -> None:
        """Note a study, once."""
        if study.study_id not in self.studies:
            self.studies[study.study_id] = study
            self._append({"kind": "study", **asdict(study)})

    def add(self, job: Finished, identity: Mapping[str, Any]) -> None:
        """Note a finished job."""
        self.finished[job.job_id] = job
        self.n_added += 1
        self._append({"kind": "job", **asdict(job), "job": dict(identity)})

    def _append(self, row: Mapping[str, Any]) -> None:
        if self.ledger is not None:
            self.ledger.append([row])


def read_log(path: Path, *, must_exist: bool = False, notice: Notice | None = None) -> Log:
    """The log in a file, or in a folder's `jobs.jsonl`; `notice` gets the lines that do not count.

    Raises:
        InputError: it is missing where it must exist.
    """
    file = path / FILE if path.is_dir() else path
    if must_exist and not file.exists():
        raise InputError(f"{file}: no such log; `lensaudit rtt run` writes one")
    log = Log(Ledger(file, "retraining", {}, notice=notice))
    for row in log.ledger.rows if log.ledger else ():
        if row["kind"] == "study":
            study = checked(StudyRecord, row, file)
            log.studies.setdefault(study.study_id, study)
        else:
            job = checked(Finished, row, file)
            log.finished.setdefault(job.job_id, job)
    return log
