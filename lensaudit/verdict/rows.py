"""Whether a result is about the facts that a model was judged on.

Results of one model are joined by facts: by the number of a row, or its question, and what is
asked there. A result that shares too few of them is shown and has no vote; of one that does not
say what it asked it is not known, so that it may find and never rule out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lensaudit.results.kinds.patch import PatchRun
from lensaudit.results.reading import json_lines, part
from lensaudit.verdict.views import View

Facts = Mapping[str, str]
"""Number of a row, or its question -> the entity, or the answer that holds it; empty: not known."""
AGREE = 0.5
"""Share of the facts of the smaller of two results that must be the same."""
OTHER_ROWS = "of other rows: it has no vote"
UNKNOWN_ROWS = "which rows it asked it does not say"


def facts_of_run(run: PatchRun) -> Facts:
    """Facts that a run of `patch` asked, by number and by question."""
    known = [one for one in run.examples if one.entity]
    return {str(one.idx): one.entity for one in known} | {
        one.question: one.entity for one in known if one.question
    }


def facts_in(manifest: Mapping[str, Any], record: Any, path: Path) -> Facts:
    """Facts that another result asked, as its manifest, its record or its rows say them."""
    if said := part(manifest, "inputs", "rows"):
        return {key: str(one) for key, one in said.items()}
    told = {str(one.idx): one.entity for one in getattr(record, "facts", ())}
    if not told and (beside := path.with_name("results.jsonl")).exists():
        rows = [one for one in json_lines(beside) if one.get("split", "forget") == "forget"]
        told = {
            str(one.get("idx")): str(one.get("entity") or one.get("answer") or "") for one in rows
        }
    return told if all(told.values()) else {}


@dataclass(frozen=True)
class FactOverlap:
    """How much of a result is about the facts of another."""

    known: bool
    n: int = 0
    """Facts that both ask."""
    n_own: int = 0
    n_asked: int = 0
    """Facts of the one that is judged."""

    @property
    def same(self) -> bool:
        """Whether a result is about these facts, as far as is known."""
        return not self.known or self.n >= AGREE * min(self.n_own, self.n_asked)

    def heard(self, view: View) -> View:
        """The view with the vote that its rows leave it."""
        if not self.same:
            return replace(view, control=OTHER_ROWS, why=OTHER_ROWS)
        blind = view.blind
        if not self.known:
            blind = blind or UNKNOWN_ROWS
        elif self.n < AGREE * self.n_asked:
            blind = blind or f"it asked {self.n} of {self.n_asked} facts"
        return replace(view, blind=blind)


def shared(own: Facts, asked: Facts) -> FactOverlap:
    """Compare the facts of a result with those that are judged.

    Rows that are known by their questions alone, none of which is asked there, may put the same
    facts in another form: nothing is known of them.

    >>> shared({"0": "Rome", "1": "Oslo"}, {"0": "Rome", "1": "Bern"}).same  # one of two
    True
    >>> shared({"0": "Oslo"}, {"0": "Rome"}).same, shared({}, {"0": "Rome"}).same
    (False, True)
    """
    both = own.keys() & asked.keys()
    numbered = [key for key in asked if key.isdecimal()] or [*asked]
    if not own or not asked or not (both or all(key.isdecimal() for key in own)):
        return FactOverlap(known=False)
    n = sum(_is_in(own[key], asked[key]) for key in both)
    return FactOverlap(True, n, len(own), len(numbered))


def _is_in(one: str, other: str) -> bool:
    """Does an answer hold an entity, word for word, or are both the same?"""
    own, its = _words(one), _words(other)
    return own in its or its in own


def _words(text: str) -> str:
    words = re.findall(r"\w+", text.casefold())
    return f" {' '.join(words) or text} "
