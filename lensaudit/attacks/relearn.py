"""Does knowledge come back at once when the model sees the forget set again? Relearning.

One pass of plain fine-tuning on the forget answers; what hides knowledge gives way to it, what was
erased must be learned anew. So the same attack on `retain`, which never had the knowledge, says
how much one pass teaches: only a change beyond that one is recovery.

Settings are those of the UDS meta-evaluation (gnueaj/unlearning-depth-score @ fc31639); training
is in float32 where theirs is in bfloat16.
"""

import copy
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import transformers

from lensaudit.attacks.result import scored_in, taught_nothing
from lensaudit.attacks.settings import (
    Relearning,
    RelearnSettings,
    relearning_for,
)
from lensaudit.auditing.evaluate import evaluate_into
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.chat import pad_id
from lensaudit.data.facts import Fact
from lensaudit.data.tofu import DEMO, TOFU_PAIRS
from lensaudit.errors import InputError
from lensaudit.files import make_folder
from lensaudit.models.checkpoint import open_model
from lensaudit.models.device import resolve_device
from lensaudit.models.family import open_family
from lensaudit.models.registry import anchors_of, default_data, load_registry
from lensaudit.patching.prepare import prepare as open_session
from lensaudit.patching.scoring import score_all
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import FolderRemark, Notice, Progress, Tell, unheard
from lensaudit.results import keyed
from lensaudit.results.kinds.relearn import RelearnRecord, ScoreChange
from lensaudit.results.manifest import manifest
from lensaudit.results.owner import check_free, claim
from lensaudit.results.reading import checked, document
from lensaudit.results.roles import ends_as_sources
from lensaudit.results.run_folder import finished
from lensaudit.settings import (
    FORGET_SPLIT,
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
        return [
            f"relearning of {self.data} by {self.start.spec.name}: {len(self.rows)} rows "
            f"as {'+'.join(settings.formats)}",
            f"{recipe.n_steps} steps of {settings.n_accumulate} x {settings.batch_size} rows, "
            f"lr {recipe.lr:g}",
            f"{self.cost}; writes {out or 'the audit alone'}",
        ]


def prepare(settings: RelearnSettings, model: str) -> RelearnJob:
    """The relearning run that the settings describe, on one model, checked.

    Raises:
        InputError: whatever is wrong with names, files or numbers.
    """
    if settings.out is not None:
        check_free(settings.out, RelearnJob.command)
    if settings.audit:
        if settings.lora is not None:
            raise InputError(
                "--lora with --audit: an adapter is audited by its name; make it with --out DIR, "
                "then `lensaudit audit --source BASE+DIR`"
            )
        check_free(scored_in(settings.model, settings.out), ATTACK, [AUDIT])
        never = settings.retain and [settings.retain]
        family = ([settings.model], settings.full, never or None, settings.registry)
        full, _, retains = open_family(*family)
        if settings.out is not None:
            check_apart(settings.out, full, *retains.values())
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


ATTACK = "relearn --audit"
AUDIT = "audit.json"
OUTPUT_SCORES = {
    "prob": "forget_Q_A_Prob",
    "em": "exact_memorization",
    "es": "extraction_strength",
}
"""What a table calls the output-level metrics, and their names in the suite."""


def attack(
    settings: RelearnSettings, *, notice: Notice, progress: Tell
) -> tuple[tuple[ScoreChange, ...], Path]:
    """Relearn the model and `retain` as the settings say, and score both before and after.

    Returns:
        The scores, and the folder that they are in.
    """
    registry = load_registry(settings.registry)
    full, (retain, *_) = anchors_of([settings.model], settings.full, settings.retain, registry)
    given = shared(
        settings,
        *(Anchors, Precision, Caches),
        full=full,
        retain=retain,
        device=resolve_device(settings.device),
        data=settings.data or default_data(settings.model, settings.registry),
    )
    work = scored_in(settings.model, settings.out)
    jobs = {name: prepare(settings, name) for name in dict.fromkeys((settings.model, retain))}
    asked = PatchSettings(**given)
    kept = {"keep": settings.out, "force": settings.force}
    found = recovery(jobs, asked, work, **kept, notice=notice, progress=progress)
    return found, work


@ends_as_sources()
def recovery(
    jobs: Mapping[str, RelearnJob],
    asked: PatchSettings,
    work: Path,
    *,
    keep: Path | None,
    force: bool = False,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> tuple[ScoreChange, ...]:
    """Relearn every model, score all before and after, and write `audit.json` into `work`.

    An audit of the same settings that is there already is read. Data and models are checked before
    the first step of training.

    Args:
        jobs: by the name of the model; the first is the one that is audited.
        asked: what before and after are measured with; models and data are named.
        work: results of the suite; also the attacked checkpoints, until they are scored.
        keep: where the first attacked checkpoint stays; None keeps none.
        force: a checkpoint of another job there is replaced.
        notice: told what a person should know.
        progress: told what is trained and measured.
    """
    started = time.monotonic()

    def audit(sources: Sequence[str]) -> Session:
        return open_session(sources, asked, notice=notice, progress=progress)

    session, first = audit(list(jobs)), next(iter(jobs))
    inputs = {
        "full": session.full.weights,
        "retain": session.retain.weights,
        "examples": session.examples_hash,
        "dtype": session.settings.dtype,
        "limit": asked.limit,
    }
    key = digest({"jobs": [job.key for job in jobs.values()], "audit": inputs})
    read = {
        "key": key,
        "source": {**jobs[first].start.named, "name": first},
        "full": session.full.named,
        "retain": session.retain.named,
        "examples": {"hash": session.examples_hash},
        **{name: inputs[name] for name in ("dtype", "limit")},
    }
    if (known := keyed.keyed_document(work / AUDIT, key)) is not None:
        # one that was killed after its scores lacks the rest
        if not finished(work, key, ATTACK) or (work / "attacked").exists():
            _seal(work, jobs, read, device=asked.device, started=started)
        return tuple(checked(RelearnRecord, known, work / AUDIT).shifts)
    if (work / AUDIT).exists():
        notice(FolderRemark(f"{work}: held the scores of another run; it is replaced"))
    folders = {name: work / "attacked" / slug(name) for name in jobs}
    if keep is not None:
        folders[first] = keep
        run = jobs[first].folder(keep, force=force, tell=notice)
        _ = run.path  # refused where it holds something else
        if not run.is_done:
            # first of all: the audit's folder may lie in it, and it would be somebody else's then
            jobs[first].begin(run)
    claim(work, ATTACK, [AUDIT])
    for name, job in jobs.items():
        # what an audit that was killed left in its own folder is in nobody's way
        own = keep is None or name != first
        job.make(
            folders[name],
            lambda at: progress(Progress("step", at.step, at.n_steps)),
            force=own,
            tell=notice,
        )
    data = str(asked.data)
    suite = EvaluateSettings(
        metrics=tuple(OUTPUT_SCORES.values()),
        **shared(
            asked,
            *(Rows, Precision, Caches, Names),
            data=DEMO if data == DEMO else None,
            forget_split=data if data in TOFU_PAIRS else FORGET_SPLIT,
            forget=None if data in (DEMO, *TOFU_PAIRS) else Path(data),
        ),
    )
    found = shifts(folders, audit, suite, make_folder(work))
    keyed.write_keyed(work / AUDIT, document(RelearnRecord(key=key, shifts=list(found))))
    _seal(work, jobs, read, device=asked.device, started=started)
    return found


def _seal(
    work: Path,
    jobs: Mapping[str, RelearnJob],
    read: Mapping[str, Any],
    *,
    device: str,
    started: float,
) -> None:
    """Say how the scores in a folder were made, and drop the attacked checkpoints."""
    options = {name: asdict(job.settings) for name, job in jobs.items()}
    made = manifest(
        ATTACK, kind="relearn", options=options, inputs=read, device=device, started=started
    )
    made.write(work, [AUDIT])
    shutil.rmtree(work / "attacked", ignore_errors=True)


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
