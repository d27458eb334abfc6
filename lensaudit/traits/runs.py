"""From settings to files: the whole of `steer extract`, `steer eval` and `steer sweep`."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.activations.fill import CACHE_BATCH
from lensaudit.patching.options import parse_layers
from lensaudit.progress import Notice, Tick
from lensaudit.results.records import claim, manifest
from lensaudit.settings import plain
from lensaudit.steer.settings import EvalSettings, ExtractSettings, LayerSettings, Method
from lensaudit.steer.vector import SteeringVector, load_vector, save_vector
from lensaudit.traits.elicit import asked
from lensaudit.traits.evaluate import Evaluation, checked_coefficients, evaluate
from lensaudit.traits.extract import Extraction, extract
from lensaudit.traits.prepare import (
    TraitSubject,
    asked_trait,
    contrast_trait,
    folder_of,
    grid_of,
    judges,
    samples_of,
    subject_of,
    vectors_in,
)
from lensaudit.traits.speaker import Sampling
from lensaudit.traits.sweep import sweep
from lensaudit.traits.trait import Trait

_SECRET = ("key_file", "key_env")


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
