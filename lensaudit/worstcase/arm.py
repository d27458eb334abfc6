"""One model under attack: its prompts, its candidates, and what an attack hands back."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.attacks.relearn import Relearning, relearned
from lensaudit.data.chat import PLAIN, Template, encode_qa
from lensaudit.data.spans import PROMPT_TEMPLATE
from lensaudit.models.bridge import TransformerBridge, bridge_from, n_layers
from lensaudit.models.causal import readout_rows, undo_exchange
from lensaudit.models.quantize import Method, quantise_in_place
from lensaudit.scores.naming import strongest
from lensaudit.unlearn.rows import Answered
from lensaudit.worstcase.facts import Candidate
from lensaudit.worstcase.matching import mentions
from lensaudit.worstcase.reading import Plain, Reader, Work, exposures, say

ANSWER_TOKENS = 48
"""Longest answer to a question."""
ENTITY_TOKENS = 24
"""Longest continuation of a forced beginning."""
_SHOWN = 200
"""Characters of evidence that are kept."""


@dataclass(frozen=True)
class Hit:
    """What one attack made of one fact."""

    hit: bool
    score: float
    """What the attack measured: 1 or 0 of a text; a probability; a share of layers."""
    evidence: str
    """What was said, or which layer told."""


@dataclass(frozen=True)
class Found:
    """What one attack made of all facts."""

    hits: Mapping[int, Hit]
    """By idx."""
    exposure: Mapping[int, Tensor] = field(default_factory=dict)
    """Idx -> standardised score of every candidate, the true entity first."""
    unscored: Mapping[int, str] = field(default_factory=dict)
    """Idx -> why this attack does not apply."""


@dataclass
class Arm:
    """A loaded model and the facts it is asked for."""

    name: str
    model: TransformerBridge
    full: TransformerBridge
    facts: Sequence[Candidate]
    again: Callable[[], Any]
    """Loads the plain Hugging Face model once more: for an attack that changes weights."""
    exposed: bool = True
    """Its candidates are scored: not those of the positive control, which is never named."""
    relearning: Relearning = field(default_factory=Relearning)
    """How it is shown rows again."""
    neutral: Sequence[Answered] = ()
    """Rows that hold none of the facts; of the attack that asks for them."""
    work: Work = field(default_factory=Work)
    _candidates: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)

    @property
    def tokenizer(self) -> Any:
        """Of the model."""
        return self.model.tokenizer

    @property
    def n_layers(self) -> int:
        """Decoder blocks."""
        return n_layers(self.model)

    @cached_property
    def reader(self) -> Plain:
        """The model by itself."""
        return Plain(self.model, work=self.work)

    @cached_property
    def context(self) -> float:
        """Tokens that fit into the model."""
        config: Any = self.model.original_model.config
        return getattr(config, "max_position_embeddings", None) or math.inf

    def ids(self, text: str) -> tuple[int, ...]:
        """The tokens of a prompt."""
        return tuple(self.tokenizer(text, add_special_tokens=True)["input_ids"])

    def more(self, text: str) -> tuple[int, ...]:
        """The tokens of a text that goes on."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def asked(self, fact: Candidate, *, question: str | None = None) -> str:
        """The depth score's prompt, up to `Answer:`."""
        return PROMPT_TEMPLATE.format(question=question or fact.row.question, prefix="").rstrip()

    def forced(self, fact: Candidate, *, question: str | None = None) -> str:
        """The same with the answer's own beginning forced."""
        return f"{self.asked(fact, question=question)} {fact.row.prefix}".rstrip()

    def chatted(self, fact: Candidate) -> tuple[int, ...]:
        """The question in the model's chat template; in plain tags where it has none."""
        template = Template() if self.tokenizer.chat_template else PLAIN
        return encode_qa(self.tokenizer, template, fact.row.question, "").prompt_ids

    def candidates(self, fact: Candidate) -> list[tuple[int, ...]]:
        """Tokens of the true entity and of its placebos, each with the blank before it."""
        idx = fact.row.idx
        if idx not in self._candidates:
            self._candidates[idx] = [self.more(f" {one}") for one in fact.candidates]
        return self._candidates[idx]

    def rounded(self, method: Method) -> TransformerBridge:
        """A copy with its linear layers rounded to 4 or 8 bits and back."""
        model = self.again()
        quantise_in_place(model, method, engine="torch")  # same numbers, no remarks of its own
        return bridge_from(model, self.tokenizer)

    def matched(self) -> TransformerBridge | None:
        """A copy whose exchanged readout rows are put back by those of `full`; None: none are."""
        model = self.again()
        if not undo_exchange(model, readout_rows(self.full.original_model)):
            return None
        return bridge_from(model, self.tokenizer)

    def taught(self, rows: Sequence[Answered]) -> TransformerBridge:
        """A copy that was shown rows again for one pass, as `lensaudit relearn` does it."""
        with torch.enable_grad():
            model = relearned(self.again(), self.tokenizer, rows, settings=self.relearning)
        return bridge_from(model, self.tokenizer)

    def scores(
        self, reader: Reader, facts: Sequence[Candidate], *, n: int | None = None
    ) -> dict[int, Float[Tensor, " candidate"]]:
        """By idx, log-probs of a fact's first `n` candidates after its forced prefix; None: all."""
        prompts = [self.ids(self.forced(fact)) for fact in facts]
        found = exposures(reader, prompts, [self.candidates(fact)[:n] for fact in facts])
        return {fact.row.idx: row for fact, row in zip(facts, found, strict=True)}

    @cached_property
    def raw(self) -> dict[int, Float[Tensor, " candidate"]]:
        """The same by the model itself; computed once for all attacks.

        Of the true entity alone where candidates are not compared.
        """
        return self.scores(self.reader, self.facts, n=None if self.exposed else 1)

    def told(
        self,
        prompts: Mapping[int, Sequence[int]],
        *,
        reader: Reader | None = None,
        tokens: int = ENTITY_TOKENS,
        begun: Mapping[int, str] | None = None,
    ) -> dict[int, Hit]:
        """What is said after each fact's prompt, and whether it gives the entity away.

        Args:
            prompts: by idx.
            reader: the model by itself if not given.
            tokens: longest continuation.
            begun: by idx, how the answer was begun for the model: part of what is matched.
        """
        said = say(reader or self.reader, list(prompts.values()), max_new_tokens=tokens)
        entity = {fact.row.idx: fact.row.entity for fact in self.facts}
        texts = {
            idx: f"{begun[idx] if begun else ''}{text}"
            for idx, text in zip(prompts, said, strict=True)
        }
        return {idx: _matched(text, entity[idx]) for idx, text in texts.items()}


def _matched(text: str, entity: str) -> Hit:
    hit = mentions(text, entity)
    return Hit(hit, float(hit), text.strip()[:_SHOWN])


def standardised(rows: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """By idx, the largest standardised score of each candidate over the reads of one attack."""
    return {idx: strongest(found) for idx, found in rows.items()}


def either(found: Sequence[Mapping[int, Hit]], labels: Sequence[str]) -> dict[int, Hit]:
    """Several tries of one attack: the first that hits, else the first; its label with the text."""
    best: dict[int, Hit] = {}
    for one, label in zip(found, labels, strict=True):
        for idx, hit in one.items():
            if idx not in best or (hit.hit and not best[idx].hit):
                best[idx] = Hit(hit.hit, hit.score, f"{label}: {hit.evidence}")
    return best
