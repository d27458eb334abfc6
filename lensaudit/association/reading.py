"""What does a model say of every value after every subject's prompt?

A reader gives log-probs of all values of a relation, after a prompt that holds the subject's name
and nothing else of the answer: the model's own outputs after the answer's beginning, in the chat
template, after solved questions; its stream after each layer through its own head, or carried into
an ignorant model's and read by that head. Each prompt is read once for all values.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, takewhile
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.association.exposure import Head, exposures, layered_exposures
from lensaudit.data.chat import PLAIN, Template, encode_qa
from lensaudit.data.facts import Fact
from lensaudit.data.relations import Relation
from lensaudit.data.scripts import letter_of
from lensaudit.data.spans import PROMPT_TEMPLATE
from lensaudit.groups import batched
from lensaudit.models.bridge import TransformerBridge, captured, device_of, hook_name, n_layers
from lensaudit.patching.reader import Reader
from lensaudit.scores.alignment import LinearMap, Moments, fitted
from lensaudit.types import padded_rows

OUTPUTS, CHAT, FEW_SHOT, LENS = "outputs", "chat", "few_shot", "lens"
N_SHOTS = 3
FIT_TOKENS = 16
"""Neutral tokens per dimension that a map onto another head is fitted on."""
FIT_ROWS = 16
"""Neutral texts read at once."""
FOREIGN_CLASS = "affine"
Ids = tuple[int, ...]
Chances = Float[Tensor, "subject value"]
"""Log-softmax over the values of a relation, nats, by subject: real ones, then invented ones."""


Readings = Mapping[str, Chances]
"""Reader -> what the model says of a relation's values."""


@dataclass(frozen=True)
class RelationReading:
    """A relation and what every reader of one model says of it."""

    asked: Relation
    by_reader: Readings

    @property
    def table(self) -> Float[Tensor, "reading subject subject"]:
        """S of the real subjects: column j is the value of subject j."""
        n = len(self.asked.subjects)
        return torch.stack([one[:n] for one in self.by_reader.values()])[..., list(self.asked.true)]


def names_for(asked: Relation, reader: str) -> tuple[str, ...]:
    """Whom a reader asks about: of invented subjects only what the model says is heard."""
    return asked.names if reader == OUTPUTS else asked.subjects


def n_prompts(asked: Relation, reader: str) -> int:
    """Prompts that a reader reads."""
    return len(names_for(asked, reader)) * len(asked.templates)


def by_subject(
    rows: Sequence[Float[Tensor, "*layer value"]], n_templates: int
) -> Float[Tensor, "..."]:
    """Log-softmax over the values, the mean over templates: by subject, after the layers."""
    table = torch.stack(list(rows)).double().log_softmax(-1)
    return table.unflatten(0, (n_templates, -1)).mean(0).log_softmax(-1).movedim(0, -2)


def prompts_of(
    model: TransformerBridge,
    asked: Relation,
    reader: str,
    shots: Sequence[Fact] = (),
    names: Sequence[str] | None = None,
) -> tuple[list[Ids], list[list[Ids]]]:
    """Tokens of the prompts of one reader, and by prompt those of the values that continue it.

    About `names` (None: all it asks), template after template. Where no blank stands between, a
    token that holds the end of the prompt and the beginning of a value is the value's.
    """
    tokenizer: Any = model.tokenizer
    names = names_for(asked, reader) if names is None else names
    texts = [template.asked(name) for template in asked.templates for name in names]
    if reader == CHAT:
        style = Template() if tokenizer.chat_template else PLAIN
        begun = [encode_qa(tokenizer, style, question, "").prompt_ids for question, _ in texts]
        after = [prefix for _, prefix in texts]
        between = [joint(one) if any(after) else "" for one in after]
    else:
        begun = [()] * len(texts)
        after = [prompt_text(*one, shots) for one in texts]
        between = [joint(one) for one in after]

    def encoded(text: str) -> Ids:
        alone = {"add_special_tokens": False} if reader == CHAT else {}
        return tuple(tokenizer(text, **alone)["input_ids"]) if text else ()

    apart = {
        lead: [
            tuple(tokenizer(lead + v, add_special_tokens=False)["input_ids"]) for v in asked.values
        ]
        for lead in set(between)
    }
    ids, values = list[Ids](), list[list[Ids]]()
    for first, text, lead in zip(begun, after, between, strict=True):
        own = encoded(text)
        if text and not lead:
            whole = [encoded(text + value) for value in asked.values]
            n = min(map(partial(_n_shared, own), whole))
            ids.append((*first, *own[:n]))
            values.append([one[n:] for one in whole])
        else:
            ids.append((*first, *own))
            values.append(apart[lead])
    return ids, values


