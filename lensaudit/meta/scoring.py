"""Measure many models, one in memory at a time; go on where an interrupted run stopped.

Every model is one evaluation in a folder of its own. A model whose run failed stays to do: it
is named in `to_do.json` with the reason, and the next run tries it again. Attacked
models are made, measured and let go; settings of the attacks are those of `docs/meta.md`: NF4
without double quantisation; one epoch of relearning, of the model and of retain.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lensaudit.attacks.relearn import Relearning
from lensaudit.auditing.evaluate import evaluate_into
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.suites import DEMO_DATA
from lensaudit.errors import InputError, VerificationError, WorkError, failure_in
from lensaudit.files import alone, digest, read_bytes, slug, write_json
from lensaudit.meta.catalogue import SUITE_NAMES, JudgedMetric
from lensaudit.meta.reading import DONE, LOG, TO_DO, known_to_do, read_model
from lensaudit.meta.settings import Attack
from lensaudit.meta.values import Values, merged
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.device import one_memory_error
from lensaudit.models.registry import Registry, load_registry, resolve
from lensaudit.progress import Notice
from lensaudit.results.keyed import keyed_document, write_keyed
from lensaudit.results.records import BEGUN, MANIFEST, is_whole
from lensaudit.sweep.plan import Variant
from lensaudit.sweep.unit import attacked

_NOT_IDENTITY = ("activations", "registry", "batch_size", "metrics")
"""Fields of the settings that do not change what it finds, or are said otherwise."""
_PLACES = (
    *("data", "forget", "holdout", "retain_set", "retain_log"),
    *("tokenizer", "template", "classifier", "align_data", "validity_data"),
)
"""Fields that may name a file or folder; another's text is no place, whatever lies here."""


VARIANTS: Mapping[Attack, Variant] = {"quantize": "nf4", "relearn": "relearn-1ep"}
"""Attack -> the variant of a sweep that it is."""


@dataclass(frozen=True)
class MetaSubject:
    """A model to measure: how results name it, and where its weights come from."""

    name: str
    identity: Mapping[str, Any]
    """What its weights are, without opening them where that may mean a download."""
    checkpoint: Callable[[], str]
    """Makes or finds the checkpoint; the name or folder to evaluate."""
    release: Callable[[], None] = lambda: None
    """Called when it was measured."""


@dataclass(frozen=True)
class Scoring:
    """What is measured, under which conditions, and where results are kept."""

    evaluation: EvaluateSettings
    """Everything but the metrics."""
    metrics: tuple[str, ...]
    """Names in `lensaudit eval`."""
    folder: Path
    notice: Notice = lambda line: None

    def key(self, subject: MetaSubject) -> str:
        """Content hash of what a finished result depends on, beside its metrics."""
        conditions = {k: v for k, v in asdict(self.evaluation).items() if k not in _NOT_IDENTITY}
        registry = load_registry(self.evaluation.registry)
        for anchor in ("full", "retain"):
            if conditions[anchor] is not None:
                conditions[anchor] = identity_of(conditions[anchor], registry)
        plain = {k: _content(v) if k in _PLACES else v for k, v in conditions.items()}
        return digest([dict(subject.identity), plain])


def _content(value: Any) -> Any:
    """A place as JSON; of files and folders of rows, what is in them."""
    # as the suite reads it: the embedded data, also where a folder has that name
    path = None if value in (None, DEMO_DATA) else Path(value)
    if path is None or not path.exists():
        return value if path is None else str(value)
    files = sorted(path.glob("*.json*")) if path.is_dir() else [path]
    return [hashlib.sha256(read_bytes(one)).hexdigest() for one in files]


def suite_names(metrics: Iterable[JudgedMetric], extra: Iterable[str] = ()) -> tuple[str, ...]:
    """What an evaluation must compute; s_MIA follows from the attack itself and retain's."""
    keys = (one.usable_as or one.key for one in metrics)
    return tuple(dict.fromkeys(SUITE_NAMES.get(key, key) for key in (*keys, *extra)))


def named(name: str, registry: Registry) -> MetaSubject:
    """A model that is there already.

    Raises:
        InputError: no such name.
    """
    return MetaSubject(name, identity_of(name, registry), lambda: name)


def identity_of(name: str, registry: Registry) -> dict[str, Any]:
    """A model's weights: by content for a folder, by name and revision for the Hub.

    A finished result of a Hub checkpoint that was deleted to save space stays usable.
    """
    spec = resolve(name, registry)
    if spec.local is None and spec.adapter is None:
        return {"repo": spec.repo, "revision": spec.revision}
    try:
        return {"weights": open_checkpoint(spec).weights}
    except InputError:  # measuring it will say what is wrong
        return {"unopened": name}


