"""What a trait is: answers with and without it, what is asked to see it, how a judge is asked."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from lensaudit.data.facts import Fact, read_rows
from lensaudit.data.joining import following
from lensaudit.data.spans import Encoded, SpanLost, encode
from lensaudit.errors import InputError
from lensaudit.files import digest, read_json
from lensaudit.judge.prompts import check_template
from lensaudit.results.schema import Flag, checked
from lensaudit.steer.generate import Format, prompt_ids

FOLDER = Path(__file__).parent / "shipped"
PLACEHOLDERS = ("{question}", "{answer}")


Said = Annotated[str, Field(pattern=r"\S")]
"""A text that is not blank."""


@dataclass(frozen=True)
class ContrastRow:
    """One question with an answer that shows the trait, or one that does not."""

    question: Said
    answer: Said
    prefix: str = ""
    """How the answer begins, up to the entity; read for span positions alone."""
    entity: str = ""


ContrastRows = Annotated[tuple[ContrastRow, ...], Field(min_length=1)]


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
class _PromptFile:
    """What stands in a prompt file."""

    questions: tuple[Said, ...]
    eval_prompt: Said
    trait_name: str = ""
    trait_description: str = ""
    polarity: Literal[1, -1] = 1
    refusal_is_trait: Flag = False
    extraction: Elicitation | None = None
    contrast: Mapping[Literal["positive", "negative"], ContrastRows] = field(default_factory=dict)
    """Written answers with and without the trait."""
    entities: tuple[Said, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.questions)
        if not n or len(set(self.questions)) < n:
            raise ValueError("questions: wanted at least one, each once")
        if len(self.contrast) == 1:
            raise ValueError("contrast: wanted positive and negative rows")
        if len(self.entities) not in (0, n):
            raise ValueError(f"entities: wanted a list of {n}, one for each question")


@dataclass(frozen=True)
class Trait:
    """One prompt file."""

    name: str
    questions: tuple[str, ...]
    """Asked for evaluation; none of them is asked for extraction."""
    eval_prompt: str
    """A judge's prompt with `{question}` and `{answer}`."""
    description: str = ""
    polarity: int = 1
    """1 if more of the trait is the aim of steering, -1 if less."""
    refusal_is_trait: bool = False
    elicitation: Elicitation | None = None
    positive: tuple[ContrastRow, ...] = ()
    """Written answers with the trait, in place of elicited ones."""
    negative: tuple[ContrastRow, ...] = ()
    entities: tuple[str, ...] = ()
    """What the right answer to each of `questions` holds; read by the judge `entity` alone."""

    def hash(self) -> str:
        """Content hash of what is asked and how it is judged."""
        return digest([list(self.questions), self.eval_prompt, self.polarity])


