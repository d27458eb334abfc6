"""What is run: models, data, grid and gates, unfolded into content-hashed jobs; and the run itself.

A study measures, checks that unlearning worked, retrains and writes down. The learning rate is
constant after its rise, so the model after epoch e of a long run is the model of a run of e epochs:
one run gives every epoch of the grid.
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor

from lensaudit.attacks.exchange import undo_exchange
from lensaudit.attacks.result import study_folder
from lensaudit.attacks.rtt.data import (
    Dataset,
    handled,
    load_mcq,
    load_statements,
    save_mcq,
    split_by_author,
)
from lensaudit.attacks.rtt.log import (
    CONDITIONS,
    FILE,
    Finished,
    HeldSplit,
    Log,
    Place,
    Point,
    Reading,
    Role,
    StudyRecord,
    read_log,
)
from lensaudit.attacks.rtt.readout import (
    EncodedItem,
    EncodedSplit,
    Letters,
    StartWeights,
    encode_split,
    letters_of,
    others_than,
    read,
    read_along,
)
from lensaudit.attacks.rtt.summary import SUMMARIES, Summarized, gate_of, summarize, write_summaries
from lensaudit.attacks.settings import (
    Cut,
    Readout,
    StudySettings,
    ValidationSettings,
)
from lensaudit.data.tofu import DEMO, TOFU_PAIRS
from lensaudit.errors import InputError, PartialError, VerificationError
from lensaudit.files import alone, digest, make_folder
from lensaudit.models.causal import load_causal, memory_hash, readout_rows
from lensaudit.models.checkpoint import (
    Checkpoint,
    load_tokenizer,
    of_embedded_family,
    open_model,
    other_tokenizer,
)
from lensaudit.models.device import resolve_device
from lensaudit.models.family import open_family
from lensaudit.models.registry import default_data
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results.manifest import manifest, package_versions
from lensaudit.results.owner import check_free, claim
from lensaudit.settings import plain
from lensaudit.training.rows import check_lengths
from lensaudit.training.train import Recipe
from lensaudit.training.trainee import check_memory

COMMAND = "rtt run"
SCHEMA = 1
"""Of a job's identity: raised when equal settings would give other numbers."""


LRS = (2e-6, 5e-6, 1e-5, 2e-5, 5e-5)
"""For float32 master weights and AdamW; upstream's 1e-7 to 3.2e-6 belong to Lion on half-precision
weights, most of which such steps do not move (`rtt.md` section 5)."""
SCORE_BATCH = 16
"""Sequences per forward pass of a readout; changes rounding only."""


@dataclass(frozen=True)
class StudySubject:
    """A model that takes part."""

    name: str
    weights: str
    """Content hash."""
    load: Callable[[], Any]
    """The model in float32 and eval mode; it is trained in place and restored."""
    method: str | None = None
    """How it was unlearned, where that is known."""


def from_checkpoint(checkpoint: Checkpoint, *, device: str = "cpu") -> StudySubject:
    """A checkpoint on disk; loaded when its turn comes, and let go after it."""
    return StudySubject(
        name=checkpoint.spec.name,
        weights=checkpoint.weights,
        load=lambda: load_causal(checkpoint, device=device),
        method=checkpoint.spec.method,
    )


def in_memory(name: str, model: Any, *, method: str | None = None) -> StudySubject:
    """A model that is there already; after the run it has its weights back, bit for bit.

    Raises:
        InputError: its weights are not float32: a small learning rate would not move them.
    """
    half = {str(one.dtype) for one in model.parameters() if one.dtype != torch.float32}
    if half:
        raise InputError(f"{name}: weights are {', '.join(sorted(half))}, wanted torch.float32")
    return StudySubject(name, memory_hash(model), model.eval, method)


