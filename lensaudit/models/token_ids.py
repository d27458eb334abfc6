"""Check that all token ids in a checkpoint's files are in its vocabulary."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.results.reading import json_object, part

NAMES = (
    *("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id"),
    *("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "force_words_ids"),
    *("suppress_tokens", "begin_suppress_tokens"),
)


def check_token_ids(folder: Path, config: Mapping[str, Any], d_vocab: int) -> None:
    """Refuse a checkpoint that would fail of an id when it is loaded, or in the middle of a text.

    A negative id counts from the end, as torch has it; older configurations say -1 for none.

    Raises:
        InputError: names the file, the field and the id.
    """
    generation = folder / "generation_config.json"
    said = {folder / "config.json": [config, part(config, "text_config")]}
    if generation.exists():
        said[generation] = [json_object(generation)]
    named = (
        (file, name, one)
        for file, contents in said.items()
        for content in contents
        for name in NAMES
        for one in _flat(content.get(name), 3 if name.endswith("_words_ids") else 1)
    )
    for file, name, one in named:
        if not (type(one) is int and -d_vocab <= one < d_vocab):
            raise InputError(
                f"{file}: {name} names {one!r}, which is no token of its vocabulary of {d_vocab}; "
                "mend the file"
            )


def _flat(value: Any, depth: int) -> Iterator[Any]:
    """The ids in a field: none, one, or lists of them, so many within each other."""
    if isinstance(value, list) and depth:
        for one in value:
            yield from _flat(one, depth - 1)
    elif value is not None:
        yield value
