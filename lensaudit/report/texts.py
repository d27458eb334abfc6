"""How is text from models and data shown, so that it stays text and nothing in it is hidden?"""

import re
from typing import Any

LONGEST = 4000
"""Characters of one text that the page holds; the full text stays in the result folder."""

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ud800-\udfff]"
)


def visible(text: Any, limit: int = LONGEST) -> str:
    r"""Control characters, direction overrides and broken characters spelled out; cut at `limit`.

    >>> visible("a\u202eb"), visible("abcdef", limit=3)
    ('a‹U+202E›b', 'abc … (6 characters)')
    """
    whole = str(text)
    shown = _UNSEEN.sub(lambda found: f"‹U+{ord(found[0]):04X}›", whole[:limit])
    return shown if len(whole) <= limit else f"{shown} … ({len(whole)} characters)"


def visible_values(value: Any, limit: int = LONGEST) -> Any:
    """The same for every text inside a JSON value, keys included."""
    match value:
        case str():
            return visible(value, limit)
        case dict():
            return {visible(key, 200): visible_values(one, limit) for key, one in value.items()}
        case list() | tuple():
            return [visible_values(one, limit) for one in value]
        case _:
            return value
