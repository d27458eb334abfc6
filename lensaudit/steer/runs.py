"""From settings to files: the whole of `steer extract`, `steer eval` and `steer sweep`."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lensaudit.activations.fill import CACHE_BATCH
from lensaudit.errors import InputError
from lensaudit.files import digest, make_folder, slug
from lensaudit.judge.budget import Budget
from lensaudit.judge.client import open_client
from lensaudit.judge.programmatic import PROGRAMMATIC, EntityJudge, Judge
from lensaudit.judge.scalar import ScalarJudge
from lensaudit.judge.settings import JudgeAccess
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_checkpoint
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.interventions import strength_of
from lensaudit.patching.options import parse_layers, parse_memory
from lensaudit.progress import Notice, Tick
from lensaudit.results.records import claim, manifest
from lensaudit.settings import plain, results_folder
from lensaudit.steer.elicit import asked, elicit, filtered
from lensaudit.steer.evaluate import Evaluation, checked_coefficients, evaluate, sweep
from lensaudit.steer.extract import Extraction, extract
from lensaudit.steer.generate import Format, Sampling, Speaker, format_of, speaker_of
from lensaudit.steer.settings import (
    AskSettings,
    EvalSettings,
    ExtractSettings,
    LayerSettings,
    Method,
)
from lensaudit.steer.trait import (
    ContrastSample,
    Trait,
    check_disjoint,
    extraction_questions,
    load_trait,
    read_contrast,
    written,
)
from lensaudit.steer.vector import SteeringVector, load_vector, save_vector

_SECRET = ("key_file", "key_env")


@dataclass(frozen=True)
class TraitSubject:
    """The model that is asked or read, opened but not loaded."""

    checkpoint: Checkpoint
    form: Format
    dtype: str
    device: str

    def speaker(self, sampling: Sampling, memory: str, batch_size: int | None) -> Speaker:
        """Load it."""
        return speaker_of(
            self.checkpoint,
            form=self.form,
            sampling=sampling,
            dtype=self.dtype,
            device=self.device,
            memory_bytes=parse_memory(memory),
            batch_size=batch_size,
        )

    def conditions(self) -> dict[str, Any]:
        """What determines an answer beside question, steering and sampling."""
        return {
            "model": self.checkpoint.spec.name,
            "weights": self.checkpoint.weights,
            "tokenizer": self.checkpoint.tokenizer,
            "format": self.form,
            "dtype": self.dtype,
        }


def subject_of(settings: AskSettings | ExtractSettings) -> TraitSubject:
    """The model that is named, and how it runs."""
    checkpoint = open_checkpoint(resolve(settings.name, load_registry(settings.registry)))
    device = resolve_device(settings.device)
    return TraitSubject(
        checkpoint,
        format_of(load_tokenizer(checkpoint), settings.form),
        resolve_dtype(settings.dtype, device),
        device,
    )


def folder_of(out: Path | None, name: str, trait: Trait) -> Path:
    """Where the files of a model and a trait go."""
    return out or results_folder() / "steering" / slug(name) / slug(trait.name)


def contrast_trait(settings: ExtractSettings) -> Trait:
    """The trait, with the rows of --positive and --negative in place of its own."""
    trait = load_trait(settings.trait)
    if (settings.positive is None) != (settings.negative is None):
        raise InputError("--positive and --negative: give both, or neither")
    if settings.positive is None or settings.negative is None:
        return trait
    positive, negative = read_contrast(settings.positive), read_contrast(settings.negative)
    trait = replace(trait, positive=positive, negative=negative, elicitation=None)
    check_disjoint(trait.questions, extraction_questions(trait), f"trait {trait.name}")
    return trait


def samples_of(
    trait: Trait,
    subject: TraitSubject,
    settings: ExtractSettings,
    folder: Path,
    progress: Tick,
    notice: Notice | None = None,
) -> list[ContrastSample]:
    """Written answers, or elicited ones, without the pairs that a judge cannot tell apart."""
    filtering = settings.filter_judge
    if filtering == EntityJudge().name:
        raise InputError("--filter entity: elicited answers have no entity; use another judge")
    if trait.positive and trait.negative:
        if filtering != "none":
            raise InputError(
                f"--filter {filtering}: the answers of {trait.name} are written, not elicited, and "
                "are taken as they are; leave it out"
            )
        return written(trait)
    sampling = Sampling(settings.temperature, settings.max_new_tokens, settings.seed)
    make_folder(folder)
    samples = elicit(
        trait,
        n_rollouts=settings.n_rollouts,
        identity=digest(subject.conditions()),
        sampling=sampling,
        log=folder / "elicited.jsonl",
        progress=progress,
        notice=notice,
        load=lambda: subject.speaker(sampling, settings.memory, settings.batch_size),
    )
    if filtering == "none":
        return samples
    asked = judges(filtering, None, settings.access, progress)
    with asked as (judge, coherence):
        return filtered(samples, trait, judge, coherence, folder / "judgements.jsonl", notice)


@contextlib.contextmanager
def judges(
    judge: str,
    coherence: str | None,
    access: JudgeAccess,
    progress: Tick,
) -> Iterator[tuple[Judge, Judge]]:
    """The judges of trait and coherence while the block lasts; what may be used, both use.

    Raises:
        InputError: no such judge, or an endpoint that cannot be asked.
    """
    second = coherence or ("variety" if judge in PROGRAMMATIC else judge)
    with contextlib.ExitStack() as stack:
        opened: dict[str, Judge] = {}
        budget: Budget | None = None
        for name in dict.fromkeys((judge, second)):
            if name in PROGRAMMATIC:
                opened[name] = PROGRAMMATIC[name]
                continue
            opening = open_client(access, name, progress=progress, budget=budget)
            client = stack.enter_context(opening)
            budget = client.budget
            opened[name] = ScalarJudge(client, client.capability())
        yield opened[judge], opened[second]


def asked_trait(settings: AskSettings) -> Trait:
    """The trait with its first --questions questions.

    Raises:
        InputError: the judge looks for entities that the trait does not name.
    """
    trait = load_trait(settings.trait)
    if EntityJudge().name in (settings.judge, settings.coherence_judge) and not trait.entities:
        raise InputError(
            f"--judge entity: trait {trait.name} names no entities; give its file a list "
            "`entities`, one for each of its questions, or use another judge"
        )
    n = settings.n_questions
    return replace(trait, questions=trait.questions[:n], entities=trait.entities[:n])


def grid_of(text: str, vector: SteeringVector, *, as_ratio: bool) -> list[float]:
    """Coefficients from a comma list.

    Raises:
        InputError: not numbers, or ratios where the stream's length is not known.
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--coefficients {text}: wanted numbers, like 0,0.5,1") from error
    if not as_ratio:
        return numbers
    length = vector.resid_norm
    if not length:
        raise InputError(f"--as-ratio: {vector.file_name} does not know the stream's length")
    return [strength_of(one, vector.vector, resid_norm=length) for one in numbers]