def _n_shared(one: Ids, other: Ids) -> int:
    """Tokens with which both begin."""
    alike = (first == second for first, second in zip(one, other, strict=False))
    return sum(1 for _ in takewhile(bool, alike))


def joint(begun: str) -> str:
    """What stands between the beginning of an answer and what goes on: a blank, or nothing.

    Nothing after a letter of a script without blanks, and after a quote or bracket that opens.

    >>> joint("She was born in"), joint("她生在"), joint("It is “"), joint("Answer:")
    (' ', '', '', ' ')
    """
    letters = begun.rstrip()
    while letter_of(letters[-1:] or " ") == "mark":
        letters = letters[:-1]
    opens = unicodedata.category(letters[-1:] or " ") in ("Ps", "Pi")
    return "" if opens or letter_of(letters[-1:] or " ") == "alone" else " "


def prompt_text(question: str, prefix: str, shots: Sequence[Fact] = ()) -> str:
    """A question and the beginning of its answer, after solved ones; `joint` leads to a value."""
    parts = (
        f"{PROMPT_TEMPLATE.format(question=one.question, prefix='')}{one.answer}\n\n"
        for one in shots
    )
    return "".join(parts) + PROMPT_TEMPLATE.format(question=question, prefix=prefix).rstrip()


def said(
    model: TransformerBridge,
    asked: Relation,
    reader: str,
    shots: Sequence[Fact] = (),
    names: Sequence[str] | None = None,
) -> Chances:
    """What the model's outputs say of every value, of all subjects or of `names`."""
    prompts, values = prompts_of(model, asked, reader, shots, names)
    with torch.no_grad():
        rows = exposures(Reader(model), prompts, values)
    return by_subject(rows, len(asked.templates))


def heard(
    model: TransformerBridge,
    asked: Relation,
    heads: Mapping[str, Head],
    layers: Sequence[int],
) -> dict[str, Chances]:
    """What the outputs say, and the stream after some layers through several heads: one reading.

    By `outputs`, and by the head's name and the layer: `lens 7`.
    """
    prompts, values = prompts_of(model, asked, LENS)
    with torch.no_grad():
        rows = layered_exposures(model, list(heads.values()), layers, prompts, values)
    names = [OUTPUTS, *(f"{name} {layer}" for name in heads for layer in layers)]
    return dict(zip(names, by_subject(rows, len(asked.templates)), strict=True))


def read_layers(n: int) -> tuple[int, ...]:
    """The layers that are read: all of up to sixteen; of more some spread evenly, and upper ones.

    An unembedding a layer costs several times the model itself where the vocabulary is large.

    >>> read_layers(4), read_layers(30)
    ((0, 1, 2, 3), (5, 11, 14, 17, 21, 23, 28, 29))
    """
    if n <= 16:
        return tuple(range(n))
    return tuple(sorted({*upper_layers(n), *range(n - 1, 0, -n // 5)}))


def upper_layers(n: int) -> tuple[int, ...]:
    """The layers whose lens is a reader: a half, three quarters, and before the last.

    >>> upper_layers(16), upper_layers(4)
    ((7, 11, 14), (1, 2))
    """
    return tuple(sorted({max(0, n // 2 - 1), max(0, 3 * n // 4 - 1), max(0, n - 2)}))


def maps_onto(
    source: TransformerBridge, head: TransformerBridge, texts: Sequence[str]
) -> dict[int, LinearMap]:
    """Maps from the source's stream after each layer onto the last stream of another model.

    Fitted on neutral texts that both read; they share a tokenizer.
    """
    last = hook_name(n_layers(head) - 1)
    read = read_layers(n_layers(source))
    moments: dict[int, Moments] = {}
    for rows in batched(_enough(source, texts), FIT_ROWS):
        # padded on the right, where no token that counts sees it
        tokens, real = padded_rows(rows)
        own = captured(source, tokens.to(device_of(source)), [hook_name(layer) for layer in read])
        other = captured(head, tokens.to(device_of(head)), [last])[last].cpu()
        # the first token is a sink: its norm would be all that is fitted
        real[:, 0] = False
        for layer in read:
            pair = Moments.of(own[hook_name(layer)].cpu()[real], other[real])
            moments[layer] = moments[layer] + pair if layer in moments else pair
    return {layer: fitted(found, FOREIGN_CLASS) for layer, found in moments.items()}


def _enough(model: TransformerBridge, texts: Sequence[str]) -> list[list[int]]:
    """Tokens of the first texts, so many as a map is fitted on."""
    tokenizer: Any = model.tokenizer
    config: Any = model.original_model.config
    wanted = FIT_TOKENS * config.get_text_config().hidden_size
    rows = [ids for text in texts if len(ids := tokenizer(text)["input_ids"]) > 1]
    before = accumulate((len(ids) - 1 for ids in rows), initial=0)
    return [ids for ids, n in zip(rows, before, strict=False) if n < wanted]
