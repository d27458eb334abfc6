"""Tables and texts as the page holds them.

Tables are base64, decoded when they are looked at, not when the page loads. Text from models and
data stays text, bounded, and nothing in it is hidden.
"""

import base64
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lensaudit.results.kinds.patch import PatchRun
from lensaudit.results.reading import brief

GAP = -32768
"""Stands for no number in a rooted table."""
GAP_SHARE = 255
"""Stands for no number among shares."""

NumberRows = Sequence[Sequence[float | None]] | Sequence[float | None] | NDArray[np.float64]


def array(rows: NumberRows) -> NDArray[np.float64]:
    """Numbers with NaN for gaps."""
    return np.array(rows, dtype=np.float64)


def floats(rows: NumberRows) -> str:
    """Little-endian float32, row by row; NaN for gaps."""
    return _text(array(rows).astype("<f4"))


def rooted(rows: NumberRows) -> str:
    """Numbers of any size in 16 bits each, then a byte a row, from which its largest is told.

    value = ± largest * (whole / 32767)^2 with largest = 2^(byte / 8 - 12): small numbers are told
    finely beside large ones, and a row does not lose digits to another.
    """
    values = array(rows)
    there = np.isfinite(values)
    largest = np.max(np.abs(values), axis=1, initial=2.0**-12, where=there, keepdims=True)
    sizes = np.ceil(8 * (np.log2(largest) + 12)).clip(0, 255)
    roots = np.sqrt(np.abs(values) / 2 ** (sizes / 8 - 12)).clip(0, 1)
    whole = np.where(there, np.rint(np.copysign(roots, values) * 32767), GAP)
    return base64.b64encode(whole.astype("<i2").tobytes() + sizes.astype("u1").tobytes()).decode()


def shares(rows: NumberRows) -> str:
    """Numbers from 0 to 1 in steps of 1/254, one byte each; 255 for gaps."""
    values = array(rows)
    whole = np.where(np.isfinite(values), np.rint(values.clip(0, 1) * 254), GAP_SHARE)
    return _text(whole.astype("u1"))


def _text(values: NDArray) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")


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


PACKED = ("s1", "s2", "scores", "baseline", "base64")
"""Fields of packed tables: long, and made of letters that need no care."""


def visible_values(value: Any, digits: int | None = None) -> Any:
    """A JSON value with every text made visible, but for packed tables; field names included.

    Args:
        value: the JSON value; a reason or a metric's name in it may be hostile, too.
        digits: significant ones of each float; None: all.
    """
    match value:
        case str():
            return visible(value)
        case dict():
            return {
                visible(key, 300): one
                if key in PACKED and isinstance(one, str)
                else visible_values(one, digits)
                for key, one in value.items()
            }
        case list() | tuple():
            return [visible_values(one, digits) for one in value]
        case float() if digits:
            return brief(value, digits)
        case _:
            return value


MOST_TOKENS = 16
"""Of one span; the rest of a longer one stays in the result folder."""
LONGEST_TOKEN = 24
"""Characters of one token."""
MOST_VALUES = 1 << 19
"""A page's values by example, layer and token, a byte each: 0.7 MB as base64."""


def token_table(run: PatchRun) -> tuple[dict[str, Any], int]:
    """What a run read by token, and how many numbers that is; nothing where it read nothing.

    `texts` by example, `base64` probabilities that `full` reads: example, then layer, then token.
    """
    tables = [[layer[:MOST_TOKENS] for layer in row.get("lens_by_token") or ()] for row in run.rows]
    # where only means were read there are no tokens
    texts = [
        [visible(one, LONGEST_TOKEN) for one in row.get("span_tokens", ())[:MOST_TOKENS]]
        if table
        else []
        for row, table in zip(run.rows, tables, strict=True)
    ]
    values = [math.exp(one) for table in tables for layer in table for one in layer]
    return {"texts": texts, "base64": shares(values)} if values else {}, len(values)


def token_tables(runs: Sequence[PatchRun]) -> Iterator[dict[str, Any]]:
    """Token tables of every run, in order, until the page holds as much as it may."""
    left = MOST_VALUES
    for run in runs:
        found, n_values = token_table(run)
        kept = n_values <= left
        left -= n_values * kept
        yield found if kept else {}
