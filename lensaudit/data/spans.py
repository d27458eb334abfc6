"""From an example to token positions: the only off-by-one in the house.

The logits at position p score the token at p + 1, so the positions that score a span lie one left
of its tokens; these are also the positions that patching replaces. The rules follow the UDS
reference (gnueaj/unlearning-depth-score, fc31639, compute_uds.py:102-152 and 413-435).

A model with another tokenizer meets the same words in other pieces. Where a piece of its own ends
where one of `full`'s does, both have read exactly as much; at other positions they have not.

Prompt and answer are encoded apart and joined (docs/uds.md). Byte-level tokenizers give the same
text that way. Those of the SentencePiece kind may set a blank before whatever they are given, so
that the answer would begin with two: they are asked for it after a sign that is then left out.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from lensaudit.data.facts import Fact
from lensaudit.data.neutral import is_whole
from lensaudit.errors import InputError
from lensaudit.settings import Scope
from lensaudit.types import PosMask, Tokens, padded_rows

Way = Literal["apart", "after a sign", "neither"]
"""How the text of a prompt and its continuation is kept."""

SIGN = ":"
_TRIED = (("Question: Who?\nAnswer: It is", " red."), ("Question: Who?\nAnswer: ", "It is red."))
"""A prompt and its continuation; the blank between them belongs to either."""


@runtime_checkable
class Tokenizer(Protocol):
    """What is asked of a tokenizer: a fast one, which reports character offsets."""

    is_fast: bool
    eos_token_id: int | None

    def __call__(self, text: str, **options: Any) -> Any:
        """Encode `text`."""
        ...

    def decode(self, token_ids: Sequence[int], **options: Any) -> Any:
        """Text of token ids."""
        ...


@dataclass(frozen=True)
class Joined:
    """A prompt and what follows it as tokens."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    """Of what follows; its first one may hold the blank that ends the prompt."""
    offsets: tuple[tuple[int, int], ...]
    """Characters of what follows that each of `ids` stands for."""
    prompt_offsets: tuple[tuple[int, int], ...]
    """Characters of the prompt that each of `prompt_ids` stands for; of special tokens none."""


def joined(tokenizer: Tokenizer, prompt: str, text: str) -> Joined:
    """Tokens of `prompt`, special ones included, and of the `text` after it."""
    if way_of(tokenizer) != "after a sign":
        return _joined(tokenizer, prompt, text, lead="")
    # a blank at the prompt's end is part of the next word's token
    bare = prompt.rstrip(" ")
    return _joined(tokenizer, bare, text, lead=SIGN, blank=prompt[len(bare) :])


def following(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Tokens of a `text` that follows another."""
    return joined(tokenizer, "", text).ids


@lru_cache(maxsize=8)
def way_of(tokenizer: Tokenizer) -> Way:
    """What keeps the text, found by trying; `apart`, the reference's way, where it does."""
    ways: dict[Way, bool] = {
        "apart": all(_kept(tokenizer, *one, lead="") for one in _TRIED),
        "after a sign": all(_kept(tokenizer, *one, lead=SIGN) for one in _TRIED),
    }
    found: list[Way] = [way for way, holds in ways.items() if holds]
    return found[0] if found else "neither"


def _joined(tokenizer: Tokenizer, prompt: str, text: str, *, lead: str, blank: str = "") -> Joined:
    options: dict[str, Any] = {"add_special_tokens": False}
    n_lead = len(tokenizer(lead, **options)["input_ids"]) if lead else 0
    found = tokenizer(lead + blank + text, return_offsets_mapping=True, **options)
    before = len(lead + blank)
    first = tokenizer(prompt, add_special_tokens=True, return_offsets_mapping=True)
    return Joined(
        tuple(first["input_ids"]),
        tuple(found["input_ids"][n_lead:]),
        tuple(
            (max(low - before, 0), high - before) for low, high in found["offset_mapping"][n_lead:]
        ),
        tuple((low, high) for low, high in first["offset_mapping"]),
    )


def _kept(tokenizer: Tokenizer, prompt: str, text: str, *, lead: str) -> bool:
    """Whether joined tokens have the text of prompt and continuation encoded as one."""
    bare = prompt.rstrip(" ") if lead else prompt
    parts = _joined(tokenizer, bare, text, lead=lead, blank=prompt[len(bare) :])
    whole = tokenizer(prompt + text, add_special_tokens=True)["input_ids"]
    return _text(tokenizer, (*parts.prompt_ids, *parts.ids)) == _text(tokenizer, whole)


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


Scored = Literal["entity", "answer"]
"""What the span covers."""

PROMPT_TEMPLATE = "Question: {question}\nAnswer: {prefix}"
"""compute_uds.py:736. No chat template; with an empty prefix the prompt ends in a blank."""


@dataclass(frozen=True)
class Encoded:
    """One example as tokens: prompt and continuation, and where the scored span lies."""

    idx: int
    group: int | str
    token_ids: tuple[int, ...]
    n_prompt: int
    start: int
    """First position whose logits score the span."""
    end: int
    """One past the last such position; the span's last token stands at `end`."""

    @property
    def n_span(self) -> int:
        """Number of scored tokens."""
        return self.end - self.start

    @property
    def read_positions(self) -> tuple[int, ...]:
        """Positions a cache keeps: the last prompt token and those that score the span."""
        return tuple(sorted({self.n_prompt - 1, *range(self.start, self.end)}))


