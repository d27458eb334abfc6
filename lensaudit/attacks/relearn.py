"""Does knowledge come back at once when the model sees the forget set again? Relearning.

One pass of plain fine-tuning on the forget answers; what hides knowledge gives way to it, what was
erased must be learned anew. So the same attack on `retain`, which never had the knowledge, says
how much one pass teaches: only a change beyond that one is recovery.

Settings are those of the UDS meta-evaluation (gnueaj/unlearning-depth-score @ fc31639); training
is in float32 where theirs is in bfloat16.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import transformers

from lensaudit.attacks.result import scored_in, taught_nothing
from lensaudit.attacks.settings import (
    Relearning,
    RelearnSettings,
    relearning_for,
)
from lensaudit.auditing.evaluate import evaluate_into, open_in
from lensaudit.auditing.question import own_data
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.chat import pad_id
from lensaudit.data.facts import Fact
from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import remove_files
from lensaudit.kinds.relearn import AUDIT, RelearnRecord, ScoreChange
from lensaudit.models.checkpoint import open_model
from lensaudit.models.device import resolve_device
from lensaudit.models.family import open_family
from lensaudit.models.registry import anchors_of, default_data, load_registry
from lensaudit.patching.prepare import prepare as open_session
from lensaudit.patching.scoring import score_all
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results import recorded
from lensaudit.results.integrity import answered_for
from lensaudit.results.manifest import MANIFEST
from lensaudit.results.owner import check_free
from lensaudit.results.roles import ends_as_sources
from lensaudit.results.run_folder import RunFolder, held
from lensaudit.settings import (
    Anchors,
    Caches,
    Names,
    Precision,
    Rows,
    shared,
)
from lensaudit.text import digest, slug
from lensaudit.training.embedded import of_embedded_family
from lensaudit.training.rows import (
    ENCODERS,
    TrainBatch,
    check_formats,
    check_lengths,
    finetune_batches,
    load_rows,
    rows_hash,
)
from lensaudit.training.settings import FORMATS
from lensaudit.training.train import FineTuning, Recipe, TrainingRun, train
from lensaudit.training.trainee import Report, TrainingJob, check_apart, made_of, rate_of
from lensaudit.turns import alone


def relearned(
    model: "transformers.PreTrainedModel",
    tokenizer: Any,
    rows: Sequence[Fact],
    *,
    settings: Relearning | None = None,
    report: Report = unheard,
) -> "transformers.PreTrainedModel":
    """A copy of a causal model, fine-tuned on `rows`, in the model's dtype; `model` stays as it is.

    Training is in float32. The same arguments give the same weights.

    Raises:
        InputError: the tokenizer lacks a chat template or a row is longer than the model reads.
        WorkError: the loss diverged.
    """
    dtype = next(model.parameters()).dtype
    twin: Any = copy.deepcopy(model).float()
    run = run_of(twin, tokenizer, rows, settings or Relearning(), name=type(model).__name__)
    train(twin, run, report=report)
    return twin.to(dtype)


def run_of(
    model: "transformers.PreTrainedModel",
    tokenizer: Any,
    rows: Sequence[Fact],
    settings: Relearning,
    *,
    name: str,
) -> TrainingRun[TrainBatch]:
    """The training run of an attack."""
    check_formats(tokenizer, settings.formats, name)
    samples = [ENCODERS[one](tokenizer, row) for row in rows for one in settings.formats]
    check_lengths(samples, model.config, name)
    batch = finetune_batches(
        samples,
        batch_size=settings.batch_size,
        seed=settings.seed,
        pad=pad_id(tokenizer),
        n_parts=settings.n_accumulate,
    )
    recipe = settings.recipe(len(samples))
    return TrainingRun(
        FineTuning(),
        lambda number: batch(number).to(model.device),
        recipe,
        identity={},
        seed=settings.seed,
    )


@dataclass(frozen=True, kw_only=True)
class RelearnJob(TrainingJob):
    """Everything a relearned model is made of; two equal jobs give equal weights."""

    command: ClassVar[str] = "relearn"
    rows: tuple[Fact, ...]
    data: str
    """What the rows were named by."""
    settings: Relearning

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this job from others."""
        return {
            "command": "relearn",
            "weights": self.start.weights,
            "tokenizer": self.start.tokenizer,
            "forget": rows_hash(self.rows),
            "settings": asdict(self.settings) | {"formats": list(self.settings.formats)},
            "stored": str(self.stored),
            **self.tuned,
        }

    @property
    def sources(self) -> dict[str, str | None]:
        """What the rows were named by."""
        return {"forget_source": self.data}

    @property
    def recipe(self) -> Recipe:
        """Steps and learning rate of the training."""
        return self.settings.recipe(len(self.rows) * len(self.settings.formats))

    def run(self, model: Any, tokenizer: Any) -> TrainingRun[TrainBatch]:
        """The training run on the loaded model."""
        return run_of(model, tokenizer, self.rows, self.settings, name=self.start.spec.name)

    def plan(self, out: Path | None) -> list[str]:
        """What would be done, line by line."""
        recipe, settings = self.recipe, self.settings
        written = f"writes {out}" if out else "the checkpoint is not kept"
        return [
            f"relearning of {self.data} by {self.start.spec.name}: {len(self.rows)} rows "
            f"as {'+'.join(settings.formats)}",
            f"{recipe.n_steps} steps of {settings.n_accumulate} x {settings.batch_size} rows, "
            f"lr {recipe.lr:g}",
            f"{self.cost}; {written}",
        ]