def vectors_in(
    folder: Path, method: str, layers: Sequence[int], checkpoint: Checkpoint, *, explicit: bool
) -> list[SteeringVector]:
    """The vectors of a method at some layers; with `explicit` none may be missing.

    Raises:
        InputError: there are none, one is missing, or one is damaged.
    """
    paths = {layer: folder / f"{method}_layer{layer}.safetensors" for layer in layers}
    missing = [layer for layer, path in paths.items() if not path.exists()]
    if len(missing) == len(paths) or (explicit and missing):
        raise InputError(
            f"{folder}: holds no {method} vector of layer {missing[0]}; run `lensaudit steer "
            "extract` or name another --vectors folder"
        )
    return [
        load_vector(
            path,
            d_model=checkpoint.d_model,
            n_layers=checkpoint.n_layers,
            name=checkpoint.spec.name,
        )
        for layer, path in paths.items()
        if layer not in missing
    ]


@dataclass(frozen=True)
class Extracting:
    """Directions that may be estimated: the model is opened, nothing is loaded."""

    settings: ExtractSettings
    subject: TraitSubject
    trait: Trait
    methods: tuple[Method, ...]
    layers: tuple[int, ...]
    folder: Path

    @classmethod
    def of(cls, settings: ExtractSettings) -> "Extracting":
        """Open and check what the settings name."""
        subject = subject_of(settings)
        trait = contrast_trait(settings)
        return cls(
            settings,
            subject,
            trait,
            settings.methods or ("mean_diff", "probe"),
            parse_layers(settings.layers, subject.checkpoint.n_layers),
            folder_of(settings.out, settings.name, trait),
        )

    def plan(self) -> str:
        """What a run would do, in one line."""
        trait = self.trait
        n_answers, how = len(trait.positive) + len(trait.negative), "written"
        if not n_answers and trait.elicitation:
            n_answers = len(asked(trait.elicitation, self.settings.n_rollouts))
            how = "elicited"
        return (
            f"{self.settings.name}: {n_answers} {how} answers of {trait.name}, "
            f"{len(self.layers)} layers, {', '.join(self.methods)} at {self.settings.position}: "
            f"{len(self.layers) * len(self.methods)} vectors"
        )

    def run(self, progress: Tick, notice: Notice | None = None) -> list[SteeringVector]:
        """Estimate the directions and write them to `vectors/`."""
        settings, subject = self.settings, self.subject
        samples = samples_of(self.trait, subject, settings, self.folder, progress, notice)
        job = Extraction(
            subject.checkpoint,
            tuple(samples),
            self.trait.name,
            self.methods,
            self.layers,
            position=settings.position,
            form=subject.form,
            dtype=subject.dtype,
            device=subject.device,
            batch_size=settings.batch_size or CACHE_BATCH,
            seed=settings.seed,
            root=Path(settings.activations),
        )
        vectors = extract(job, progress)
        for vector in vectors:
            save_vector(vector, self.folder / "vectors")
        return vectors


