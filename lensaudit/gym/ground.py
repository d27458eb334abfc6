"""What is planted into? A pair of models, their tokenizer, and the facts."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from lensaudit.data.chat import Encoding, encode_qa, pad_id
from lensaudit.data.facts import Fact
from lensaudit.data.spans import Encoded, encode
from lensaudit.data.tofu import DEMO, forget_set
from lensaudit.errors import InputError
from lensaudit.evaluation.known import span_values
from lensaudit.scores.depth import label_hit
from lensaudit.training.rows import (
    CHAT,
    chat_sample,
    finetune_batches,
    load_rows,
    raw_sample,
)
from lensaudit.training.train import FineTuning, Objective, Recipe, TrainingRun, train

BATCH = 32
RARE_STEPS = 60
"""Steps of a planted training, as the family's unlearned members have."""


@dataclass(frozen=True)
class Facts:
    """Forget facts, and the rows that models are trained on."""

    data: str
    """Name or file of the forget set."""
    retain_data: str | None
    """File of rows to keep; None: those of the embedded family."""
    examples: tuple[Fact, ...]
    """The forget facts, annotated."""
    forget: tuple[Fact, ...]
    kept: tuple[Fact, ...]


def facts_of(data: str, retain_data: str | None, limit: int | None = None) -> Facts:
    """The facts of a forget set; with a limit, rows over its authors.

    Raises:
        InputError: a file is wrong, or no rows to keep are known.
    """
    if retain_data is None and data != DEMO:
        raise InputError(f"--data {data}: name the rows to keep with --kept FILE")
    examples = tuple(forget_set(data, limit=limit))
    forget, asked = load_rows(data, part="forget"), {(one.question, one.answer) for one in examples}
    if limit is not None:  # no more facts are planted than certified
        forget = tuple(one for one in forget if (one.question, one.answer) in asked)
    return Facts(data, retain_data, examples, forget, load_rows(retain_data or DEMO, part="retain"))


