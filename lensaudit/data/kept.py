"""Which facts should a model still know, and how near are they to the forgotten ones?"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import lensaudit
from lensaudit.data.facts import Fact
from lensaudit.data.hub import hub_rows
from lensaudit.data.neutral import read_neutral
from lensaudit.data.tofu import DEMO, FORGET10, TOFU_HUB, validity_set
from lensaudit.data.wording import likeness, wording
from lensaudit.errors import InputError
from lensaudit.groups import spread

Stratum = Literal["same relation", "same author type", "other"]
SAME_RELATION = 2 / 3
"""Share of a question's words, names aside, from which two questions ask the same. In the embedded
family questions of one relation share all words, others at most 0.57 of them."""
PRETRAINED = {"world": "world_facts_perturbed", "authors": "real_authors_perturbed"}
"""Names of facts that a base model knows too, and their files."""
NAMES = ("retain", *PRETRAINED)
_EMBEDDED = Path(lensaudit.__file__).parent / "embedded" / "data"


@dataclass(frozen=True)
class Kept:
    """A set of facts that should be kept."""

    name: str
    rows: tuple[Fact, ...]
    """Numbered from 0."""
    pretrained: bool
    """A base model knows them, and is no anchor for them."""


def kept_facts(named: str, data: str, *, limit: int | None = None) -> Kept:
    """The facts that `--also` names.

    Args:
        named: `retain`, `world`, `authors`, or a file of annotated rows or of question and answer.
        data: the forget set that they stand beside.
        limit: at most so many, over as many authors as there are.

    Raises:
        InputError: no such file, or none are known beside this forget set.
    """
    path = Path(named).expanduser()
    if named in NAMES:
        rows, name = _known(named, data), named
    elif path.exists():
        rows, name = read_neutral(path), path.stem
    else:
        raise InputError(f"--also {named}: no such file; wanted one, or {', '.join(NAMES)}")
    kept = spread(rows, limit, lambda row: row.group)
    numbered = tuple(replace(row, idx=idx) for idx, row in enumerate(kept))
    if not numbered:
        raise InputError(f"--also {named}: holds no rows")
    return Kept(name, numbered, pretrained=named in PRETRAINED)


def _known(named: str, data: str) -> list[Fact]:
    file = PRETRAINED.get(named)
    if data == DEMO:
        return read_neutral(_EMBEDDED / (f"{file}.jsonl" if file else "retain.json"))
    if data != FORGET10:
        raise InputError(f"--also {named}: no such facts are known beside {data}; name a file")
    if file is None:
        return validity_set()
    rows = hub_rows(TOFU_HUB, file, "train", instead=f"name a file in place of {named}")
    return [
        Fact(idx, row["question"], row["answer"], "", row["answer"], f"idx {idx}")
        for idx, row in enumerate(rows)
    ]


def strata_of(kept: Sequence[Fact], forget: Sequence[Fact]) -> list[Stratum]:
    """By distance to the forget set: what is asked, then who it is asked of.

    `same relation`: a forgotten question asks it, of somebody else. `same author type`: another
    question about somebody of whom such a one is asked. `other`: neither.
    """
    asked = {_question(row) for row in forget}
    same = [max(likeness(_question(row), one) for one in asked) >= SAME_RELATION for row in kept]
    alike = {row.group for row, yes in zip(kept, same, strict=True) if yes}
    return [
        "same relation" if yes else "same author type" if row.group in alike else "other"
        for row, yes in zip(kept, same, strict=True)
    ]


def _question(row: Fact) -> frozenset[str]:
    return wording(replace(row, answer=""))


def other_answers(rows: Sequence[Fact], lengths: Sequence[Hashable]) -> list[int | None]:
    """For each row the place of another whose answer can stand for it: wrong, and as long.

    Of the rows of another author, with another entity and as many tokens, the one that asks the
    most alike question; of equals the next in the list. None where no row is as long.
    """
    words = [_question(row) for row in rows]
    found: list[int | None] = []
    for at, row in enumerate(rows):
        turned = [(at + step) % len(rows) for step in range(1, len(rows))]
        fitting = [
            one
            for one in turned
            if lengths[one] == lengths[at]
            and rows[one].group != row.group
            and rows[one].entity.casefold() != row.entity.casefold()
        ]
        found.append(max(fitting, key=lambda one: likeness(words[at], words[one]), default=None))
    return found