@dataclass(frozen=True)
class Study:
    """One unlearned model under attack, with its ceiling and its floor."""

    data: Dataset
    tokenizer: Any
    original: StudySubject
    """Before unlearning: conditions 0 and C."""
    unlearned: StudySubject
    """Conditions A and B."""
    control: StudySubject | None
    """Never saw the facts: conditions N0 and N, the floor that recovery is measured from."""
    settings: StudySettings
    """Whose names and places were read before."""

    @property
    def subjects(self) -> dict[Role, StudySubject]:
        """The models that take part, by role."""
        every = zip(CONDITIONS, (self.original, self.unlearned, self.control), strict=True)
        return {role: one for role, one in every if one is not None}

    @property
    def readouts(self) -> tuple[Readout, ...]:
        """The first one selects and is reported; the other is logged, where it can be read."""
        if self.settings.readout == "answer":
            return ("answer", "letter") if self.letters else ("answer",)
        return ("letter", "answer")

    @property
    def sweep(self) -> dict[str, Any]:
        """What is tried in each run on T, as log and summary have it."""
        how = self.settings
        return {
            "lrs": list(how.lrs or LRS),
            "n_epochs": how.epochs,
            "batch_size": how.batch_size,
            "n_warmup": how.warmup,
            "loss_on": how.loss_on or "all",
            "weight_decay": how.weight_decay,
            "max_grad_norm": Recipe.max_grad_norm,
            "trainable": how.trainable,
            "seed": how.cut.seed,
        }

    @property
    def gate(self) -> dict[str, float]:
        """When recovery means nothing, as the log has it; 0 switches a gate off."""
        return {name: getattr(self.settings, name) for name in ("min_baseline", "min_drop")}

    @cached_property
    def encoded(self) -> Mapping[str, EncodedSplit]:
        """Every split as tokens, by name."""
        loss_on = self.sweep["loss_on"]
        return {
            name: encode_split(self.tokenizer, items, loss_on)
            for name, items in self.data.splits.items()
        }

    @cached_property
    def letters(self) -> Letters:
        """The letters' tokens; none where they are not single tokens and answers are reported.

        Raises:
            InputError: they are not single tokens.
        """
        try:
            return letters_of(self.tokenizer, self.data.n_choices)
        except InputError:
            if self.settings.readout == "answer":
                return ()
            raise

    @cached_property
    def held_out(self) -> tuple[str, ...]:
        """The splits that take turns as V, in their order; the same for every condition.

        Raises:
            InputError: no such split, or more than there are.
        """
        names, how = list(self.data.splits), self.settings
        if unknown := [one for one in how.hold_out if one not in names]:
            raise InputError(
                f"{self.data.name}: no split {unknown[0]!r}; wanted {', '.join(names)}"
            )
        if how.hold_out:
            return tuple(name for name in names if name in how.hold_out)
        if how.v_runs > len(names):
            raise InputError(
                f"{how.v_runs} splits to hold out, but {self.data.name} has {len(names)}"
            )
        # upstream fork's draw: a seed that every model of a data set shares
        text = f"{how.eval_seed}-{self.data.name}".encode()
        seed = int(hashlib.md5(text, usedforsecurity=False).hexdigest(), 16)
        drawn = Random(seed).sample(range(len(names)), how.v_runs)
        return tuple(names[one] for one in sorted(drawn))

    def puts_back(self, role: Role) -> bool:
        """Are rows of this model's readout put back before it is retrained?"""
        return self.settings.match_readout and role != "original"

    def sample_of_t(self, held_out: str) -> list[EncodedItem]:
        """As many items of T as V has, the same in every run."""
        items = [*chain(*(one.items for one in others_than(held_out, self.encoded)))]
        n = min(len(items), len(self.encoded[held_out].items))
        return Random(self.settings.cut.seed).sample(items, n)

    def read(self, model: Any, items: Sequence[EncodedItem]) -> tuple[Reading, ...]:
        """The readings of a model in eval mode, the one that is reported first."""
        return read(
            model, items, readouts=self.readouts, letters=self.letters, batch_size=SCORE_BATCH
        )

    @cached_property
    def original_readout(self) -> Tensor:
        """Readout of the original model, on the processor."""
        return readout_rows(self.original.load()).cpu().clone()

    @cached_property
    def signature(self) -> str:
        """Content hash of the procedure, without the models: B, C and N share it."""
        return digest(
            {
                "schema": SCHEMA,
                "data": {
                    name: [one.scored_digest, one.trained_digest]
                    for name, one in self.encoded.items()
                },
                "held_out": list(self.held_out),
                "sweep": self.sweep,
                "readouts": list(self.readouts),
                **({"match_readout": True} if self.settings.match_readout else {}),
            }
        )[:16]

    @cached_property
    def study_id(self) -> str:
        """Content hash of procedure, models and gates."""
        models = {role: one.weights for role, one in self.subjects.items()}
        return digest([self.signature, models, self.gate])[:16]