@dataclass(frozen=True)
class Steering:
    """Steered answers that may be asked for: the model is opened, nothing is loaded."""

    settings: EvalSettings | LayerSettings
    subject: TraitSubject
    trait: Trait
    vectors: tuple[SteeringVector, ...]
    grid: tuple[float, ...] = ()
    """Coefficients of the one vector; empty where each layer has its own."""

    @classmethod
    def over_coefficients(cls, settings: EvalSettings, notice: Notice) -> "Steering":
        """One vector under several coefficients."""
        subject = subject_of(settings)
        trait = asked_trait(settings)
        vector = load_vector(
            settings.vector,
            d_model=subject.checkpoint.d_model,
            n_layers=subject.checkpoint.n_layers,
            name=settings.name,
        )
        grid = grid_of(settings.coefficients, vector, as_ratio=settings.as_ratio)
        made = cls(settings, subject, trait, (vector,), checked_coefficients(grid))
        if vector.weights and vector.weights != subject.checkpoint.weights:
            notice(
                f"{settings.vector}: was extracted from {vector.model}, not from {settings.name}"
            )
        return made

    @classmethod
    def over_layers(cls, settings: LayerSettings) -> "Steering":
        """The vectors of one method with one strength."""
        subject = subject_of(settings)
        trait = asked_trait(settings)
        found = vectors_in(
            settings.vectors or folder_of(settings.out, settings.name, trait) / "vectors",
            settings.method,
            parse_layers(settings.layers, subject.checkpoint.n_layers),
            subject.checkpoint,
            explicit=settings.layers != "all",
        )
        return cls(settings, subject, trait, tuple(found))

    def plan(self) -> str:
        """What a run would do, in one line."""
        settings, n_questions = self.settings, len(self.trait.questions)
        n_settings = len(self.grid) or len(self.vectors) + 1  # the baseline
        n_answers = n_settings * n_questions * settings.n_rollouts
        return (
            f"{settings.name}: {n_settings} settings x {n_questions} questions of "
            f"{self.trait.name} x {settings.n_rollouts} rollouts = {n_answers} answers of at most "
            f"{settings.max_new_tokens} tokens, {2 * n_answers} judgements by {settings.judge}"
        )

    def run(self, progress: Tick, notice: Notice | None = None) -> tuple[dict[str, Any], Path]:
        """Ask, judge and write; the results and their file."""
        started = time.monotonic()
        settings, subject = self.settings, self.subject
        sampling = Sampling(settings.temperature, settings.max_new_tokens, settings.seed)
        with judges(
            settings.judge,
            settings.coherence_judge,
            settings.access,
            progress,
        ) as (judge, coherence):
            job = Evaluation(
                trait=self.trait,
                n_rollouts=settings.n_rollouts,
                where=settings.where,
                sampling=sampling,
                conditions=subject.conditions(),
                load=lambda: subject.speaker(sampling, settings.memory, settings.batch_size),
                judge=judge,
                coherence=coherence,
                out=folder_of(settings.out, settings.name, self.trait),
                progress=progress,
                notice=notice,
            )
            file, record = self._names
            claim(job.out, "steer", [file], record)
            if isinstance(settings, EvalSettings):
                results = evaluate(job, self.vectors[0], self.grid)
            else:
                how = {"ratio": settings.ratio, "coefficient": settings.coefficient}
                results = sweep(job, self.vectors, **how)
        self._record(job.out, file, record, started)
        return results, job.out / file

    @property
    def _names(self) -> tuple[str, str]:
        """Of the result and of its manifest."""
        if isinstance(self.settings, EvalSettings):
            return "results.json", "manifest.json"
        return "layer_sweep.json", "layer_sweep_manifest.json"

    def _record(self, folder: Path, file: str, record: str, started: float) -> None:
        """Write how the results were made."""
        hashes = [one.hash() for one in self.vectors]
        inputs = {"vector": hashes[0]} if self.grid else {"vectors": hashes}
        own = ("name", "vector", "coefficients", "as_ratio")
        if isinstance(self.settings, LayerSettings):
            own = ("name", "vectors", "method", "layers", "ratio", "coefficient")
        made = manifest(
            "steer",
            options=plain(self.settings, without=(*own, *_SECRET)),
            inputs={**self.subject.conditions(), **inputs},
            device=self.subject.device,
            started=started,
        )
        made.write(folder, [file], record)