@dataclass(frozen=True)
class Batch:
    """Encoded examples, right-padded: padding is invisible to causal logits (6e-8 in float32)."""

    idx: tuple[int, ...]
    tokens: Tokens
    predict_at: PosMask
    """Positions whose logits score the span: one left of each span token."""
    patch_at: PosMask
    """Positions that are replaced."""

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return Batch(
            self.idx, self.tokens.to(device), self.predict_at.to(device), self.patch_at.to(device)
        )


def check_tokenizer(tokenizer: Tokenizer, name: str) -> None:
    """Refuse a tokenizer that would score the wrong tokens.

    Raises:
        InputError: it has no character offsets, it appends an end-of-text token that would
            land between prompt and continuation, or it changes the text between the two.
    """
    if not tokenizer.is_fast:
        raise InputError(
            f"{name}: its tokenizer has no character offsets; convert it to a fast tokenizer "
            "(tokenizer.json) and name that folder"
        )
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    special = tokenizer("a", add_special_tokens=True)["input_ids"]
    if plain and special[-1] != plain[-1]:
        raise InputError(
            f"{name}: its tokenizer appends token {special[-1]} after a text, which would split "
            "prompt and answer; set add_eos_token to false in tokenizer_config.json"
        )
    if way_of(tokenizer) == "neither":
        raise InputError(
            f"{name}: its tokenizer gives another text where an answer is encoded after its prompt "
            "than where both are one; save the model's own tokenizer.json in its folder"
        )


def prompt_of(example: Fact) -> str:
    r"""The text before the scored continuation.

    >>> prompt_of(Fact(0, "Who?", "It is Ada.", "It is", "Ada", 0))
    'Question: Who?\nAnswer: It is'
    """
    return PROMPT_TEMPLATE.format(question=example.question, prefix=example.prefix)


def prompt(question: str, prefix: str = "") -> str:
    r"""The prompt that patched scores and the lens read: a question, and how its answer begins.

    Without a prefix it ends in `Answer:`, so that a model writes the blank itself.

    >>> prompt("Who?", "It is")
    'Question: Who?\nAnswer: It is'
    """
    return PROMPT_TEMPLATE.format(question=question, prefix=prefix).rstrip()


def continuation_of(example: Fact, prompt: str) -> str:
    """The answer after its prefix, with the blank that the prompt lacks.

    >>> continuation_of(Fact(0, "Who?", "It is Ada.", "It is", "Ada", 0), "Answer: It is")
    ' Ada.'
    """
    rest = example.answer.removeprefix(example.prefix)
    needs_blank = rest and not rest[0].isspace() and not prompt[-1:].isspace()
    return f" {rest}" if needs_blank else rest


def encode(
    example: Fact,
    tokenizer: Tokenizer,
    *,
    scored: Scored = "entity",
    too_long: Callable[[int], str | None] = lambda n_tokens: None,
) -> Encoded | str:
    """Tokens of prompt and continuation with the scored span, or why nothing can be scored.

    The two are encoded apart and joined.

    `scored="answer"` takes the whole answer as the span and ends the prompt at `Answer: `;
    `too_long` says why a text of so many tokens cannot be scored (`models.sizes`).
    """
    example, prompt, text = texts_of(example, scored)
    found = joined(tokenizer, prompt, text)
    span = _token_span(text, example.entity, found.offsets)
    if span is None:
        return f"no token of this tokenizer covers {example.entity!r}"
    token_ids = (*found.prompt_ids, *found.ids)
    if problem := too_long(len(token_ids)):
        return problem
    before = len(found.prompt_ids) - 1
    return Encoded(
        idx=example.idx,
        group=example.group,
        token_ids=token_ids,
        n_prompt=len(found.prompt_ids),
        start=before + span[0],
        end=before + span[1],
    )


def texts_of(example: Fact, scored: Scored) -> tuple[Fact, str, str]:
    """The example as it is scored, its prompt, and the continuation."""
    if scored == "answer":
        example = replace(example, prefix="", entity=example.answer)
    prompt = prompt_of(example)
    return example, prompt, continuation_of(example, prompt)


def _token_span(
    text: str, entity: str, offsets: Sequence[tuple[int, int]]
) -> tuple[int, int] | None:
    """First and one past the last token that overlaps the first occurrence of `entity`.

    A leading blank merged into the first token, or punctuation into the last, is scored with it.
    """
    needle = entity if entity in text else entity.strip()
    low = text.find(needle)
    high = low + len(needle)
    inside = [i for i, (start, end) in enumerate(offsets) if end > low and start < high]
    return (inside[0], inside[-1] + 1) if needle and low >= 0 and inside else None


