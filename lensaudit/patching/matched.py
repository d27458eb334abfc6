"""Rows of an audit as a model with another tokenizer reads them, and where it stands for `full`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lensaudit.data.facts import Fact
from lensaudit.data.joining import Tokenizer
from lensaudit.data.matching import Places, encoded_row, ends_of, matched
from lensaudit.data.spans import Encoded, Scope, patched_range

LOST = "its tokenizer leaves nothing of the span to score"
BETWEEN = "no token of it ends where a token of full does, at a position that is patched"


@dataclass(frozen=True)
class Reading:
    """Rows in the tokens of one source."""

    rows: tuple[Encoded, ...]
    """Without those it loses."""
    places: Places
    unscored: Mapping[int, str]
    """Idx -> why nothing of the source can stand for `full`'s tokens."""

    def scored(self, rows: Sequence[Encoded]) -> list[tuple[Encoded, Encoded]]:
        """Each row that can be patched, in `full`'s tokens and in its own."""
        own = {e.idx: e for e in self.rows}
        return [(e, own[e.idx]) for e in rows if e.idx not in self.unscored]


def reading_of(
    rows: Sequence[Encoded],
    text_of: Callable[[Encoded], Fact],
    full: Tokenizer,
    own: Tokenizer,
    scope: Scope,
) -> Reading:
    """Encode the texts anew and match positions by characters.

    Args:
        rows: in `full`'s tokens.
        text_of: the text behind a row.
        full: the tokenizer of `full`.
        own: that of the source.
        scope: positions that are replaced; where one has no match the row is unscored.
    """
    found: list[Encoded] = []
    places: dict[int, Mapping[int, int]] = {}
    unscored: dict[int, str] = {}
    for e in rows:
        text = text_of(e)
        other = encoded_row(text, own)
        if other is None:
            unscored[e.idx] = LOST
            continue
        found.append(other)
        places[e.idx] = here = matched(ends_of(text, full), ends_of(text, own))
        if any(at not in here for at in range(*patched_range(e, scope))):
            unscored[e.idx] = BETWEEN
    return Reading(tuple(found), places, unscored)