Jobs = Mapping[Place, Mapping[str, Any]]
"""Units of work, each with what it is known by: content hashes and settings as plain JSON."""


def job_id_of(identity: Mapping[str, Any]) -> str:
    """Content hash of a job."""
    return digest(identity)[:16]


def measuring(study: Study, role: Role) -> Jobs:
    """The model as it is, on every split."""
    identities = {name: job_identity(study, role, name) for name in study.encoded}
    return {
        Place(CONDITIONS[role][0], name, None, job_id_of(one)): one
        for name, one in identities.items()
    }


def retraining(study: Study, role: Role) -> Jobs:
    """The model retrained on T, for every held-out split and learning rate."""
    # the original's own rows are where they were: C is the same run with and without
    matched = {"readout_of": study.original.weights} if study.puts_back(role) else {}
    training = {key: value for key, value in study.sweep.items() if key != "lrs"}
    others = {name: others_than(name, study.encoded) for name in study.held_out}
    identities = {
        (name, lr): {
            **job_identity(study, role, name),
            "t": [one.trained_digest for one in others[name]],
            "t_read": [one.scored_digest for one in others[name]],
            "lr": lr,
            "training": training,
            **matched,
        }
        for name, lr in product(study.held_out, study.settings.lrs or LRS)
    }
    return {Place(CONDITIONS[role][1], *at, job_id_of(one)): one for at, one in identities.items()}


def job_identity(study: Study, role: Role, split: str) -> dict[str, Any]:
    """What tells a measurement of a model on a split from others."""
    return {
        "schema": SCHEMA,
        "weights": study.subjects[role].weights,
        "v": study.encoded[split].scored_digest,
        "readouts": list(study.readouts),
        "letters": [list(ids) for ids in study.letters],
        "master_dtype": "float32",
        "optimizer": "adamw",
    }


DEMO_LRS = (3e-4, 1e-3, 3e-3)
"""A model of a million weights needs steps that a model of a billion would not survive."""
DEMO_READS: Readout = "answer"
"""The embedded family knows answers and never saw a letter."""
DEMO_STUDY = StudySettings(
    names=(),
    lrs=(1e-3,),
    epochs=3,
    batch_size=8,
    warmup=4,
    loss_on=DEMO_READS,
    readout=DEMO_READS,
    min_baseline=0.0,
    min_drop=0.0,
)
"""A short study of models of the embedded family in memory, whatever unlearning did to them."""