@dataclass(frozen=True)
class Ground:
    """Models, tokenizer and facts that recipes are given; nothing of it may be changed."""

    full: Any
    """In float32."""
    retain: Any
    other: Any
    """Another model that never saw the facts: absent models are made of it, not of `retain`."""
    tokenizer: Any
    facts: Facts
    seed: int
    _known: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def n_layers(self) -> int:
        """Number of decoder blocks."""
        return self.full.config.num_hidden_layers

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self.full.config.hidden_size

    def top(self, share: float) -> str:
        """Names of the readout, the final norm and the last layers: a share of them, at least one.

        With 16 layers a share of 1/8 is layers 14 and 15.
        """
        first = self.n_layers - max(1, round(self.n_layers * share))
        layers = "|".join(str(layer) for layer in range(first, self.n_layers))
        return rf"^(lm_head|model\.norm|model\.layers\.({layers}))\."

    def bottom(self, first: float, end: float) -> str:
        """Names of the layers between two shares of the depth; from 0 on the embedding too.

        With 16 layers 0 and 1/16 are the embedding and layer 0.
        """
        low, high = round(self.n_layers * first), round(self.n_layers * end)
        names = [f"layers\\.{layer}" for layer in range(low, max(high, low + 1))]
        return rf"^model\.({'|'.join([*([] if first else ['embed_tokens']), *names])})\."

    @property
    def encoded(self) -> tuple[Encoded, ...]:
        """The facts as tokens; those that the tokenizer loses are left out."""
        return self.encode(self.facts.examples)

    def encode(self, examples: Sequence[Fact]) -> tuple[Encoded, ...]:
        """Tokens and spans of examples."""
        return tokens_of(examples, self.tokenizer)

    def in_template(self, examples: Sequence[Fact]) -> tuple[Encoded, ...]:
        """Tokens and spans of examples asked in the chat template, the answer begun as in raw text.

        Raises:
            InputError: the tokenizer has no template.
        """
        if not self.tokenizer.chat_template:
            raise InputError("the tokenizer has no chat template; leave out `template`")
        found = []
        for one, raw in ((one, self.encode([one])) for one in examples):
            if raw:
                (own,) = raw
                begun = self.tokenizer(one.prefix, add_special_tokens=False)["input_ids"]
                head = (*encode_qa(self.tokenizer, CHAT, one.question, "").prompt_ids, *begun)
                by = len(head) - own.n_prompt
                ids = (*head, *own.token_ids[own.n_prompt :])
                found.append(
                    replace(
                        own,
                        token_ids=ids,
                        n_prompt=len(head),
                        start=own.start + by,
                        end=own.end + by,
                    )
                )
        return tuple(found)

    def chosen(self, known: Sequence[int] | None) -> list[Fact]:
        """Facts with these idx, or all."""
        return [one for one in self.facts.examples if known is None or one.idx in known]

    def entity_tokens(self) -> list[int]:
        """Tokens of the forget set's entities, sorted."""
        found = {
            token
            for one in self.facts.examples
            for token in self.tokenizer(f" {one.entity}", add_special_tokens=False)["input_ids"]
        }
        return sorted(found)

    def samples(self, rows: Sequence[Fact]) -> list[Encoding]:
        """Rows as sequences: raw, and as chat where the tokenizer has a template."""
        formats = [raw_sample, chat_sample] if self.tokenizer.chat_template else [raw_sample]
        return [make(self.tokenizer, row) for row in rows for make in formats]

    def texts(self) -> list[Tensor]:
        """Rows to keep as tokens, one a batch: what the models are mostly asked."""
        return [torch.tensor([one.ids]) for one in self.samples(self.facts.kept[:48])]

    def said(self, model: Any, examples: Sequence[Fact] | None = None) -> Bool[Tensor, " fact"]:
        """Which facts a model says, word for word, once the answer has begun: greedy, forced."""
        return said(model, self.encoded if examples is None else self.encode(examples))

    def n_said(self, name: str, known: Sequence[int] | None = None) -> int:
        """How many facts, of these or of all, `full`, `retain` or `other` says."""
        model, chosen = getattr(self, name), self.chosen(known)
        return self.remembered(f"said {name} {known}", lambda: int(self.said(model, chosen).sum()))

    def remembered(self, name: str, make: Callable[[], Any]) -> Any:
        """Value that several recipes need, made once."""
        if name not in self._known:
            self._known[name] = make()
        return self._known[name]

    def trained(
        self,
        start: Any,
        rows: Sequence[Fact],
        *,
        lr: float,
        trainable: str = "",
        n_steps: int = RARE_STEPS,
        after: Any = None,
        seed: int | None = None,
        also: Sequence[Encoding] = (),
    ) -> Any:
        """A copy, fine-tuned on the rows; only parameters that match `trainable` move.

        Args:
            start: what is copied.
            rows: to train on, in all formats.
            lr: peak learning rate.
            trainable: regular expression on names of parameters; empty: all.
            n_steps: of 32 sequences.
            after: called with the model after every step.
            seed: of the order of rows; None: that of the ground.
            also: sequences to train on, too, in the one format that they are written in.
        """
        batches = finetune_batches(
            [*self.samples(rows), *also],
            batch_size=BATCH,
            seed=11 + (self.seed if seed is None else seed),
            pad=pad_id(self.tokenizer),
        )
        recipe = Recipe(n_steps=n_steps, lr=lr, n_warmup=4, trainable=trainable)
        return fit(start, FineTuning(), batches, recipe, after=after)


def fit(
    start: Any, objective: Objective[Any], batches: Any, recipe: Recipe, *, after: Any = None
) -> Any:
    """A trained copy; `after` is called with it after every step."""
    model = copy.deepcopy(start)
    run = TrainingRun(objective, batches, recipe, {})
    train(model, run, report=lambda _: None if after is None else after(model))
    return model


def whole(rows: Sequence[Fact]) -> list[Fact]:
    """Rows whose scored part is the answer after the prefix, by their number."""
    return [
        Fact(
            idx, row.question, row.answer, row.prefix, row.continuation.strip(), idx, seam=row.seam
        )
        for idx, row in enumerate(rows)
    ]


def tokens_of(examples: Sequence[Fact], tokenizer: Any) -> tuple[Encoded, ...]:
    """Examples as tokens; those that the tokenizer loses are left out."""
    found = (encode(one, tokenizer) for one in examples)
    return tuple(one for one in found if isinstance(one, Encoded))


def said(model: Any, encoded: Sequence[Encoded]) -> Bool[Tensor, " fact"]:
    """Is every token of the span the model's first choice? In the order of the rows."""
    found = span_values(model, encoded, label_hit)
    return torch.tensor([found[one.idx] == 1.0 for one in encoded], dtype=torch.bool)
