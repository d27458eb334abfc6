"""From an example to token positions: the only off-by-one in the house.

The logits at position p score the token at p + 1, so the positions that score a span lie one left
of its tokens; these are also the positions that patching replaces. The rules follow the UDS
reference (gnueaj/unlearning-depth-score, fc31639, compute_uds.py:102-152 and 413-435).

A model with another tokenizer meets the same words in other pieces. Where a piece of its own ends
where one of `full`'s does, both have read exactly as much; at other positions they have not.

Question and answer are encoded as one text (`seam` of a fact is `text`). A token that holds the end
of the prefix and the beginning of the entity is the entity's. Rows that come with the package are
encoded as the reference does it, prompt and answer apart and joined (`reference`; docs/uds.md).
Byte-level tokenizers mostly give the same tokens that way. Those of the SentencePiece kind may set
a blank before whatever they are given, so that the answer would begin with two: they are asked for
it after a sign that is then left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from lensaudit.data.facts import Fact
from lensaudit.data.neutral import is_whole
from lensaudit.errors import InputError
from lensaudit.groups import batched
from lensaudit.settings import Scope
from lensaudit.types import Movable, PosMask, Tokens, padded_rows

Way = Literal["apart", "after a sign", "neither"]
"""How the text of a prompt and its continuation is kept."""

SIGN = ":"
_TRIED = (("Question: Who?\nAnswer: It is", " red."), ("Question: Who?\nAnswer: ", "It is red."))
"""A prompt and its continuation; the blank between them belongs to either."""


@runtime_checkable
class Tokenizer(Protocol):
    """What is asked of a tokenizer: a fast one, which reports character offsets."""

    eos_token_id: int | None

    def __call__(self, text: str, **options: Any) -> Any:
        """Encode `text`."""

    def decode(self, token_ids: Sequence[int], **options: Any) -> Any:
        """Text of token ids."""


def joined(
    tokenizer: Tokenizer, prompt: str, text: str, way: Way | None = None
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...], int]:
    """Tokens of `prompt`, special ones included, and of the `text` after it.

    Args:
        tokenizer: that encodes both.
        prompt: what is read first.
        text: what follows; its first token may hold the blank that ends the prompt.
        way: how the two are kept one text; None: the tokenizer's own.

    Returns:
        Token ids; which characters of prompt and text each stands for, special ones for none; how
        many tokens are the prompt's.
    """
    lead = SIGN if (way or way_of(tokenizer)) == "after a sign" else ""
    # a blank at the prompt's end is part of the next word's token
    bare = prompt.rstrip(" ") if lead else prompt
    options: dict[str, Any] = {"add_special_tokens": False}
    n_lead = len(tokenizer(lead, **options)["input_ids"]) if lead else 0
    first = tokenizer(bare, add_special_tokens=True, return_offsets_mapping=True)
    found = tokenizer(lead + prompt[len(bare) :] + text, return_offsets_mapping=True, **options)
    shift = len(bare) - len(lead)
    characters = (
        (max(low + shift, len(prompt)), high + shift)
        for low, high in found["offset_mapping"][n_lead:]
    )
    return (
        (*first["input_ids"], *found["input_ids"][n_lead:]),
        (*map(tuple, first["offset_mapping"]), *characters),
        len(first["input_ids"]),
    )


@lru_cache(maxsize=8)
def way_of(tokenizer: Tokenizer) -> Way:
    """What keeps the text, found by trying; `apart`, the reference's way, where it does."""
    ways: tuple[Way, ...] = ("apart", "after a sign", "neither")
    return next(
        way
        for way in ways
        if way == "neither" or all(_is_kept(tokenizer, *one, way) for one in _TRIED)
    )


def _is_kept(tokenizer: Tokenizer, prompt: str, text: str, way: Way) -> bool:
    """Whether joined tokens have the text of prompt and continuation encoded as one."""
    whole = tokenizer(prompt + text, add_special_tokens=True)["input_ids"]
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    one, other = (
        tokenizer.decode(list(ids), **options)
        for ids in (whole, joined(tokenizer, prompt, text, way)[0])
    )
    return one == other


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
class Batch(Movable):
    """Encoded examples, right-padded: padding is invisible to causal logits (6e-8 in float32)."""

    idx: tuple[int, ...]
    tokens: Tokens
    predict_at: PosMask
    """Positions whose logits score the span: one left of each span token."""
    patch_at: PosMask
    """Positions that are replaced."""


