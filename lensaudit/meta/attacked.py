"""Attack many models, measure each and let go of the attacked weights.

Settings of the attacks are those of `meta_evaluation.md` section 4.4: NF4 without double
quantisation; one epoch of relearning, of the model and of retain.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lensaudit.attacks import relearn, rounding
from lensaudit.attacks.checkpoints import stored_dtype
from lensaudit.attacks.relearn import Relearning
from lensaudit.meta.robustness import Attack
from lensaudit.meta.scoring import MetaSubject, folders_of, identity_of
from lensaudit.models.checkpoint import Checkpoint, open_checkpoint
from lensaudit.models.device import resolve_device
from lensaudit.models.registry import Registry, resolve
from lensaudit.progress import Notice
from lensaudit.unlearn.rows import load_rows


@dataclass(frozen=True)
class Attacking:
    """One attack, and where its checkpoints live until they are measured."""

    attack: Attack
    registry: Registry
    folder: Path
    data: str
    """Forget rows of relearning: `demo`, `forget10` or a file."""
    device: str = "auto"
    relearning: Relearning = field(default_factory=Relearning)
    keep: bool = False
    """Leave attacked checkpoints where they are."""
    notice: Notice = lambda line: None

    def subjects(self, names: list[str]) -> list[MetaSubject]:
        """The attacked models, under the names of the models that are attacked."""
        folders = folders_of(names, self.folder)
        return [self._subject(name, folders[name]) for name in names]

    def _subject(self, name: str, folder: Path) -> MetaSubject:
        return MetaSubject(
            name,
            {**identity_of(name, self.registry), "attack": self._settings()},
            checkpoint=lambda: self._attacked(name, folder),
            release=(lambda: None) if self.keep else (lambda: _remove(folder)),
        )

    def _settings(self) -> dict[str, Any]:
        if self.attack == "quantize":
            return {"method": "nf4"}
        settings = asdict(self.relearning)
        return {**settings, "formats": list(settings["formats"]), "data": self.data}

    def _attacked(self, name: str, folder: Path) -> str:
        start = open_checkpoint(resolve(name, self.registry))
        _ATTACKS[self.attack](self, start, folder)
        return str(folder)


def _quantize(attacking: Attacking, start: Checkpoint, folder: Path) -> None:
    job = rounding.RoundingJob(
        start=start,
        method="nf4",
        engine="auto",
        stored=stored_dtype(start, "same"),
        device=resolve_device(attacking.device),
    )
    rounding.check(job)
    rounding.make(job, folder)


def _relearn(attacking: Attacking, start: Checkpoint, folder: Path) -> None:
    job = relearn.RelearnJob(
        start=start,
        rows=load_rows(attacking.data, part="forget"),
        settings=attacking.relearning,
        stored=stored_dtype(start, "same"),
        device=resolve_device(attacking.device),
    )
    relearn.check(job)
    relearn.make(job, folder, report=lambda progress: None)


_ATTACKS: Mapping[Attack, Callable[[Attacking, Checkpoint, Path], None]] = {
    "quantize": _quantize,
    "relearn": _relearn,
}


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
