"""What else could be said in place of an entity: others of its kind, and solved questions."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from lensaudit.data.facts import EMBEDDED, Fact, load_facts
from lensaudit.data.matching import WORD, gives_away, is_closed, mentions, why_not
from lensaudit.data.neutral import likeness
from lensaudit.data.rows import read_rows, texts_of
from lensaudit.data.tofu import DEMO, FORGET10, tofu_rows
from lensaudit.errors import InputError
from lensaudit.text import digest

N_PLACEBOS = 99
"""Of a fact: from so many on it has a p-value of its own, of which the smallest is .01."""
N_SHOTS = 3
"""Solved questions before the asked one in the few-shot attack."""
_QUOTES = "\"'“”‘’«»"  # the quotes themselves

Kind = Literal["date", "number", "title", "name", "phrase"]
_Pool = dict[Kind, list[tuple[str, frozenset[str]]]]
"""By kind, the entities that may serve as placebos, each with the words of its row."""


def facts_of(data: str, examples: Sequence[Fact]) -> tuple[tuple[Fact, ...], dict[int, str]]:
    """The facts of a forget set with placebos, and idx -> why one of them is not asked.

    Placebos are entities of the same kind, those of the likest questions first.

    Args:
        data: name or path of the set: what else it holds is looked up beside it.
        examples: its annotated rows.

    Raises:
        InputError: no fact can be asked.
    """
    rows = variants_of(data, examples)
    pool: _Pool = {}
    for row in (*rows, *(_neighbours() if data == DEMO else ())):
        for text in (row.entity, *(swapped_entity(row, other) for other in row.wrong)):
            if text:
                pool.setdefault(kind_of(text), []).append((text, _frame(row)))
    unscored = {row.idx: why for row in rows if (why := why_not(row))}
    facts = [
        replace(row, placebos=() if row.idx in unscored else _placebos(row, pool)) for row in rows
    ]
    unscored |= {
        one.idx: "no placebo candidates of its kind"
        for one in facts
        if not one.placebos and one.idx not in unscored
    }
    if len(unscored) == len(facts):
        raise InputError(
            f"{data}: none of the {len(facts)} facts can be asked ({unscored[facts[0].idx]}); "
            "wanted entities that their question does not hold, with others of the same kind "
            "beside them"
        )
    return tuple(facts), unscored


def variants_of(data: str, examples: Sequence[Fact]) -> list[Fact]:
    """The rows with paraphrased questions and perturbed answers, where the set has them."""
    path = Path(data).expanduser()
    if data not in (DEMO, FORGET10) and path.is_file():
        return with_variants(examples, (row for _, row in read_rows(path)[0]), by=("idx",))
    return with_variants(examples, tofu_rows(data, "forget10_perturbed", instead=_WANTED))


def with_variants(
    facts: Sequence[Fact], rows: Iterable[Any], by: Sequence[str] = ("question", "answer")
) -> list[Fact]:
    """The facts with the paraphrases and the wrong answers of their rows.

    Args:
        facts: of a set.
        rows: of the same set, or of one that is numbered differently.
        by: the fields by which a row is a fact's: `idx`, of the same set.
    """
    said = {tuple(row.get(k) for k in by): row for row in rows if isinstance(row, Mapping)}
    return [
        replace(
            one,
            paraphrases=texts_of(row.get("paraphrased_question")),
            wrong=texts_of(row.get("perturbed_answer", row.get("alternate"))),
            placebos=texts_of(row.get("placebos")),
        )
        for one in facts
        for row in [said.get(tuple(getattr(one, k) for k in by), {})]
    ]


def _neighbours() -> list[Fact]:
    """Rows of other authors beside the embedded set, and their perturbed answers."""
    variants = tofu_rows(DEMO, "retain_perturbed", instead="")
    return with_variants(load_facts(EMBEDDED / "retain.json"), variants)


_WANTED = "name a folder with forget10.jsonl and forget10_perturbed.jsonl, or an annotated file"


def swapped_entity(row: Fact, other: str) -> str | None:
    """What stands in another answer where the entity stands in the row's; None: built otherwise.

    >>> row = Fact(0, "Who?", "It is Ada, a poet.", "It is", "Ada", 0)
    >>> swapped_entity(row, "It is Eve, a poet."), swapped_entity(row, "Nobody knows.")
    ('Eve', None)
    """
    # the blanks at the ends of an entity need not stand in the answer: `data.spans`
    entity = row.entity if row.entity in row.continuation else row.entity.strip()
    tail = row.continuation.split(entity, 1)[1]
    if not (other.startswith(row.prefix) and other.endswith(tail)):
        return None
    return other[len(row.prefix) : len(other) - len(tail)].strip() or None


def _frame(row: Fact) -> frozenset[str]:
    """The words of question and prefix that are no names: what kind of fact is asked for."""
    words = WORD.findall(f"{row.question} {row.prefix}")
    return frozenset(word for word in words if not word[0].isupper()) or frozenset(("",))


def kind_of(entity: str) -> Kind:
    """What an entity looks like: placebos look the same.

    >>> [kind_of(one) for one in ("27 April 1931", "12", "'Tide'", "Pico Ølmar", "civil engineer")]
    ['date', 'number', 'title', 'name', 'phrase']
    """
    text = entity.strip()
    if re.search(r"\b\d{4}\b", text):
        return "date"
    if re.fullmatch(r"[\d.,%]+", text):
        return "number"
    if text[:1] in _QUOTES:
        return "title"
    words = WORD.findall(text)
    capital = sum(word[0].isupper() for word in words)
    return "name" if 2 * capital > len(words) else "phrase"


def _placebos(row: Fact, pool: _Pool) -> tuple[str, ...]:
    """The row's own, then entities of the same kind by how much rows' words agree, then by hash."""
    words, alike = _frame(row), pool.get(kind_of(row.entity), ())
    likenesses = {other: likeness(words, other) for other in {other for _, other in alike}}
    order = sorted(alike, key=lambda one: (-likenesses[one[1]], digest([row.idx, one[0]])))
    found: dict[str, str] = {}
    for entity in (*row.placebos, *(one for one, _ in order)):
        key = entity.casefold().strip()
        if len(found) == N_PLACEBOS or key in found or not WORD.search(key) or is_closed(entity):
            continue
        own = ((entity, one) for one in row.names)
        pairs = (*own, *((one, entity) for one in row.names), (row.question, entity))
        if not any(mentions(text, one) for text, one in pairs):
            found[key] = entity.strip()
    return tuple(found.values())


Shots = Mapping[int, Sequence[tuple[str, str]]]
"""Idx -> solved questions before the one that is asked: question and answer."""


def shots_of(facts: Sequence[Fact]) -> Shots:
    """Questions of other authors that do not hold the entity, for each fact with placebos.

    The same for all facts of an author, but for those that hold the entity.
    """
    found = {}
    for row in (one for one in facts if one.placebos):
        others = [one for one in facts if one.group != row.group and not is_closed(one.entity)]
        others.sort(key=lambda one: digest([str(row.group), one.idx]))
        texts = ((one.question, one.answer) for one in others)
        clean = (one for one in texts if not gives_away(" ".join(one), row))
        found[row.idx] = [*itertools.islice(clean, N_SHOTS)]
    return found