def check_tokenizer(tokenizer: Tokenizer, name: str) -> None:
    """Refuse a tokenizer that would score the wrong tokens.

    Raises:
        InputError: it appends an end-of-text token that would land between prompt and
            continuation, or it changes the text between the two.
    """
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    special = tokenizer("a", add_special_tokens=True)["input_ids"]
    if plain and special[-1] != plain[-1]:
        raise InputError(
            f"{name}: its tokenizer appends token {special[-1]} after a text, which would split "
            "prompt and answer; set add_eos_token to false in tokenizer_config.json"
        )
    if way_of(tokenizer) == "neither":
        raise InputError(
            f"{name}: its tokenizer reads prompt and answer differently when they are encoded "
            "one after the other than as one text; save the model's own tokenizer.json in its "
            "folder"
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


def texts_of(example: Fact, scored: Scored) -> tuple[Fact, str, str]:
    r"""The example as it is scored, its prompt, and the continuation with the blank in between.

    >>> texts_of(Fact(0, "Who?", "It is Ada.", "It is", "Ada", 0), "entity")[1:]
    ('Question: Who?\nAnswer: It is', ' Ada.')
    """
    if scored == "answer":
        example = replace(example, prefix="", entity=example.answer)
    prompt, rest = prompt_of(example), example.continuation
    needs_blank = rest and not rest[0].isspace() and not prompt[-1:].isspace()
    return example, prompt, f" {rest}" if needs_blank else rest


def encode(
    example: Fact,
    tokenizer: Tokenizer,
    *,
    scored: Scored = "entity",
    too_long: Callable[[int], str | None] = lambda n_tokens: None,
) -> Encoded | str:
    """Tokens of prompt and continuation with the scored span, or why nothing can be scored.

    The span is of the tokens that overlap the first occurrence of the entity after the prefix: a
    leading blank merged into the first of them, or punctuation into the last, is scored with it.

    `scored="answer"` takes the whole answer as the span and ends the prompt at `Answer: `, the two
    encoded apart; `too_long` says why a text of so many tokens cannot be scored (`models.sizes`).

    Raises:
        InputError: the example is no fact, or the tokenizer none.
    """
    if not isinstance(example, Fact) or not callable(tokenizer):
        raise InputError(
            f"encode({example!r:.40}, {tokenizer!r:.40}): wanted a fact, as la.forget_set gives "
            "them, and the tokenizer of a model"
        )
    found = _joined(example, tokenizer, scored)
    if isinstance(found, str):
        return found
    inside = [
        at
        for at, (start, end) in enumerate(found.characters)
        if end > found.low and start < found.high
    ]
    if not inside:
        return _UNCOVERED.format(example.entity)
    if problem := too_long(len(found.ids)):
        return problem
    # what scores a token stands one left of it
    return Encoded(example.idx, example.group, found.ids, found.n_prompt, inside[0] - 1, inside[-1])


_UNCOVERED = "no token of this tokenizer covers {!r}"


@dataclass(frozen=True)
class _Joined:
    """Prompt and answer as tokens, and the characters at which the scored text lies."""

    ids: tuple[int, ...]
    characters: tuple[tuple[int, int], ...]
    n_prompt: int
    low: int
    high: int


def _joined(example: Fact, tokenizer: Tokenizer, scored: Scored) -> _Joined | str:
    """An example under its seam, or why there is nothing to score."""
    as_one = scored == "entity" and example.seam == "text"
    if as_one and not example.answer.startswith(example.prefix.rstrip()):
        return f"the answer does not begin with its prefix {example.prefix!r}"
    if as_one:
        example = replace(example, prefix=example.prefix.rstrip())
        before, text = prompt_of(example), example.continuation
    else:
        example, before, text = texts_of(example, scored)
    needle = example.entity if example.entity in text else example.entity.strip()
    if not needle or needle not in text:
        return _UNCOVERED.format(example.entity)
    low = len(before) + text.find(needle)
    tokens = _as_one_text if as_one else joined
    return _Joined(*tokens(tokenizer, before, text), low, low + len(needle))


def reads_otherwise(example: Fact) -> bool:
    """Whether the reference's seam puts a blank where the answer has none.

    >>> row = Fact(0, "Who?", "It is “Ada”.", "It is “", "Ada", 0, seam="reference")
    >>> reads_otherwise(row), reads_otherwise(replace(row, seam="text"))
    (True, False)
    """
    _, before, text = texts_of(example, "entity")
    whole = PROMPT_TEMPLATE.format(question=example.question, prefix="") + example.answer
    return example.seam == "reference" and before + text != whole


def _as_one_text(
    tokenizer: Tokenizer, prompt: str, text: str
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...], int]:
    """As `joined`, of both as one text: what holds the border of the two is the text's."""
    seam = len(prompt.rstrip())
    found = tokenizer(prompt + text, add_special_tokens=True, return_offsets_mapping=True)
    ids, characters = tuple(found["input_ids"]), tuple(map(tuple, found["offset_mapping"]))
    n_prompt = next((at for at, (_, end) in enumerate(characters) if end > seam), len(ids))
    return ids, characters, n_prompt


