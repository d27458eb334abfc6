"""Which tokens of two tokenizers have read the same text? Those that end at the same character.

A model with another tokenizer meets the same words in other pieces. Where a piece of its own ends
where one of `full`'s does, both have read exactly as much; at other positions they have not.
"""

from collections.abc import Mapping, Sequence

from lensaudit.data.facts import Fact
from lensaudit.data.joining import Tokenizer, joined
from lensaudit.data.neutral import is_whole
from lensaudit.data.spans import Encoded, Scored, encode, texts_of

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
