"""What `steer` is about, from its options: the model, the trait, the vectors, the judges."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import digest, slug
from lensaudit.judge.budget import Caps
from lensaudit.judge.opening import DEFAULT_CACHE, JudgeOptions, open_bench
from lensaudit.judge.programmatic import PROGRAMMATIC, EntityJudge
from lensaudit.judge.verdict import Judge
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_checkpoint
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.interventions import strength_of
from lensaudit.patching.options import parse_memory
from lensaudit.steer.contrast import Format, Sample, format_of, read_contrast, written
from lensaudit.steer.elicit import elicit, filtered
from lensaudit.steer.evaluate import Evaluation
from lensaudit.steer.speaker import Sampling, Speaker, speaker_of
from lensaudit.steer.trait import Trait, check_disjoint, extraction_questions, load_trait
from lensaudit.steer.vector import SteeringVector, load_vector

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Subject:
    """The model that is asked or read, opened but not loaded."""

    checkpoint: Checkpoint
    form: Format
    dtype: str
    device: str
    attn: str

    def speaker(self, sampling: Sampling, memory: str, batch_size: int | None) -> Speaker:
        """Load it."""
        return speaker_of(
            self.checkpoint, form=self.form, sampling=sampling, dtype=self.dtype,
            device=self.device, attn=self.attn, memory_bytes=parse_memory(memory),
            batch_size=batch_size,
        )  # fmt: skip

    def conditions(self) -> dict[str, Any]:
        """What determines an answer beside question, steering and sampling."""
        return {
            "model": self.checkpoint.spec.name, "weights": self.checkpoint.weights,
            "tokenizer": self.checkpoint.tokenizer, "format": self.form, "dtype": self.dtype,
        }  # fmt: skip


def subject_of(name: str, options: dict[str, Any]) -> Subject:
    """The model of a name, with the options that say how it runs."""
    checkpoint = open_checkpoint(resolve(name, load_registry(options["registry"])))
    device = resolve_device(options["device"])
    form = format_of(load_tokenizer(checkpoint), options["form"])
    return Subject(
        checkpoint, form, resolve_dtype(options["dtype"], device), device, options["attn"]
    )


def folder_of(out: Path | None, name: str, trait: Trait) -> Path:
    """Where the files of a model and a trait go."""
    return out or Path("experiments/out/steering") / slug(name) / slug(trait.name)


def contrast_trait(named: str, options: dict[str, Any]) -> Trait:
    """The trait, with the rows of --positive and --negative in place of its own."""
    trait = load_trait(named)
    files = options["positive"], options["negative"]
    if any(files) != all(files):
        raise InputError("--positive and --negative: give both, or neither")
    if not all(files):
        return trait
    positive, negative = (read_contrast(file) for file in files)
    trait = replace(trait, positive=positive, negative=negative, elicitation=None)
    check_disjoint(trait.questions, extraction_questions(trait), f"trait {trait.name}")
    return trait


def samples_of(
    trait: Trait, subject: Subject, options: dict[str, Any], folder: Path, progress: Progress
) -> list[Sample]:
    """Written answers, or elicited ones, without the pairs that a judge cannot tell apart."""
    filtering = options["filter_judge"]
    if filtering == EntityJudge().name:
        raise InputError("--filter entity: elicited answers have no entity; use another judge")
    if trait.positive and trait.negative:
        if filtering != "none":
            raise InputError(
                f"--filter {filtering}: the answers of {trait.name} are written, not elicited, and "
                "are taken as they are; leave it out"
            )
        return written(trait)
    sampling = Sampling(options["temperature"], options["max_new_tokens"], options["seed"])
    folder.mkdir(parents=True, exist_ok=True)
    samples = elicit(
        trait, n_rollouts=options["n_rollouts"], identity=digest(subject.conditions()),
        sampling=sampling, log=folder / "elicited.jsonl", progress=progress,
        load=lambda: subject.speaker(sampling, "2G", options["batch_size"]),
    )  # fmt: skip
    if filtering == "none":
        return samples
    wanted = {**options, "judge": filtering, "coherence_judge": None}
    with judges(wanted, progress) as (judge, coherence):
        return filtered(samples, trait, judge, coherence, folder / "judgements.jsonl")


@contextlib.contextmanager
def judges(options: dict[str, Any], progress: Progress) -> Iterator[tuple[Judge, Judge]]:
    """The judges of trait and coherence while the block lasts.

    Raises:
        InputError: no such judge, or an endpoint that cannot be asked.
    """
    first = options["judge"]
    second = options["coherence_judge"] or ("variety" if first in PROGRAMMATIC else first)
    with contextlib.ExitStack() as stack:
        opened: dict[str, Judge] = {}
        for name in dict.fromkeys((first, second)):
            opened[name] = PROGRAMMATIC.get(name) or _endpoint(name, options, progress, stack)
        yield opened[first], opened[second]


def _endpoint(
    model: str, options: dict[str, Any], progress: Progress, stack: contextlib.ExitStack
) -> Judge:
    wanted = JudgeOptions(
        model,
        options["base_url"],
        key_env=options["key_env"],
        key_file=options["key_file"],
        cache=options.get("judge_cache") or DEFAULT_CACHE,
        caps=Caps(calls=options.get("max_calls")),
    )
    return stack.enter_context(open_bench(wanted, progress)).judge()


def asked_trait(options: dict[str, Any]) -> Trait:
    """The trait with its first --questions questions.

    Raises:
        InputError: the judge looks for entities that the trait does not name.
    """
    trait = load_trait(options["trait"])
    judges = options["judge"], options["coherence_judge"]
    if EntityJudge().name in judges and not trait.entities:
        raise InputError(
            f"--judge entity: trait {trait.name} names no entities; give its file a list "
            "`entities`, one for each of its questions, or use another judge"
        )
    n = options["n_questions"]
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
            path, d_model=checkpoint.d_model, n_layers=checkpoint.n_layers,
            name=checkpoint.spec.name,
        )
        for layer, path in paths.items()
        if layer not in missing
    ]  # fmt: skip


def evaluation_of(
    name: str,
    subject: Subject,
    trait: Trait,
    options: dict[str, Any],
    pair: tuple[Judge, Judge],
    progress: Progress,
) -> Evaluation:
    """The job that the options describe."""
    sampling = Sampling(options["temperature"], options["max_new_tokens"], options["seed"])
    return Evaluation(
        trait=trait,
        n_rollouts=options["n_rollouts"],
        where=options["where"],
        sampling=sampling,
        conditions=subject.conditions(),
        load=lambda: subject.speaker(sampling, options["memory"], options["batch_size"]),
        judge=pair[0],
        coherence=pair[1],
        out=folder_of(options["out"], name, trait),
        progress=progress,
    )