def make_batch(encoded: Sequence[Encoded], *, scope: Scope = "span") -> Batch:
    """Right-pad a few encoded examples; see `Batch`.

    Raises:
        InputError: there is no such `scope`, no example, or in its place why there is none.
    """
    if not encoded:
        raise InputError("make_batch wants encoded examples: there are none")
    for wrong in (e for e in encoded if not isinstance(e, Encoded)):
        raise InputError(f"make_batch wants encoded examples: {wrong}")
    # any id will do: nothing that is read can see a padded position
    tokens, _ = padded_rows([e.token_ids for e in encoded])
    predict_at, patch_at = torch.zeros(2, *tokens.shape, dtype=torch.bool)
    for row, e in enumerate(encoded):
        predict_at[row, e.start : e.end] = True
        patch_at[row, slice(*patched_range(e, scope))] = True
    return Batch(tuple(e.idx for e in encoded), tokens, predict_at, patch_at)


def patched_range(encoded: Encoded, scope: Scope) -> tuple[int, int]:
    """First and one past the last replaced position."""
    places = {
        "span": (encoded.start, encoded.end),
        "boundary": (encoded.n_prompt - 1, encoded.n_prompt),
        "prefix": (0, encoded.end),
    }
    if scope not in places:
        raise InputError(f"scope={scope!r:.40}: wanted one of {', '.join(places)}")
    return places[scope]


def by_length(encoded: Sequence[Encoded]) -> list[Encoded]:
    """Neighbours alike in length."""
    return sorted(encoded, key=_place)


def buckets(
    encoded: Sequence[Encoded],
    batch_size: int,
    *,
    length: Callable[[Encoded], int] = lambda e: e.end,
) -> Iterator[Sequence[Encoded]]:
    """Groups of at most `batch_size` rows, as few as possible, alike in length."""
    return batched(sorted(encoded, key=lambda e: (length(e), *_place(e))), batch_size)


def _place(e: Encoded) -> tuple[int, int, int]:
    return e.end, len(e.token_ids), e.idx


Places = Mapping[int, Mapping[int, int]]
"""Idx -> position of `full` -> position of the other model that has read as much."""


def encoded_row(
    row: Fact, tokenizer: Tokenizer, too_long: Callable[[int], str | None]
) -> Encoded | str:
    """Tokens and span of a row, be it a plain sentence, or why nothing can be scored."""
    if not _is_sentence(row):
        return encode(row, tokenizer, scored=_scored(row), too_long=too_long)
    # all of a plain sentence is scored but its first token
    ids = tuple(tokenizer(row.answer, add_special_tokens=True)["input_ids"])
    problem = too_long(len(ids)) if len(ids) > 1 else "nothing follows its first token"
    return problem or Encoded(row.idx, row.group, ids, 1, 0, len(ids) - 1)


def ends_of(row: Fact, tokenizer: Tokenizer) -> tuple[int, ...]:
    """For each token of `encoded_row`, how many characters of the text have been read with it."""
    options = {"add_special_tokens": True, "return_offsets_mapping": True}
    if _is_sentence(row):
        characters = tokenizer(row.answer, **options)["offset_mapping"]
    else:
        found = _joined(row, tokenizer, _scored(row))
        characters = () if isinstance(found, str) else found.characters
    return tuple(high for _, high in characters)


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
