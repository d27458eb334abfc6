"""How does a text become tokens when it follows another? Encoded apart where that is the same.

Prompt and answer are encoded apart and joined (docs/uds.md). Byte-level tokenizers give the same
text that way. Those of the SentencePiece kind may set a blank before whatever they are given, so
that the answer would begin with two: they are asked for it after a sign that is then left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, runtime_checkable

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
