"""How do a question and its answer become tokens and labels to train on?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lensaudit.data.chat import Template, encode_qa
from lensaudit.data.joining import joined
from lensaudit.data.spans import PROMPT_TEMPLATE
from lensaudit.types import PosMask, Tokens
from lensaudit.unlearn.losses import IGNORED, Labels

CHAT = Template()
"""The tokenizer's own chat template, with open-unlearning's system prompt and date."""


@dataclass(frozen=True)
class Answered:
    """One question with the answer to train on."""

    question: str
    answer: str
    prefix: str | None = None
    """Where the depth score splits the answer, if it is annotated; may be empty."""


@dataclass(frozen=True)
class Sample:
    """One training sequence, not padded."""

    ids: tuple[int, ...]
    n_prompt: int
    """Leading tokens without a label."""


@dataclass(frozen=True)
class TrainBatch:
    """Right-padded sequences."""

    tokens: Tokens
    labels: Labels
    mask: PosMask
    """Real tokens, by length: a pad id that doubles as end of turn stays visible."""

    def to(self, device: torch.device | str) -> "TrainBatch":
        """The same batch on another device."""
        return TrainBatch(self.tokens.to(device), self.labels.to(device), self.mask.to(device))


def chat_sample(tokenizer: Any, row: Answered, template: Template = CHAT) -> Sample:
    """open-unlearning's encoding: labels are the answer and its end of turn."""
    encoding = encode_qa(tokenizer, template, row.question, row.answer)
    return Sample(encoding.ids, encoding.start)


def raw_sample(tokenizer: Any, row: Answered) -> Sample:
    """The depth score's prompt, `Question: …` and `Answer: …`; labels are the answer and an end.

    With an empty prefix the blank after `Answer:` belongs to the prompt, as it does there.
    """
    start = PROMPT_TEMPLATE.format(question=row.question, prefix="")
    if row.prefix != "":
        start = start.rstrip()
    found = joined(tokenizer, start, row.answer if row.prefix == "" else f" {row.answer}")
    ids = (*found.prompt_ids, *found.ids, tokenizer.eos_token_id)
    return Sample(ids, len(found.prompt_ids))


def collate(rows: Sequence[Sample], *, pad: int) -> TrainBatch:
    """Right-pad a batch."""
    width = max(len(row.ids) for row in rows)
    tokens = torch.full((len(rows), width), pad)
    labels = torch.full((len(rows), width), IGNORED)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for line, row in enumerate(rows):
        n = len(row.ids)
        tokens[line, :n] = torch.tensor(row.ids)
        labels[line, row.n_prompt : n] = torch.tensor(row.ids[row.n_prompt :])
        mask[line, :n] = True
    return TrainBatch(tokens, labels, mask)