def prepare(settings: RelearnSettings, model: str) -> RelearnJob:
    """The relearning run that the settings describe, on one model, checked.

    Raises:
        InputError: whatever is wrong with names, files or numbers.
    """
    if settings.out is not None:
        check_free(settings.out, RelearnJob.command)
    start = open_model(model, settings.registry)
    usual = relearning_for(demo=of_embedded_family(start))
    rate = rate_of(usual.lr, settings.lora)
    data = settings.data or default_data(settings.model, settings.registry)
    job = RelearnJob(
        **made_of(settings, start),
        rows=load_rows(data, part="forget"),
        data=data,
        settings=Relearning(
            lr=rate if settings.lr is None else settings.lr,
            n_epochs=settings.epochs,
            batch_size=settings.batch_size,
            n_accumulate=settings.accumulate,
            weight_decay=settings.weight_decay,
            max_grad_norm=settings.max_grad_norm,
            formats=FORMATS[settings.formats] if settings.formats else usual.formats,
            seed=settings.seed,
        ),
    )
    job.check()
    return job


def planned(settings: RelearnSettings, *, notice: Notice = unheard) -> str:
    """What would be done, in lines.

    Raises:
        InputError: as the run would.
    """
    if settings.audit:
        return open_audit(settings, notice=notice).plan()
    assert settings.out is not None
    job = prepare(settings, settings.model)
    return job.planned(settings.out, force=settings.force, tell=notice)


ATTACK = "relearn --audit"
ATTACKED = "attacked"
"""Folder of the attacked checkpoints, until they are scored."""
OUTPUT_SCORES = {
    "prob": "forget_Q_A_Prob",
    "em": "exact_memorization",
    "es": "extraction_strength",
}
"""What a table calls the output-level metrics, and their names in the suite."""


def open_audit(
    settings: RelearnSettings, *, notice: Notice = unheard, progress: Tell = unheard
) -> "RelearnAudit":
    """The attack on the model and on `retain` that the settings describe, checked.

    Raises:
        InputError: whatever is wrong with names, files or numbers.
    """
    model, keep, work = settings.model, settings.out, scored_in(settings.model, settings.out)
    if keep is not None:
        check_free(keep, RelearnJob.command)
    if settings.lora is not None:
        raise InputError(
            "--lora with --audit: an adapter is audited by its name; make it with --out DIR, "
            "then `lensaudit audit --source BASE+DIR`"
        )
    check_free(work, ATTACK, [AUDIT])
    never = settings.retain and [settings.retain]
    before, _, retains = open_family([model], settings.full, never or None, settings.registry)
    if keep is not None:
        check_apart(keep, before, *retains.values())
    full, (retain, *_) = anchors_of(
        [model], settings.full, settings.retain, load_registry(settings.registry)
    )
    given = shared(
        settings,
        *(Anchors, Precision, Caches),
        full=full,
        retain=retain,
        device=resolve_device(settings.device),
        data=settings.data or default_data(model, settings.registry),
    )
    found = RelearnAudit(
        jobs={name: prepare(settings, name) for name in dict.fromkeys((model, retain))},
        asked=PatchSettings(**given),
        work=work,
        keep=keep,
        force=settings.force,
        notice=notice,
        progress=progress,
    )
    found.check()
    return found