def prepare(settings: StudySettings, notice: Notice = unheard) -> tuple[tuple[Study, ...], Log]:
    """The studies, opened and checked, and their log; nothing is loaded.

    Args:
        settings: models, data and grid: one study for each unlearned model, of the same data;
            original and control are run once.
        notice: told what of the log does not count.

    Raises:
        InputError: whatever is wrong with names, files or numbers; or defects that are refused.
    """
    folder = study_folder(settings.out)
    check_free(folder, COMMAND, SUMMARIES)
    data = data_of(settings.data or default_data(settings.names[0]), settings.cut)
    data = handled(data, settings.defects)
    if settings.no_control and settings.control:
        raise InputError("--retain and --no-control exclude each other")
    never = () if settings.no_control else settings.control and (settings.control,)
    original, opened, controls = open_family(
        settings.names, settings.original, never, settings.registry
    )
    device, control = resolve_device(settings.device), next(iter(controls.values()), None)
    for one in (original, *opened.values(), *controls.values()):
        if told := other_tokenizer(one, original):
            raise InputError(f"{one.spec.name}: {told}")
        # the start weights are kept in main memory
        check_memory(one, copies=2 if device == "cpu" else 1, device=device)
    tokenizer = load_tokenizer(original)
    if of_embedded_family(original):
        settings = replace(
            settings,
            lrs=settings.lrs or DEMO_LRS,
            loss_on=settings.loss_on or DEMO_READS,
            readout=settings.readout or DEMO_READS,
        )
    elif settings.readout is None and (why := _no_letters(tokenizer, data.n_choices)):
        notice(f"--readout answer is taken: {why}")
        settings = replace(settings, readout="answer")
    studies = tuple(
        Study(
            data=data,
            tokenizer=tokenizer,
            original=from_checkpoint(original, device=device),
            unlearned=from_checkpoint(one, device=device),
            control=from_checkpoint(control, device=device) if control else None,
            settings=settings,
        )
        for one in opened.values()
    )
    for study in studies:
        plan_of(study)
    return studies, read_log(folder / FILE, notice=notice)


def _no_letters(tokenizer: Any, n_choices: int) -> str | None:
    """Why a model of this tokenizer cannot be read by letter; None where it can."""
    try:
        letters_of(tokenizer, n_choices)
    except InputError as error:
        return str(error).partition(";")[0]
    return None


def run_studies(
    settings: StudySettings, studies: Sequence[Study], log: Log, report: Tell
) -> Summarized:
    """Fill the log with the jobs that it lacks, and summarise it.

    Raises:
        TryAgainError: another process runs studies into the folder.
    """
    assert log.path is not None
    started, folder, data, errors = time.monotonic(), log.path.parent, studies[0].data, []
    jobs = {one.job_id for study in studies for one in plan_of(study)}
    with alone(folder):
        # what another process did since the log was read is not done again
        log = read_log(folder / FILE)
        n_known = sum(job_id in log.finished for job_id in jobs)
        claim(folder, COMMAND, SUMMARIES)
        save_mcq(data, make_folder(folder / "mcq") / f"{data.name}-{data.digest[:8]}")
        for study in studies:
            try:
                run(study, log, defects="keep", report=report)
            except (VerificationError, PartialError) as error:
                errors.append(error)
        found = summarize(log, selection=settings.selection, rule=settings.rule)
        write_summaries(found, log, folder)
        ids = [study.study_id for study in studies]
        subjects = [one for study in studies for one in study.subjects.values()]
        named = {"full": studies[0].original, "retain": studies[0].control}
        named |= {f"source {n}": one.unlearned for n, one in enumerate(studies, 1)}
        manifest(
            COMMAND,
            options=plain(settings, without=("names", "out")),
            inputs={
                "data": data.name,
                "data_digest": data.digest,
                "rows": {one.question: one.choices[one.answer] for one in data.items},
                "studies": ids,
                "models": {one.name: one.weights for one in subjects},
                **{
                    role: {"name": one.name, "weights": one.weights}
                    for role, one in named.items()
                    if one is not None
                },
            },
            device=resolve_device(settings.device),
            started=started,
        ).write(folder, (*SUMMARIES, FILE))
    own = tuple(one for one in found if one.study.study_id in ids)
    failure = None
    if errors:
        # a failed gate before failed runs
        first = min(errors, key=lambda one: not isinstance(one, VerificationError))
        more = f" (and {len(errors) - 1} more studies)" if len(errors) > 1 else ""
        failure = type(first)(f"{first}{more}")
    return Summarized(own, folder, log.n_added, n_known, failure)


def validate(settings: ValidationSettings) -> Dataset:
    """Load data, and write them where that is asked."""
    found = data_of(settings.data, settings.cut)
    if settings.model is not None:
        letters_of(load_tokenizer(open_model(settings.model, settings.registry)), found.n_choices)
    if settings.write:
        save_mcq(found, settings.write)
    return found


