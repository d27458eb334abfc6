"""Values and names as text: one spelling for hashes, for file names and for terminals."""

import hashlib
import json
import re
import unicodedata
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def canonical_json(value: Any, *, allow_nan: bool = False) -> str:
    """JSON in one spelling per value, for hashes: sorted keys, no blanks, NaN only if allowed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=allow_nan)


def digest(value: Any) -> str:
    """128-bit content hash of a JSON value, 32 hex digits."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=16).hexdigest()


MOST_NESTED = 100
"""Lists within lists: what we and others write has less than ten."""


def parse_json(text: str | bytes, *, unique: bool = False) -> Any:
    """The value in a JSON text; NaN and infinities pass, which other tools write.

    >>> parse_json('{"a": [1, NaN]}')
    {'a': [1, nan]}

    Raises:
        ValueError: not JSON, with `unique` an object with one key twice, or nested so deep that
            whatever walks it would fail.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique if unique else None)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    opened = text.count("{") + text.count("[") if isinstance(text, str) else len(text)
    level, n_levels = [value] if isinstance(value, dict | list) else [], 0
    while level and opened > MOST_NESTED:
        if n_levels == MOST_NESTED:
            raise ValueError(f"nested more than {MOST_NESTED} deep")
        n_levels += 1
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no value would be lost."""
    if len(found := dict(pairs)) < len(pairs):
        twice = max(found, key=[key for key, _ in pairs].count)
        raise ValueError(f"key {twice!r:.40} twice in an object")
    return found


def utf8(json_text: str) -> bytes:
    r"""UTF-8; half of a surrogate pair, which a file name can hold, as its JSON escape.

    >>> utf8('"\ud800"')
    b'"\\ud800"'
    """
    return json_text.encode("utf-8", "backslashreplace")


def slug(name: str, limit: int = 40, *, letters: str = "A-Za-z0-9") -> str:
    """A name as a file name: no separators, no leading dot or dash, at most `limit` characters.

    Cosmetic only; identity is carried by hashes.

    >>> slug("../models/idk nll"), slug("-rf"), slug("…")
    ('models-idk-nll', 'rf', 'model')
    """
    text = re.sub(rf"[^{letters}._-]+", "-", unicodedata.normalize("NFKC", name)).lower()
    text = re.sub(r"\.{2,}", "-", text)
    return text.strip(".-_")[:limit].strip(".-_") or "model"


def is_path(word: str) -> bool:
    """Whether a word is written as a path, so that no name can be meant.

    >>> [is_path(one) for one in ("./npo", "../npo", "/data/npo", "~/npo", ".npo", "runs/npo", "")]
    [True, True, True, True, True, False, False]
    """
    return word.startswith((".", "/", "~"))


def printable(text: str) -> str:
    r"""Text from a model or a data set, without terminal escapes or direction overrides.

    >>> printable("a\x1b[31mb"), printable("\udcff")
    ('a[31mb', '?')
    """
    # half of a surrogate pair, which a file name can hold, cannot be written anywhere
    return _CONTROL.sub("", text).encode("utf-8", "replace").decode()


def escaped(json_text: str) -> str:
    r"""JSON for a terminal: the same values, control characters as their escapes.

    >>> escaped('"a\x9bb"')
    '"a\\u009bb"'
    """
    return utf8(_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)).decode()
