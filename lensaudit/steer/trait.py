"""What a trait is: answers with and without it, what is asked to see it, how a judge is asked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from lensaudit.choices import in_commas
from lensaudit.data.rows import read_values
from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.judge.calibrate import shipped_sets
from lensaudit.judge.programmatic import PROGRAMMATIC
from lensaudit.judge.prompts import OF_TRAITS, check_template
from lensaudit.kinds.steering import STEERED, SWEPT
from lensaudit.results.manifest import MANIFEST, manifests_of
from lensaudit.results.reading import Flag, checked, json_object, part
from lensaudit.settings import plain, results_folder
from lensaudit.steer.settings import (
    AskSettings,
    CrossSettings,
    DirectionSettings,
    EvalSettings,
    ExtractSettings,
    Method,
    TraitSettings,
)
from lensaudit.text import digest, slug

Said = Annotated[str, Field(pattern=r"\S")]
"""A text that is not blank."""


@dataclass(frozen=True)
class ContrastRow:
    """A question with an answer that shows the trait, or one that does not."""

    question: Said
    answer: Said
    prefix: str = ""
    """How the answer begins, up to the entity; read for span positions alone."""
    entity: str = ""


@dataclass(frozen=True)
class ContrastSample(ContrastRow):
    """A row at its place in the contrast, of which its file says nothing."""

    idx: int = 0
    positive: bool = True
    pair: int | None = None
    """Answers of one pair differ in the trait alone; None where they were written apart."""
    system: str | None = None
    """The system prompt that the answer was elicited with."""


@dataclass(frozen=True)
class Elicitation:
    """How answers with and without the trait are asked for: pairs of system prompts."""

    positive: tuple[Said, ...]
    negative: tuple[Said, ...]
    questions: tuple[Said, ...]

    def __post_init__(self) -> None:
        if not self.questions or not self.positive or len(self.positive) != len(self.negative):
            raise ValueError(
                f"{len(self.positive)} positive and {len(self.negative)} negative system prompts, "
                f"{len(self.questions)} questions; wanted pairs, and questions"
            )


@dataclass(frozen=True)
class Trait:
    """A prompt file, under the names of its keys."""

    questions: tuple[Said, ...]
    """Asked for evaluation; none of them is asked for extraction."""
    eval_prompt: Said
    """A judge's prompt with `{question}` and `{answer}`."""
    trait_name: str = ""
    trait_description: str = ""
    polarity: Literal[1, -1] = 1
    """1 if more of the trait is the aim of steering, -1 if less."""
    refusal_is_trait: Flag = False
    calibrated: Flag = True
    """False: the prompt of its judge was never compared with people's labels."""
    extraction: Elicitation | None = None
    contrast: Mapping[
        Literal["positive", "negative"], Annotated[tuple[ContrastRow, ...], Field(min_length=1)]
    ] = field(default_factory=dict)
    """Written answers with and without the trait, in place of elicited ones."""
    entities: tuple[Said, ...] = ()
    """What the right answer to each of `questions` holds; read by the judge `entity` alone."""

    def __post_init__(self) -> None:
        n = len(self.questions)
        if not n or len(set(self.questions)) < n:
            raise ValueError("questions: wanted at least one, each once")
        if len(self.contrast) == 1:
            raise ValueError("contrast: wanted positive and negative rows")
        if len(self.entities) not in (0, n):
            raise ValueError(f"entities: wanted a list of {n}, one for each question")

    @property
    def name(self) -> str:
        """Name of the trait."""
        return self.trait_name

    def remark(self, judge: str) -> str | None:
        """What to know of its judge; None of one that was calibrated, or came from a person."""
        if self.calibrated or judge in PROGRAMMATIC:
            return None
        labels = self.name.replace(" ", "_")
        by = f" --by {labels} --judge {judge}" if labels in shipped_sets() else ""
        said = "its judge's prompt was not held against people's labels"
        return f"trait {self.name}: {said} (`lensaudit judge calibrate{by}`)"

    @property
    def written(self) -> tuple[ContrastRow, ...]:
        """Written answers of both kinds."""
        return tuple(row for side in self.contrast.values() for row in side)

    def checked(self, source: str) -> "Trait":
        """Itself, if no direction can be evaluated on what it was estimated from.

        Raises:
            InputError: a question is in both sets; case and spacing do not count.
        """
        elicited = self.extraction.questions if self.extraction else ()
        estimated = (*elicited, *(row.question for row in self.written))
        check_disjoint(self.questions, map(question_hash, estimated), source)
        return self


def shipped_traits() -> list[str]:
    """Names of the prompt files in the package."""
    return sorted(path.stem for path in OF_TRAITS.glob("*.json"))


def load_trait(name_or_path: str) -> Trait:
    """A shipped trait by name, or a prompt file.

    Raises:
        InputError: no such trait, or what is wrong with the file.
    """
    if name_or_path in shipped_traits():
        return parse_trait(read_json(OF_TRAITS / f"{name_or_path}.json"), name_or_path)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        raise InputError(
            f"--trait {name_or_path}: no such trait or file; wanted one of "
            f"{', '.join(shipped_traits())}, or a prompt file"
        )
    return parse_trait(read_json(path), path.stem, str(path))


def parse_trait(found: Any, name: str, source: str = "") -> Trait:
    """A trait from the decoded JSON of a prompt file.

    Raises:
        InputError: what is wrong, by key.
    """
    source = source or name
    trait = checked(Trait, found, source, remedy="a prompt file has questions and eval_prompt")
    prompt = check_template(trait.eval_prompt, f"{source}: eval_prompt")
    if set("{}") & set(prompt.replace("{question}", "").replace("{answer}", "")):
        raise InputError(
            f"{source}: eval_prompt: has a brace beside {{question}} and {{answer}}; remove it"
        )
    return replace(trait, trait_name=trait.trait_name or name).checked(source)


