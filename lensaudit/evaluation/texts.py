"""Texts of a split as tokens and tensors: which are scored, which rows cannot be."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from transformers import PreTrainedTokenizerBase

from lensaudit.data.chat import (
    Encoding,
    MaskConvention,
    Template,
    attended,
    encode_completion,
    encode_qa,
    pad_id,
)
from lensaudit.data.facts import Fact
from lensaudit.data.suites import Split
from lensaudit.metrics.records import alternatives
from lensaudit.metrics.registry import Measured
from lensaudit.models.sizes import ContextWindow
from lensaudit.types import PosMask, Tokens, padded_rows


@dataclass(frozen=True)
class Tokenization:
    """How texts become tokens: one tokenizer, one template, one mask convention."""

    tokenizer: PreTrainedTokenizerBase
    template: Template
    mask: MaskConvention
    context: ContextWindow = field(default_factory=ContextWindow)
    """How long a text the model reads."""

    def mask_of(self, ids: Sequence[int]) -> list[bool]:
        """Which of these real tokens are attended to."""
        return attended(ids, self.mask, pad_id(self.tokenizer))


def view_of(split: Split, field: str, asked: Tokenization) -> Measured[Encoding]:
    """Encode one field of a split.

    A row without it, with another number of alternatives, or without a token to score is unscored.
    """
    answers = [row.answers[field] for row in split.rows if field in row.answers]
    listed = any(isinstance(answer, tuple) for answer in answers)
    wanted = next((len(alternatives(answer)) for answer in answers), 0)
    rows: dict[int, tuple[Encoding, ...]] = {}
    unscored: dict[int, str] = {}
    for row in split.rows:
        given = alternatives(row.answers.get(field, ()))
        encoded = tuple(encode(split, row.question, answer, asked) for answer in given)
        problem = _problem(row, field, encoded, wanted, asked.context)
        if problem is None:
            rows[row.idx] = encoded
        else:
            unscored[row.idx] = problem
    return Measured(rows, unscored, listed)


def encode(split: Split, question: str, answer: str, asked: Tokenization) -> Encoding:
    """Encode one text of a split: its prompt and its answer."""
    if split.kind == "completion":
        return encode_completion(asked.tokenizer, question, answer)
    return encode_qa(asked.tokenizer, asked.template, question, answer, examples=split.shown)


def notes_on(views: Mapping[str, Measured[Encoding]]) -> list[str]:
    """What a reader should know about how texts were encoded, one line per matter."""
    merged = _concerned(views, lambda text: not text.prompt_is_prefix)
    cut = _concerned(views, lambda text: text.cut)
    notes = []
    if merged:
        notes.append(
            f"{merged}: the prompt's tokens are not the beginning of prompt and answer together, "
            "so what is scored begins at the prompt's length, as upstream"
        )
    if cut:
        notes.append(f"{cut}: cut at the token limit")
    return notes


def _concerned(
    views: Mapping[str, Measured[Encoding]], concerns: Callable[[Encoding], bool]
) -> str:
    """How many texts something concerns, and where; nothing if none."""
    found = {name: sum(map(concerns, view.values)) for name, view in views.items()}
    where = ", ".join(name for name, count in found.items() if count)
    total = sum(len(view.values) for view in views.values())
    return f"{sum(found.values())} of {total} texts ({where})" if where else ""


def _problem(
    row: Fact, field: str, encoded: Sequence[Encoding], wanted: int, context: ContextWindow
) -> str | None:
    """Why a row's texts cannot be scored."""
    if field not in row.answers:
        return f"the row has no {field}"
    if len(encoded) != wanted or not encoded:
        return f"{len(encoded)} alternatives in {field}, where the first row has {wanted}"
    if not all(one.labels for one in encoded):
        return "no answer token after the prompt"
    return context.too_long(max(len(one.ids) for one in encoded))


def padded(
    texts: Sequence[Sequence[int]],
    asked: Tokenization,
    *,
    side: Literal["left", "right"],
    device: torch.device | str,
) -> tuple[Tokens, PosMask]:
    """Tokens and attention mask, padded on the right to score, on the left to generate."""
    pad = pad_id(asked.tokenizer)
    tokens, real = padded_rows(texts, side=side, pad=pad)
    mask = real if asked.mask == "true" else real & (tokens != pad)
    return tokens.to(device), mask.to(device)