@dataclass(frozen=True, kw_only=True)
class RelearnAudit:
    """Every model relearned, and scored before and after: opened, nothing is loaded or written."""

    jobs: Mapping[str, RelearnJob]
    """By the name of the model; the first is the one that is audited."""
    asked: PatchSettings
    """What before and after are measured with; models and data are named."""
    work: Path
    """Where results of the suite go; also the attacked checkpoints, until they are scored."""
    keep: Path | None = None
    """Where the first attacked checkpoint stays; None keeps none, and nobody named a folder."""
    force: bool = False
    """What another run left there is replaced."""
    notice: Notice = unheard
    progress: Tell = unheard

    @ends_as_sources()
    def check(self) -> None:
        """Find out what is wrong with data, models and folders, before the first step of training.

        Raises:
            InputError: what it is.
        """
        attacked = () if self.run.is_done else map(self._attacked, self.jobs)
        for run in filter(None, (self._kept, self.run, *attacked)):
            _ = run.path  # refused where it holds something else
        for name in self.jobs:
            open_in(name, self.suite, self.run.path / "before" / slug(name))

    @ends_as_sources()
    def plan(self) -> str:
        """What would be done, in lines."""
        first, *others = self.jobs
        kept, trained, lines = self._kept, [first, *others], list[str]()
        if kept is not None:
            trained, there = others, held(kept.path, "model")
            lines = [there] if kept.is_done else self.jobs[first].plan(kept.path)

        def scoring() -> str:
            told = list[str]()
            for name in trained:
                is_there, there = self._attacked(name).is_done, held(self.folders[name], "model")
                told += [there] if is_there else self.jobs[name].plan(None)
            names = " and ".join(self.jobs)
            told.append(f"scores of {names} before and after; writes {self.run.path / AUDIT}")
            return "\n".join(told)

        return "\n".join([*lines, recorded.planned(self.run, scoring)])

    @ends_as_sources()
    def found(self) -> tuple[ScoreChange, ...]:
        """The scores, read where the run is finished; the attacked checkpoints are dropped.

        Raises:
            TryAgainError: another process attacks or scores in the folder.
        """
        out = self.run.path
        if self._kept is not None:
            # first of all: the audit's folder may lie in it, and it would be somebody else's then
            self._make(next(iter(self.jobs)), self._kept.path)
        if self.run.is_done and not (out / ATTACKED).exists():
            return self._found(self.run)  # it may lie where nobody writes
        with alone(self.keep or out):
            # since its folder was chosen, another process may have finished a run there
            run = replace(self.run, tell=unheard)
            return self._found(run) if run.path == out else replace(self).found()

    def _found(self, run: RunFolder) -> tuple[ScoreChange, ...]:
        out = run.path
        record = recorded.in_folder(
            run,
            RelearnRecord,
            self._measured,
            device=self.asked.device,
            files=[AUDIT],
            file=AUDIT,
            notice=self.notice,
        )
        for folder in {*self.folders.values()} - {self.keep}:
            with suppress(LensAuditError):  # it is gone, or somebody else's files keep it
                remove_files(folder, [*answered_for(sealed := folder / MANIFEST), sealed])
        with suppress(LensAuditError):
            remove_files(out / ATTACKED, ())
        return tuple(record.shifts)

    def _measured(self) -> RelearnRecord:
        for name, folder in self.folders.items():
            if folder != self.keep:  # which was made before
                self._make(name, folder)
        found = shifts(self.folders, self.audit, self.suite, self.run.path)
        return RelearnRecord(key=self.run.key, shifts=list(found))

    def _attacked(self, name: str) -> RunFolder:
        folder = self.folders[name]
        return self.jobs[name].folder(folder, force=self.force or folder != self.keep)

    def _make(self, name: str, folder: Path) -> None:
        # what an audit that was killed left in its own folder is in nobody's way
        force = self.force or folder != self.keep
        self.jobs[name].make(
            folder, lambda at: self.progress(Progress("step", at.step, at.n_steps)), force=force
        )

    def audit(self, sources: Sequence[str]) -> Session:
        """What depth of some models is measured with."""
        return open_session(sources, self.asked, notice=self.notice, progress=self.progress)

    @cached_property
    def session(self) -> Session:
        """What depth before the attack is measured with."""
        return self.audit(list(self.jobs))

    @cached_property
    def suite(self) -> EvaluateSettings:
        """What each model is asked."""
        data, forget = own_data(self.asked.data)
        groups = (Rows, Precision, Caches, Names)
        metrics = tuple(OUTPUT_SCORES.values())
        return EvaluateSettings(
            metrics=metrics, **shared(self.asked, *groups, data=data), forget=forget
        )

    @cached_property
    def folders(self) -> dict[str, Path]:
        """By model: where its attacked checkpoint is made."""
        found = {name: self.run.path / ATTACKED / slug(name) for name in self.jobs}
        return found if self.keep is None else {**found, next(iter(found)): self.keep}

    @cached_property
    def run(self) -> RunFolder:
        """The folder of the scores."""
        session = self.session
        inputs = {
            "full": session.full.weights,
            "retain": session.retain.weights,
            "examples": session.examples_hash,
            "dtype": session.settings.dtype,
            "limit": self.asked.limit,
        }
        return RunFolder(
            usual=self.work,
            command=ATTACK,
            key=digest({"jobs": [job.key for job in self.jobs.values()], "audit": inputs}),
            asked=self.told,
            named=self.keep is not None,
            force=self.force,
            tell=self.notice,
        )

    @property
    def told(self) -> dict[str, Any]:
        """Inputs and options, as the manifest has them."""
        session, first = self.session, next(iter(self.jobs))
        inputs = {
            "source": {**self.jobs[first].start.named, "name": first},
            "full": session.full.named,
            "retain": session.retain.named,
            "examples": {"hash": session.examples_hash},
            **{"dtype": session.settings.dtype, "limit": self.asked.limit},
        }
        options = {name: asdict(job.settings) for name, job in self.jobs.items()}
        return {"inputs": inputs, "options": options}

    @cached_property
    def _kept(self) -> RunFolder | None:
        if self.keep is None:
            return None
        first = next(iter(self.jobs.values()))
        return first.folder(self.keep, force=self.force, tell=self.notice)


def shifts(
    pairs: Mapping[str, Path],
    audit: Callable[[Sequence[str]], Session],
    suite: EvaluateSettings,
    work: Path,
) -> tuple[ScoreChange, ...]:
    """Score every model and what the attack made of it; results of the suite go to `work`.

    Args:
        pairs: name of a model -> folder of the attacked one.
        audit: opens what depth is measured with.
        suite: what is asked of either.
        work: a folder.
    """
    outcomes, _ = score_all(audit([name for pair in pairs.items() for name in map(str, pair)]))
    depth = {one.source: one.uds for one in outcomes}

    def scores(source: str, out: Path) -> dict[str, float | None]:
        entries = evaluate_into(source, suite, out).checked().entries
        said = {short: entries[name].value for short, name in OUTPUT_SCORES.items()}
        return {"uds": depth[source], **said}

    return tuple(
        ScoreChange(
            model=name,
            remark=taught_nothing(folder),
            before=scores(name, work / "before" / slug(name)),
            after=scores(str(folder), work / "after" / slug(name)),
        )
        for name, folder in pairs.items()
    )