def data_of(name: str, cut: Cut) -> Dataset:
    """Splits from a folder, or cut from a forget set."""
    folder = Path(name).expanduser()
    # a folder that has a set's name is `./demo`
    if folder.is_dir() and name not in (DEMO, *TOFU_PAIRS):
        return load_mcq(folder, only=cut.only)
    if cut.only:
        raise InputError("--only names splits of a folder; a forget set is cut by --splits")
    set_name, facts = load_statements(name, rows_per_author=cut.rows_per_author)
    return split_by_author(set_name, facts, n_splits=cut.n_splits, seed=cut.seed)


def plan_lines(study: Study, log: Log) -> list[str]:
    """What would be done."""
    plan, how = plan_of(study), study.settings
    left = [one for one in plan if one.job_id not in log.finished]
    training = [one for one in left if one.lr is not None]
    n_rows = {
        name: sum(len(one.samples) for one in others_than(name, study.encoded))
        for name in study.held_out
    }
    n_steps = sum(how.epochs * math.ceil(n_rows[one.split] / how.batch_size) for one in training)
    models = ", ".join(f"{role} {one.name}" for role, one in study.subjects.items())
    held = ", ".join(f"{name} ({len(study.encoded[name].items)})" for name in study.held_out)
    return [
        models,
        f"{study.data.name}: {len(study.data.items)} items in {len(study.data.splits)} splits, "
        f"{len(study.data.left_out)} left out; held out in turn: {held}",
        f"lr {', '.join(f'{lr:g}' for lr in how.lrs or LRS)}; {how.epochs} epochs in "
        f"batches of {how.batch_size}; loss on {study.sweep['loss_on']}",
        f"{len(plan)} jobs, {len(plan) - len(left)} in the log; {len(training)} "
        f"runs of {n_steps} steps together to do",
    ]


def plan_of(study: Study) -> Jobs:
    """Every job of a study in the order they are done, checked before any model is loaded.

    Raises:
        InputError: the data, the letters, the splits or the grid cannot be used.
    """
    lrs = study.settings.lrs or LRS
    if not all(math.isfinite(lr) and lr > 0 for lr in lrs) or len(set(lrs)) != len(lrs):
        raise InputError(f"learning rates {lrs}: wanted one or more, above 0, each once")
    if study.tokenizer.eos_token_id is None:
        raise InputError(
            "the tokenizer has no end-of-text token; set eos_token in its configuration"
        )
    _ = study.letters  # says what is wrong with it
    if small := [name for name in study.held_out if len(study.encoded[name].items) < 2]:
        raise InputError(f"split {small[0]} holds 1 item, wanted 2 or more to select by halves")
    return {
        place: identity
        for what in (measuring, retraining)
        for role in study.subjects
        for place, identity in what(study, role).items()
    }


def run(
    study: Study,
    log: Log | None = None,
    *,
    defects: Literal["refuse", "keep"] = "refuse",
    report: Tell = unheard,
) -> Log:
    """Fill the log with the study's jobs.

    Args:
        study: models, data and grid.
        log: from `read_log`, to resume; in memory by default.
        defects: `keep` runs on ambiguous, repeated or leaking items as upstream does; to leave
            them out, give data from `handled(data, "drop")`.
        report: called as work proceeds.

    Raises:
        InputError: something cannot be used; nothing was done.
        VerificationError: the original does not know the facts, or unlearning did not lower its
            accuracy; the measurements are in the log.
        PartialError: some runs diverged; they are in the log and not tried again.
    """
    log = Log() if log is None else log
    handled(study.data, defects)
    plan = plan_of(study)
    log.open(
        StudyRecord(
            study_id=study.study_id,
            signature=study.signature,
            data=study.data.name,
            data_digest=study.data.digest,
            n_choices=study.data.n_choices,
            n_left_out=len(study.data.left_out),
            defects=study.data.counts,
            models={role: one.name for role, one in study.subjects.items()},
            method=study.unlearned.method,
            splits=tuple(
                HeldSplit(name, tuple(one.idx for one in items), tuple(one.group for one in items))
                for name, items in study.data.splits.items()
            ),
            held_out=study.held_out,
            sweep=study.sweep,
            readouts=study.readouts,
            gate=study.gate,
            places=tuple(plan),
            versions=package_versions(),
        )
    )
    for role in study.subjects:
        _fill(study, role, measuring(study, role), log, report)
    if failure := gate_of(log.studies[study.study_id], log):
        raise VerificationError(
            f"{study.unlearned.name}: {failure}; recovery would mean nothing\n"
            "the measurements are kept; to retrain nevertheless switch the gate off"
        )
    for role in study.subjects:
        _fill(study, role, retraining(study, role), log, report)
    trained = [one for one in plan if one.lr is not None]
    lost = [one for one in trained if log.finished[one.job_id].status == "diverged"]
    if lost:
        listed = ", ".join(f"{one.condition} {one.split} lr {one.lr:g}" for one in lost[:8])
        more = f" and {len(lost) - 8} more" if len(lost) > 8 else ""
        raise PartialError(
            f"{len(lost)} of {len(trained)} runs diverged: {listed}{more}\n"
            "their epochs up to there are in the log and count; leave these learning rates out"
        )
    return log


