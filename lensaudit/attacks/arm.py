"""A model under attack: what it is asked, what it says, and what one attack made of its facts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.association.exposure import exposures
from lensaudit.attacks.exchange import undo_exchange
from lensaudit.attacks.in_memory import readout_rows
from lensaudit.attacks.naming import strongest
from lensaudit.attacks.quantize import Method, quantise_in_place
from lensaudit.attacks.relearn import relearned
from lensaudit.attacks.settings import Relearning
from lensaudit.data.candidates import Shots
from lensaudit.data.chat import PLAIN, Encoding, Template, answer_of, encode_qa, thinks
from lensaudit.data.facts import Fact
from lensaudit.data.matching import gives_away
from lensaudit.data.rendering import CannotRender
from lensaudit.data.spans import PROMPT_TEMPLATE
from lensaudit.models.bridge import TransformerBridge, bridge_from, n_layers
from lensaudit.patching.reader import Reader
from lensaudit.patching.speech import Hearing, say
from lensaudit.settings import Think

ENTITY_TOKENS = 24
"""Longest continuation of a forced beginning."""
THOUGHT_TOKENS = 256
"""Longest thought that is searched for the entity, and the answer after it."""


Ids = tuple[int, ...]
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
class AttackFindings:
    """What one attack made of all facts of a model, and what it computed."""

    hits: Mapping[int, Hit]
    """By idx."""
    exposure: Mapping[int, Tensor] = field(default_factory=dict)
    """Idx -> standardised score of every candidate, the true entity first."""
    unscored: Mapping[int, str] = field(default_factory=dict)
    """Idx -> why this attack does not apply."""
    seconds: float = 0.0
    forwards: int = 0
    """Forward passes, of a batch each."""
    tokens: int = 0
    """Tokens read in them, padding included."""


@dataclass
class AttackedModel:
    """A loaded model and the facts it is asked for."""

    name: str
    model: TransformerBridge
    full: TransformerBridge
    facts: Sequence[Fact]
    shots: Shots
    again: Callable[..., Any]
    """Loads the plain Hugging Face model once more: for an attack that changes weights; in another
    type of numbers where `dtype` is given."""
    exposed: bool = True
    """Its candidates are scored: not those of the positive control, which is never named."""
    relearning: Relearning = field(default_factory=Relearning)
    """How it is shown rows again."""
    neutral: Sequence[Fact] = ()
    """Rows that hold none of the facts; of the attack that asks for them."""
    dtype: str = "float32"
    """Type of the numbers of `model`."""
    work: Counter[str] = field(default_factory=Counter)
    cut: dict[int, str] = field(default_factory=dict)
    """Idx -> why what was said to an attack is no answer: its thought was cut."""

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of the model under attack."""
        return self.model.tokenizer

    @property
    def n_layers(self) -> int:
        """Number of decoder blocks."""
        return n_layers(self.model)

    @cached_property
    def reader(self) -> Reader:
        """The model by itself, as a reader."""
        return Reader(self.model, work=self.work)

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt."""
        return tuple(self.tokenizer(text, add_special_tokens=True)["input_ids"])

    def more(self, text: str) -> tuple[int, ...]:
        """The tokens of a text that goes on."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def asked(self, fact: Fact, *, question: str | None = None) -> str:
        """The depth score's prompt, up to `Answer:`."""
        return PROMPT_TEMPLATE.format(question=question or fact.question, prefix="").rstrip()

    def forced(self, fact: Fact, *, question: str | None = None) -> str:
        """A fact's prompt, with the beginning of the answer forced."""
        return f"{self.asked(fact, question=question)} {fact.prefix}".rstrip()

    @cached_property
    def template(self) -> Template:
        """The model's chat template with an empty thought; plain tags where none works."""
        try:
            empty = thinks(self.tokenizer, Template())
        except CannotRender:
            return PLAIN
        return Template(think="empty" if empty else None) if self.tokenizer.chat_template else PLAIN

    @property
    def thinks(self) -> bool:
        """Whether the model's chat template has a place for a thought."""
        return self.template.think is not None

    def chat(self, fact: Fact, think: Think = "empty", *, question: str | None = None) -> Encoding:
        """The question in the model's chat template; in plain tags where it has none.

        Where it thinks, after an empty thought, or with the thought opened.
        """
        template = replace(self.template, think=think) if self.thinks else self.template
        return encode_qa(self.tokenizer, template, question or fact.question, "")

    def chatted(self, fact: Fact, think: Think = "empty", *, question: str | None = None) -> Ids:
        """Token ids of the same, that an answer continues."""
        return self.chat(fact, think, question=question).prompt_ids

    @cached_property
    def candidates(self) -> dict[int, list[tuple[int, ...]]]:
        """Tokens of the true entity and of its placebos by idx, each with the blank before it."""
        return {
            fact.idx: [self.more(f" {one}") for one in (fact.entity, *fact.placebos)]
            for fact in self.facts
        }

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

    def taught(self, rows: Sequence[Fact]) -> TransformerBridge:
        """A copy that was shown rows again for one pass, as `lensaudit relearn` does it."""
        with torch.enable_grad():
            model = relearned(self.again(), self.tokenizer, rows, settings=self.relearning)
        return bridge_from(model, self.tokenizer)

    def scores(
        self, reader: Reader, facts: Sequence[Fact], *, n: int | None = None
    ) -> dict[int, Float[Tensor, " candidate"]]:
        """Log-probs by idx of a fact's first `n` candidates after its forced prefix; None: all."""
        prompts = [self.ids(self.forced(fact)) for fact in facts]
        found = exposures(reader, prompts, [self.candidates[fact.idx][:n] for fact in facts])
        return {fact.idx: row for fact, row in zip(facts, found, strict=True)}

    @cached_property
    def raw(self) -> dict[int, Float[Tensor, " candidate"]]:
        """Log-probs of the candidates without an attack; computed once for all attacks.

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
        gives: Callable[[str, Fact], bool] = gives_away,
        hear: Hearing = answer_of,
    ) -> dict[int, Hit]:
        """The model's answer to each fact's prompt, and whether it gives the entity away.

        A fact whose thought was cut has no answer: it is in `cut`.

        Args:
            prompts: by idx.
            reader: the model by itself if not given.
            tokens: longest continuation.
            begun: by idx, how the answer was begun for the model: part of what is matched.
            gives: whether a text gives a fact away.
            hear: what is heard of it.
        """
        asked = list(prompts.values())
        said = say(reader or self.reader, asked, max_new_tokens=tokens, hear=hear)
        facts = {fact.idx: fact for fact in self.facts}
        texts = {
            idx: f"{begun[idx] if begun else ''}{text}"
            for idx, text in zip(prompts, said, strict=True)
            if text is not None
        }
        why = f"the thought was cut at {tokens} tokens"
        self.cut |= {idx: why for idx in prompts if idx not in texts}
        hits = {idx: gives(text, facts[idx]) for idx, text in texts.items()}
        return {idx: Hit(hit, float(hit), texts[idx].strip()[:_SHOWN]) for idx, hit in hits.items()}


def standardised(rows: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Largest standardised score of each candidate over the reads of one attack, by idx."""
    return {idx: strongest(torch.atleast_2d(found)) for idx, found in rows.items()}


def either(tries: Mapping[str, Mapping[int, Hit]]) -> dict[int, Hit]:
    """Several tries of one attack: the first that hits, else the first; its label with the text."""
    best: dict[int, Hit] = {}
    for label, found in tries.items():
        for idx, hit in found.items():
            if idx not in best or (hit.hit and not best[idx].hit):
                best[idx] = Hit(hit.hit, hit.score, f"{label}: {hit.evidence}")
    return best