def measured(subjects: Sequence[MetaSubject], scoring: Scoring) -> Values:
    """The values of every model: measured now, or found finished.

    Raises:
        InputError: not one model could be measured; the first reason is given.
        TryAgainError: another process measures into the same folder.
    """
    folders = folders_of([subject.name for subject in subjects], scoring.folder)
    to_do: dict[str, str] = {}
    with alone(scoring.folder):
        known = known_to_do(scoring.folder)
        others = {name: why for name, why in known.items() if name not in folders}
        for number, subject in enumerate(subjects, 1):
            scoring.notice(
                f"{scoring.folder.name}: model {number} of {len(subjects)}: {subject.name}"
            )
            reason = _measure(subject, scoring, folders[subject.name])
            if reason is not None:
                to_do[subject.name] = reason
                scoring.notice(f"to do: {subject.name}: {reason}")
            write_json(scoring.folder / TO_DO, others | to_do)
    if subjects and len(to_do) == len(subjects):
        first, reason = next(iter(to_do.items()))
        raise InputError(f"none of {len(subjects)} models could be measured; {first}: {reason}")
    done = [read_model(folders[s.name]) for s in subjects if s.name not in to_do]
    return merged([*done, Values(to_do=to_do)])


def folders_of(names: Sequence[str], parent: Path) -> dict[str, Path]:
    """A folder per model; names that look alike on disk are told apart by a hash.

    >>> [path.name for path in folders_of(["a/b", "a-b", "c"], Path("x")).values()]
    ['a-b-230946ed', 'a-b-c0e5be22', 'c']
    """
    slugs = [slug(name, limit=80) for name in names]
    return {
        name: parent / (short if slugs.count(short) == 1 else f"{short}-{digest(name)[:8]}")
        for name, short in zip(names, slugs, strict=True)
    }


def _measure(subject: MetaSubject, scoring: Scoring, folder: Path) -> str | None:
    """Measure one model, unless that was done; why it could not be."""
    key = scoring.key(subject)
    known = _finished(folder, key)
    if set(scoring.metrics) <= known:
        return None
    # what an earlier run found under the same conditions stays in the log
    metrics = tuple(dict.fromkeys((*scoring.metrics, *sorted(known))))
    (folder / DONE).unlink(missing_ok=True)
    (folder / LOG).unlink(missing_ok=True)
    try:
        settings = replace(scoring.evaluation, metrics=metrics)
        with one_memory_error():
            found = evaluate_into(subject.checkpoint(), settings, folder)
    except (InputError, WorkError, VerificationError, torch.OutOfMemoryError) as error:
        return failure_in(subject.name, "evaluate", error).message
    failed = [entry for entry in found.entries.values() if entry.failed]
    if failed and len(failed) == len(found.entries):
        return failed[0].reason
    done = {"model": subject.name, "key": None if failed else key, "metrics": list(metrics)}
    write_keyed(folder / DONE, done)
    subject.release()
    return None


@dataclass(frozen=True)
class _Done:
    """What the file of a measured model must hold."""

    metrics: list[str]


def _finished(folder: Path, key: str) -> frozenset[str]:
    """The metrics that a model's folder holds under the same conditions."""
    done = keyed_document(folder / DONE, key, _Done) if is_whole(folder) else None
    return frozenset(done["metrics"] if done else ())


def plan_lines(subjects: Sequence[str], scoring: Scoring) -> list[str]:
    """What would be measured, for `--dry-run`."""
    registry = load_registry(scoring.evaluation.registry)
    for name in subjects:
        resolve(name, registry)
    folders = folders_of(subjects, scoring.folder)
    wanted = set(scoring.metrics)
    finished = [
        name
        for name in subjects
        if wanted <= _finished(folders[name], scoring.key(named(name, registry)))
    ]
    return [
        f"{scoring.folder}: {len(subjects)} models x {len(scoring.metrics)} metrics, "
        f"{len(finished)} finished"
    ]


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
            release=(lambda: None) if self.keep else partial(shutil.rmtree, folder, True),
        )

    def _settings(self) -> dict[str, Any]:
        if self.attack == "quantize":
            return {"method": "nf4"}
        settings = asdict(self.relearning)
        return {**settings, "formats": list(settings["formats"]), "data": self.data}

    def _attacked(self, name: str, folder: Path) -> str:
        start, marks = open_checkpoint(resolve(name, self.registry)), (MANIFEST, BEGUN)
        if any(folder.glob("*")) and not any((folder / mark).exists() for mark in marks):
            raise InputError(f"{folder}: holds no run of this command; name another --out")
        variant, how = VARIANTS[self.attack], self.relearning
        return str(attacked(start, variant, folder, device=self.device, how=how, rows=self.data))