def _fill(study: Study, role: Role, jobs: Jobs, log: Log, report: Tell) -> None:
    """Do the jobs of one model that the log lacks."""
    left = [one for one in jobs if one.job_id not in log.finished]
    if not left:
        return
    subject, trains = study.subjects[role], left[0].lr is not None
    # before the model that is attacked: never two of them
    rows = study.original_readout if trains and study.puts_back(role) else None
    model = subject.load()
    sequences = chain(*(one.sequences for one in study.encoded.values()))
    check_lengths(sequences, model.config, subject.name)
    start = StartWeights(model) if trains else None
    n_epochs = study.settings.epochs if trains else 1
    what = f"{left[0].condition} {subject.name}: {'epochs' if trains else 'splits'}"
    try:
        for number, job in enumerate(left):

            def tell(epoch: int, number: int = number) -> None:
                # the end of a job is the start of the next one, and of the last told below
                if epoch < n_epochs:
                    report(Progress(what, number * n_epochs + epoch, len(left) * n_epochs))

            tell(0)
            began = time.monotonic()
            items = study.encoded[job.split].items
            if start is None:
                done = Finished("", "ok", (Point(0, study.read(model, items)),))
            else:
                start.restore(model)
                if rows is not None and undo_exchange(model, rows) > 0:
                    # a readout that was put back is not the one that was measured
                    first = (Point(0, study.read(model, items)),)
                else:
                    first = log.finished[job_id_of(job_identity(study, role, job.split))].curve
                made = retrain(study, model, job, tell)
                done = replace(made, curve=(*first, *made.curve))
            seconds = round(time.monotonic() - began, 3)
            log.add(replace(done, job_id=job.job_id, seconds=seconds), jobs[job])
        report(Progress(what, len(left) * n_epochs, len(left) * n_epochs))
    finally:
        if start is not None:
            start.restore(model)


def retrain(
    study: Study, model: Any, job: Place, report: Callable[[int], None] = unheard
) -> Finished:
    """Retrain `model` in place on T, and read V after each epoch; at last a sample of T."""
    how = study.settings
    samples = [*chain(*(one.samples for one in others_than(job.split, study.encoded)))]
    per_epoch = math.ceil(len(samples) / how.batch_size)
    assert job.lr is not None
    made = read_along(
        model,
        samples,
        recipe=Recipe(
            n_steps=how.epochs * per_epoch,
            lr=job.lr,
            n_warmup=how.warmup,
            schedule="constant",
            weight_decay=how.weight_decay,
            trainable=how.trainable,
        ),
        batch_size=how.batch_size,
        seed=how.cut.seed,
        at=range(1, how.epochs + 1),
        read_v=lambda: study.read(model, study.encoded[job.split].items),
        unit=per_epoch,
        report=report,
    )
    if made.status == "diverged":
        return made
    return replace(made, t_accuracy=study.read(model, study.sample_of_t(job.split))[0].accuracy)
