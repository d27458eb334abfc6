"""The log of all work: append-only, and the one thing that a summary is made from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lensaudit.attacks.rtt.readings import Point, Reading
from lensaudit.errors import InputError
from lensaudit.progress import Notice
from lensaudit.results.ledger import Ledger
from lensaudit.results.records import package_versions

if TYPE_CHECKING:
    from lensaudit.attacks.rtt.study import Cell, Study

FILE = "jobs.jsonl"


@dataclass(frozen=True)
class Finished:
    """One job's outcome."""

    job_id: str
    status: Literal["ok", "diverged"]
    curve: tuple[Point, ...]
    """From epoch 0; of a diverged run what there is."""
    t_accuracy: float | None = None
    """After the last epoch, on a sample of T as large as V: did the attack fit?"""
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Place:
    """A job's place in a study."""

    condition: str
    split: str
    lr: float | None
    job_id: str


@dataclass(frozen=True)
class HeldSplit:
    """A split's items, as far as statistics need them."""

    name: str
    idx: tuple[int, ...]
    groups: tuple[int | str, ...]


@dataclass(frozen=True)
class Opened:
    """A study as the log knows it: everything a summary needs beside the jobs."""

    study_id: str
    signature: str
    data: str
    data_digest: str
    n_choices: int
    n_left_out: int
    defects: Mapping[str, int]
    """Of the data as they were run on."""
    models: Mapping[str, str]
    """Role -> name."""
    method: str | None
    splits: tuple[HeldSplit, ...]
    held_out: tuple[str, ...]
    sweep: Mapping[str, Any]
    readouts: tuple[str, ...]
    gate: Mapping[str, float]
    places: tuple[Place, ...]
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Log:
    """Studies and finished jobs, in a file or in memory."""

    ledger: Ledger | None = None
    studies: dict[str, Opened] = field(default_factory=dict)
    """By study_id, oldest first."""
    finished: dict[str, Finished] = field(default_factory=dict)
    """By job_id."""
    n_added: int = 0
    """Jobs done since the log was opened."""

    @property
    def path(self) -> Path | None:
        """The file."""
        return self.ledger.path if self.ledger else None

    def open(self, study: Opened) -> None:
        """Note a study, once."""
        if study.study_id not in self.studies:
            self.studies[study.study_id] = study
            self._append("study", asdict(study))

    def add(self, job: Finished, identity: Mapping[str, Any]) -> None:
        """Note a finished job."""
        self.finished[job.job_id] = job
        self.n_added += 1
        self._append("job", {**asdict(job), "job": dict(identity)})

    def _append(self, kind: str, row: dict[str, Any]) -> None:
        if self.ledger is not None:
            self.ledger.append([{"kind": kind, **row}])


def read_log(path: Path, *, must_exist: bool = False, notice: Notice | None = None) -> Log:
    """The log in a file, or in a folder's `jobs.jsonl`; `notice` is told which lines do not count.

    Raises:
        InputError: it is missing where it must exist, or holds something else.
    """
    file = path / FILE if path.is_dir() else path
    if must_exist and not file.exists():
        raise InputError(f"{file}: no such log; `lensaudit rtt run` writes one")
    log = Log(Ledger(file, "retraining", {}, unsigned="keep", notice=notice))
    for number, row in enumerate(log.ledger.rows if log.ledger else (), 1):
        try:
            if row["kind"] == "study":
                study = _opened(row)
                log.studies.setdefault(study.study_id, study)
            else:
                job = _finished(row)
                log.finished.setdefault(job.job_id, job)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{file}: entry {number} is no line of a retraining log ({error}); name another "
                "file or folder"
            ) from error
    return log


def opened(study: "Study", cells: "list[Cell]", defects: Mapping[str, int]) -> Opened:
    """What the log notes of a study."""
    return Opened(
        study_id=study.study_id,
        signature=study.signature,
        data=study.data.name,
        data_digest=study.data.digest,
        n_choices=study.data.n_choices,
        n_left_out=len(study.data.left_out),
        defects=defects,
        models={role: one.name for role, one in study.subjects.items()},
        method=study.unlearned.method,
        splits=tuple(
            HeldSplit(
                one.name,
                tuple(item.idx for item in one.items),
                tuple(item.group for item in one.items),
            )
            for one in study.data.splits
        ),
        held_out=study.held_out,
        sweep={**asdict(study.sweep), "lrs": list(study.sweep.lrs)},
        readouts=study.readouts,
        gate=asdict(study.gate),
        places=tuple(
            Place(one.condition, one.job.split, one.job.lr, one.job.job_id) for one in cells
        ),
        versions=package_versions(),
    )


def _opened(row: Mapping[str, Any]) -> Opened:
    fields = {key: value for key, value in row.items() if key != "kind"}
    splits = (
        HeldSplit(one["name"], tuple(one["idx"]), tuple(one["groups"])) for one in row["splits"]
    )
    fields |= {
        "splits": tuple(splits),
        "held_out": tuple(row["held_out"]),
        "readouts": tuple(row["readouts"]),
        "places": tuple(Place(**one) for one in row["places"]),
    }
    return Opened(**fields)


def _finished(row: Mapping[str, Any]) -> Finished:
    fields = {key: value for key, value in row.items() if key not in ("kind", "job", "curve")}
    return Finished(curve=tuple(_point(one) for one in row["curve"]), **fields)


def _point(row: Mapping[str, Any]) -> Point:
    readings = (Reading(**{**one, "correct": tuple(one["correct"])}) for one in row["readings"])
    return Point(row["epoch"], tuple(readings), row["train_loss"])