def shipped_traits() -> list[str]:
    """Names of the prompt files in the package."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load_trait(name_or_path: str) -> Trait:
    """A shipped trait by name, or a prompt file.

    Raises:
        InputError: no such trait, or what is wrong with the file.
    """
    if name_or_path in shipped_traits():
        return parse_trait(read_json(FOLDER / f"{name_or_path}.json"), name_or_path)
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
    file = checked(_PromptFile, found, source, remedy="a prompt file has questions and eval_prompt")
    trait = Trait(
        name=file.trait_name or name,
        description=file.trait_description,
        questions=file.questions,
        eval_prompt=judge_prompt(file.eval_prompt, f"{source}: eval_prompt"),
        polarity=file.polarity,
        refusal_is_trait=file.refusal_is_trait,
        elicitation=file.extraction,
        positive=file.contrast.get("positive", ()),
        negative=file.contrast.get("negative", ()),
        entities=file.entities,
    )
    check_disjoint(trait.questions, extraction_questions(trait), source)
    return trait


def judge_prompt(text: str, where: str) -> str:
    """The text, with both placeholders in it and no other braces.

    Raises:
        InputError: a placeholder is missing, or a brace stands elsewhere.
    """
    rest = check_template(text, where)
    for placeholder in PLACEHOLDERS:
        rest = rest.replace(placeholder, "")
    if "{" in rest or "}" in rest:
        raise InputError(f"{where}: has a brace beside {' and '.join(PLACEHOLDERS)}; remove it")
    return text


def extraction_questions(trait: Trait) -> tuple[str, ...]:
    """Every question whose answers a direction is estimated from."""
    elicited = trait.elicitation.questions if trait.elicitation else ()
    return (*elicited, *(row.question for row in (*trait.positive, *trait.negative)))


def check_disjoint(evaluation: Sequence[str], extraction: Sequence[str], source: str) -> None:
    """Refuse to evaluate a direction on what it was estimated from.

    Raises:
        InputError: a question is in both sets; case and spacing do not count.
    """
    known = {question_hash(question) for question in extraction}
    common = [question for question in evaluation if question_hash(question) in known]
    if common:
        raise InputError(
            f"{source}: {len(common)} evaluation questions are extraction questions too "
            f"(first {common[0][:60]!r}); a trait must be seen on questions it was not found with"
        )


def question_hash(text: str) -> str:
    """16 hex digits; case, spacing and the closing mark do not count.

    >>> question_hash("Who is it?") == question_hash("who  is it")
    True
    """
    return digest(" ".join(text.casefold().split()).rstrip("?.! "))[:16]


Position = Literal["response", "prompt_last", "span"]
"""Which activations are averaged: those at the answer's tokens; that at the last prompt token;
those whose logits score the annotated entity."""


@dataclass(frozen=True)
class ContrastSample:
    """One answer of the contrast."""

    idx: int
    row: ContrastRow
    positive: bool
    pair: int | None = None
    """Answers of one pair differ in the trait alone; None where they were written apart."""
    system: str | None = None
    """The system prompt that the answer was elicited with."""

    @property
    def group(self) -> str:
        """The question: folds keep its answers together."""
        return self.row.question


def written(trait: Trait) -> list[ContrastSample]:
    """The samples of a trait's own rows; pairs where both sides ask the same questions in order."""
    asked = [[row.question for row in side] for side in (trait.positive, trait.negative)]
    paired = asked[0] == asked[1]
    samples = []
    for positive, side in ((True, trait.positive), (False, trait.negative)):
        for place, row in enumerate(side):
            pair = place if paired else None
            samples.append(ContrastSample(len(samples), row, positive, pair))
    return samples


def whole_pairs(samples: Sequence[ContrastSample]) -> list[ContrastSample]:
    """Without the answers whose partner is missing; those written apart all stay."""
    n_in = Counter(one.pair for one in samples)
    return [one for one in samples if one.pair is None or n_in[one.pair] == 2]


def read_contrast(path: Path) -> tuple[ContrastRow, ...]:
    """Rows of question and answer from a JSON or JSONL file.

    Raises:
        InputError: the file cannot be read, or a row is wrong.
    """
    rows, problems = read_rows(path)
    if problems:
        raise InputError(f"{path}: {problems[0]}")
    return tuple(checked(ContrastRow, row, f"{path}: {where}") for where, row in rows)


def samples_hash(samples: Sequence[ContrastSample]) -> str:
    """Content hash of the contrast."""
    return digest([[one.positive, one.pair, one.system, *astuple(one.row)] for one in samples])


def encode_sample(
    sample: ContrastSample, tokenizer: Any, *, form: Format, position: Position
) -> Encoded | SpanLost:
    """Prompt and answer joined; the kept rows are the last prompt token's and the answer's.

    For `span` they are those that score the entity, in the format of the depth score.
    """
    if position == "span":
        return _encode_span(sample, tokenizer)
    prompt = prompt_ids(tokenizer, form, sample.row.question, sample.system)
    text = sample.row.answer
    if form == "chat":
        answer = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    else:
        answer = following(tokenizer, text if text[:1].isspace() else f" {text}")
    if not answer:
        return SpanLost(sample.idx, "the tokenizer makes no token of the answer")
    ids = (*prompt, *answer)
    return Encoded(sample.idx, sample.group, ids, len(prompt), len(prompt), len(ids))


def _encode_span(sample: ContrastSample, tokenizer: Any) -> Encoded | SpanLost:
    row = sample.row
    if not row.entity or sample.system:
        raise InputError(
            f"--position span: {row.question[:60]!r} has no entity; give annotated rows "
            "(question, answer, prefix, entity)"
        )
    example = Fact(sample.idx, row.question, row.answer, row.prefix, row.entity, group=sample.group)
    return encode(example, tokenizer)


def positions_read(encoded: Encoded, position: Position) -> range:
    """Token positions that are averaged."""
    if position == "prompt_last":
        return range(encoded.n_prompt - 1, encoded.n_prompt)
    return range(encoded.start, encoded.end)