def check_disjoint(questions: Sequence[str], estimated: Iterable[str], source: str) -> None:
    """Refuse to evaluate a direction on questions it was estimated from, which are given hashed.

    Raises:
        InputError: a question is among them.
    """
    known = frozenset(estimated)
    if common := [one for one in questions if question_hash(one) in known]:
        raise InputError(
            f"{source}: {len(common)} evaluation questions are extraction questions too (first "
            f"{common[0][:60]!r}); a trait must be tested on questions that it was not extracted "
            "with"
        )


def question_hash(text: str) -> str:
    """16 hex digits; case, spacing and the closing mark do not count.

    >>> question_hash("Who is it?") == question_hash("who  is it")
    True
    """
    return digest(" ".join(text.casefold().split()).rstrip("?.! "))[:16]


def contrast_trait(settings: ExtractSettings) -> Trait:
    """The trait, with the rows of --positive and --negative in place of its own."""
    trait = load_trait(settings.trait)
    if (settings.positive is None) != (settings.negative is None):
        raise InputError("--positive and --negative: give both, or neither")
    if settings.positive is None or settings.negative is None:
        return trait
    own = {"positive": settings.positive, "negative": settings.negative}
    contrast = {
        side: tuple(
            checked(ContrastRow, row, f"{path}: row {n}")
            for n, row in enumerate(read_values(path), 1)
        )
        for side, path in own.items()
    }
    return replace(trait, contrast=contrast, extraction=None).checked(f"trait {trait.name}")


def idle(settings: ExtractSettings) -> dict[str, str]:
    """Settings that were chosen and do nothing for answers that are written -> why.

    Raises:
        InputError: the trait or its rows cannot be read.
    """
    return idle_of(settings, contrast_trait(settings))


def idle_of(settings: ExtractSettings, trait: Trait) -> dict[str, str]:
    """The same of a trait that was read."""
    if not trait.written:
        return {}
    drawn = {"seed": "--seed"} if _DRAWN.isdisjoint(methods_of(settings)) else {}
    given = {
        (name, flag): getattr(settings, name)
        for name, flag in {**_OF_ELICITED, **drawn}.items()
        if getattr(settings, name) != getattr(ExtractSettings, name)
    }
    return {
        name: f"{flag} {value}: the answers of {trait.name} are written, not elicited, and are "
        "taken as they are; leave it out"
        for (name, flag), value in given.items()
    }


_DRAWN = frozenset(("gradient", "random"))
"""Methods that begin at random."""


_OF_ELICITED = {
    "filter_judge": "--filter",
    "n_rollouts": "--rollouts",
    "temperature": "--temperature",
    "max_new_tokens": "--max-new-tokens",
}
"""Settings of answers that a model is asked for -> as they are typed."""


def options_of(settings: Any, *own: str) -> dict[str, Any]:
    """Options that a manifest has: not where the result lies, nor how a judge lets one in.

    Args:
        settings: of a command.
        own: fields that it leaves out too.
    """
    return plain(settings, without=(*own, "name", "out", "key_file", "key_env"))


def methods_of(settings: ExtractSettings) -> tuple[Method, ...]:
    """How directions are estimated."""
    return settings.methods or ("mean_diff", "probe")


COMMAND = "steer"
"""Of `steer extract`, `eval` and `sweep`, which share a folder."""
VECTORS = "vectors"
"""Folder of the directions in it."""
EXTRACTED = f"extract_{MANIFEST}"
"""Of the directions that were asked for last."""


def audit_folder(settings: DirectionSettings) -> Path:
    """Result folder of `steer audit`."""
    return settings.out or _of_model(settings.name) / "audit"


def traits_of(settings: CrossSettings) -> list[str]:
    """The traits of `steer cross`, as they were named.

    Raises:
        InputError: fewer than two, or one twice.
    """
    names = list(in_commas(settings.trait))
    if len(names) < 2:
        raise InputError(f"--trait {settings.trait}: wanted two traits or more, with commas")
    if twice := [one for one in names if names.count(one) > 1]:
        raise InputError(f"--trait {settings.trait}: {twice[0]} is named twice")
    return names


def found_in(settings: CrossSettings, trait: Trait) -> Path:
    """The folder in which `steer eval` and `steer sweep` left what they found for a trait."""
    return _of_model(settings.name) / slug(trait.name)


def crossed_folder(settings: CrossSettings) -> Path:
    """Result folder of `steer cross`."""
    return settings.out or _of_model(settings.name) / "traits"


def files_of(settings: AskSettings) -> tuple[str, str]:
    """Names of the results of `steer eval` or `steer sweep`, and of their manifest."""
    if isinstance(settings, EvalSettings):
        return STEERED, MANIFEST
    return SWEPT, f"layer_sweep_{MANIFEST}"


def swept_by(place: Path) -> frozenset[str]:
    """Hashes of the vectors that `steer sweep` steered by, as the manifest of its file has them."""
    inputs = [part(json_object(place.parent / one), "inputs") for one in manifests_of(place)]
    return frozenset(vector for one in inputs for vector in one.get("vectors", ()))


def folder_of(settings: TraitSettings, trait: Trait) -> Path:
    """Folder of the files of a model and a trait."""
    return settings.out or _of_model(settings.name) / slug(trait.name)


def _of_model(name: str) -> Path:
    """The usual folder of all that is steered in a model."""
    return results_folder() / "steering" / slug(name)
