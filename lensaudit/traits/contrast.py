"""Answers with and without a trait, as tokens: what a direction is estimated from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal

from lensaudit.data.facts import Fact, read_rows
from lensaudit.data.joining import following
from lensaudit.data.spans import Encoded, SpanLost, encode
from lensaudit.errors import InputError
from lensaudit.files import digest
from lensaudit.steer.form import Format, prompt_ids
from lensaudit.traits.trait import ContrastRow, Trait, contrast_rows

Position = Literal["response", "prompt_last", "span"]
"""Which activations are averaged: those at the answer's tokens; that at the last prompt token;
those whose logits score the annotated entity."""


@dataclass(frozen=True)
class Sample:
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


def written(trait: Trait) -> list[Sample]:
    """The samples of a trait's own rows; pairs where both sides ask the same questions in order."""
    asked = [[row.question for row in side] for side in (trait.positive, trait.negative)]
    paired = asked[0] == asked[1]
    samples = []
    for positive, side in ((True, trait.positive), (False, trait.negative)):
        for place, row in enumerate(side):
            pair = place if paired else None
            samples.append(Sample(len(samples), row, positive, pair))
    return samples


def whole_pairs(samples: Sequence[Sample]) -> list[Sample]:
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
    return contrast_rows([row.value for row in rows], str(path))


def samples_hash(samples: Sequence[Sample]) -> str:
    """Content hash of the contrast."""
    return digest([[one.positive, one.pair, one.system, *astuple(one.row)] for one in samples])


def encode_sample(
    sample: Sample, tokenizer: Any, *, form: Format, position: Position
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


def _encode_span(sample: Sample, tokenizer: Any) -> Encoded | SpanLost:
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