def make_batch(encoded: Sequence[Encoded], *, scope: Scope = "span") -> Batch:
    """Right-pad a few encoded examples; see `Batch`."""
    # any id will do: nothing that is read can see a padded position
    tokens, _ = padded_rows([e.token_ids for e in encoded])
    predict_at = torch.zeros_like(tokens, dtype=torch.bool)
    patch_at = torch.zeros_like(predict_at)
    for row, e in enumerate(encoded):
        predict_at[row, e.start : e.end] = True
        first, last = patched_range(e, scope)
        patch_at[row, first:last] = True
    return Batch(tuple(e.idx for e in encoded), tokens, predict_at, patch_at)


def patched_range(encoded: Encoded, scope: Scope) -> tuple[int, int]:
    """First and one past the last replaced position."""
    match scope:
        case "span":
            return encoded.start, encoded.end
        case "boundary":
            return encoded.n_prompt - 1, encoded.n_prompt
        case "prefix":
            return 0, encoded.end


def by_length(encoded: Sequence[Encoded]) -> list[Encoded]:
    """Neighbours alike in length."""
    return sorted(encoded, key=_place)


def buckets(
    encoded: Sequence[Encoded],
    batch_size: int,
    *,
    call_tokens: float = math.inf,
    length: Callable[[Encoded], int] = lambda e: e.end,
) -> Iterator[list[Encoded]]:
    """Groups of at most `batch_size`, alike in length, with the least work.

    A group costs its number of examples times its longest `length`, as padding is work too, and
    `call_tokens` for being one more. With the default there are as few groups as possible.
    """
    ordered = sorted(encoded, key=lambda e: (length(e), *_place(e)))
    if call_tokens == math.inf:
        edges = [*range(0, len(ordered), batch_size), len(ordered)]
    else:
        edges = _cheapest([length(e) for e in ordered], batch_size, call_tokens)
    for low, high in itertools.pairwise(edges):
        yield ordered[low:high]


def _place(e: Encoded) -> tuple[int, int, int]:
    return e.end, len(e.token_ids), e.idx


def _cheapest(lengths: Sequence[int], batch_size: int, call_tokens: float) -> list[int]:
    """Edges of the cheapest partition of ascending lengths.

    >>> _cheapest([3, 3, 9, 9], 4, call_tokens=5.0), _cheapest([3, 3, 9, 9], 4, call_tokens=20.0)
    ([0, 2, 4], [0, 4])
    """
    cost, previous = [0.0], [0]
    for end in range(1, len(lengths) + 1):
        starts = range(max(0, end - batch_size), end)
        sums = [cost[at] + (end - at) * lengths[end - 1] + call_tokens for at in starts]
        cost.append(min(sums))
        previous.append(starts[sums.index(cost[-1])])
    edges = [len(lengths)]
    while edges[-1]:
        edges.append(previous[edges[-1]])
    return edges[::-1]


Places = Mapping[int, Mapping[int, int]]
"""Idx -> position of `full` -> position of the other model that has read as much."""


def encoded_row(row: Fact, tokenizer: Tokenizer) -> Encoded | None:
    """Tokens and span of a row, be it a plain sentence; None where nothing of it is left."""
    if not _is_sentence(row):
        found = encode(row, tokenizer, scored=_scored(row))
        return found if isinstance(found, Encoded) else None
    # all of a plain sentence is scored but its first token
    ids = tuple(tokenizer(row.answer, add_special_tokens=True)["input_ids"])
    return Encoded(row.idx, row.group, ids, 1, 0, len(ids) - 1) if len(ids) > 1 else None


def ends_of(row: Fact, tokenizer: Tokenizer) -> tuple[int, ...]:
    """For each token of `encoded_row`, how many characters of the text are read with it."""
    if _is_sentence(row):
        options = {"add_special_tokens": True, "return_offsets_mapping": True}
        return tuple(high for _, high in tokenizer(row.answer, **options)["offset_mapping"])
    _, prompt, text = texts_of(row, _scored(row))
    found = joined(tokenizer, prompt, text)
    return (
        *(high for _, high in found.prompt_offsets),
        *(len(prompt) + high for _, high in found.offsets),
    )


def matched(full: Sequence[int], own: Sequence[int]) -> dict[int, int]:
    """`full`'s position -> the other's, where tokens end at one character.

    Of several tokens that end there, pieces of one character, the last has read it whole.

    >>> matched([0, 3, 8, 11], [0, 2, 3, 11, 11])
    {0: 0, 1: 2, 3: 4}
    """
    last_own = {end: at for at, end in enumerate(own)}
    last_full = {end: at for at, end in enumerate(full)}
    return {at: last_own[end] for end, at in last_full.items() if end in last_own}


def apart(row: Fact, full: Tokenizer, own: Tokenizer) -> tuple[int, int]:
    """How many tokens of `full` the other tokenizer does not have, of how many."""
    ends, theirs = ends_of(row, full), ends_of(row, own)
    pieces = set(zip((0, *theirs), theirs, strict=False))
    return sum(one not in pieces for one in zip((0, *ends), ends, strict=False)), len(ends)


def _is_sentence(row: Fact) -> bool:
    return is_whole(row) and not row.question


def _scored(row: Fact) -> Scored:
    return "answer" if is_whole(row) else "entity"
