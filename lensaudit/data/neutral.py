"""Rows beside the forgotten ones: on which `full` is seen to read a model, and which are kept.

Neutral rows hold none of the facts that were to be forgotten: rows of other authors, ordinary
questions and answers, or plain sentences. Those for the fit and those for validity share no
author and no row, so that what a map carries is tested on facts it was not fitted on.
Kept rows are facts that a model should still know, by how near they are to the forgotten ones.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from lensaudit.data.facts import EMBEDDED, Fact, load_facts, validate
from lensaudit.data.matching import ARTICLES, plain_words
from lensaudit.data.rows import numbered, read_values, row_problems, sound_rows
from lensaudit.data.tofu import DEMO, FORGET10, RETAIN, author_of, tofu_rows, validity_set
from lensaudit.errors import InputError
from lensaudit.files import read_text
from lensaudit.groups import author_key, group_of, is_own, normalised, own_group, spread
from lensaudit.settings import NeutralRows, path_of
from lensaudit.text import digest

VALIDITY_ROWS = 48
"""Rows kept for validity where fit and validity come from one file; enough as measured."""

FEWEST_VALIDITY_ROWS = 16

_CLOSED = re.compile(r"(?i:yes|no)\b[^\w]*|[a-zß-ÿ]{1,12}")
"""An answer that many rows share names nobody: Yes, No, one short lower-case word."""

_WANTED = (
    "wanted annotated rows, rows of question and answer, or a .txt file with a sentence per line"
)

_ORDINARY = ("world_facts_perturbed", "real_authors_perturbed")


@dataclass(frozen=True)
class Neutral:
    """Rows for fit, for validity, and those left out."""

    fit: tuple[Fact, ...]
    """A map may be fitted on these."""
    validity: tuple[Fact, ...]
    """Facts that a readable model still holds, of authors that are not in `fit`."""
    ordinary: tuple[Fact, ...] = ()
    """Read where a model no longer says the rows for validity: world facts, plain sentences."""
    left_out: tuple[tuple[int, str], ...] = ()
    """idx and reason; counted in the summary."""
    why: str = ""
    """Why there are none at all."""


def read_neutral(path: Path) -> list[Fact]:
    """Annotated rows, rows of question and answer, or a text file with a sentence per line; by idx.

    A sentence becomes a row without a question whose answer it is.

    Raises:
        InputError: the file cannot be read, or its rows are of none of these kinds.
    """
    if path.suffix in (".txt", ".text"):
        lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
        if not lines:
            raise InputError(f"{path}: empty, wanted a sentence per line")
        return _questions(str(path), [{"question": "", "answer": line} for line in lines])
    rows = read_values(path)
    keys = [row.keys() if isinstance(row, dict) else () for row in rows]
    if rows and all("prefix" in own and ("entity" in own or "gt_entity" in own) for own in keys):
        return sorted(validate(rows, str(path)), key=lambda row: row.idx)
    return _questions(str(path), rows)


def neutral_of(
    data: str,
    forget: Sequence[Fact],
    *,
    validity_data: Path | None = None,
    align_data: Path | None = None,
) -> Neutral:
    """The neutral rows that belong to a forget set, or that files name.

    Args:
        data: name or path of the forget set: TOFU and the embedded family bring rows of other
            authors; a folder of TOFU's files, what it holds of them.
        forget: its rows.
        validity_data: facts that a readable model still holds.
        align_data: text to fit a map on. Either file alone serves both uses, split by author.

    Raises:
        InputError: none are known of this set, or a file or the Hub cannot be read.
    """
    if validity_data is not None or align_data is not None:
        files = [one for one in (align_data, validity_data) if one is not None]
        first, *second = [read_neutral(one) for one in files]
        # one file under both names serves both uses, as one file alone does
        return neutral_rows(forget, first, second[0] if second not in ([], [first]) else None)
    fit = "retain90" if data == FORGET10 else RETAIN
    if data not in (DEMO, FORGET10) and not (Path(data).expanduser() / f"{fit}.jsonl").exists():
        raise InputError(
            "there are no kept rows to show that full can read this model: add retain_rows "
            f"(--validity-data, --align-data); none come with {Path(data).name}"
        )
    # annotated rows for validity; for the fit the other authors' rows, 20 to an author
    validity = None if data == DEMO else validity_set(data)
    ordinary = [row for name in _ORDINARY for row in _of_tofu(data, name)]
    if validity is None:
        return neutral_rows(forget, load_facts(EMBEDDED / "retain.json"), ordinary=ordinary)
    known = {one.question for one in validity}
    rows = [replace(row, group=author_of(fit, row.idx)) for row in _of_tofu(data, fit)]
    taken = {row.group for row in rows if row.question in known}
    return neutral_rows(forget, [r for r in rows if r.group not in taken], validity, ordinary)


def _of_tofu(data: str, config: str) -> list[Fact]:
    return _questions(config, tofu_rows(data, config, instead="name rows of your own in its place"))


def is_whole(example: Fact) -> bool:
    """Whether all of the answer is scored, as in a row without an annotated entity."""
    return not example.prefix and example.entity == example.answer


def neutral_rows(
    forget: Sequence[Fact],
    fit: Sequence[Fact],
    validity: Sequence[Fact] | None = None,
    ordinary: Sequence[Fact] = (),
) -> Neutral:
    """Rows for both uses, numbered anew, without rows that could hold a forgotten fact.

    Args:
        forget: the forget set.
        fit: rows for the map; also those for validity where `validity` is None, split by author.
        validity: rows for validity.
        ordinary: further rows for validity, read where those fail.
    """
    entities = open_names(one.entity for one in forget)
    # a row's own number says nothing of the rows of another file
    authors = {author_key(row.group) for row in forget if not is_own(row.group)}
    forgotten = set(map(_text, forget))
    left_out: list[tuple[int, str]] = []

    def kept(rows: Iterable[Fact], start: int) -> list[Fact]:
        found = []
        for idx, row in enumerate(rows, start):
            reason = _reason(row, entities, authors, forgotten)
            if reason is None:
                group = own_group(idx) if is_own(row.group) else row.group
                found.append(replace(row, idx=idx, group=group))
            else:
                left_out.append((idx, reason))
        return found

    first = kept(fit, 0)
    if validity is None:
        # authors with so many rows between them, at most half of all: drawn by their hash
        sizes = Counter(row.group for row in first)
        order = sorted(sizes, key=lambda group: digest(str(group)))
        before = accumulate((sizes[group] for group in order), initial=0)
        wanted = min(VALIDITY_ROWS, len(first) // 2)
        chosen = {group for group, n in zip(order, before, strict=False) if n < wanted}
        for_validity = [row for row in first if row.group in chosen]
    else:
        for_validity = kept(validity, len(fit))
    more = kept(ordinary, len(fit) + len(validity or ()))
    taken, read = {row.group for row in for_validity}, set(map(_text, (*for_validity, *more)))
    others = [row for row in first if row.group not in taken]
    left_out += [(row.idx, "it is read for validity") for row in others if _text(row) in read]
    if validity is not None:
        left_out += [
            (row.idx, "its author is one of the validity rows'")
            for row in first
            if row.group in taken
        ]
    for_fit = tuple(row for row in others if _text(row) not in read)
    return Neutral(for_fit, tuple(for_validity), tuple(more), tuple(left_out))


def _text(row: Fact) -> tuple[str, str]:
    """What is asked and answered, whatever its blanks and case."""
    return normalised(row.question), normalised(row.answer)


def open_names(entities: Iterable[str]) -> frozenset[str]:
    """Entities that name something, as they are compared: in plain words. "A+" names nothing."""
    return frozenset(
        plain_words(one) for one in map(str.strip, entities) if not _CLOSED.fullmatch(one)
    ) - {"", *ARTICLES}


def _reason(
    row: Fact,
    entities: frozenset[str],
    authors: set[str],
    forgotten: set[tuple[str, str]],
) -> str | None:
    if author_key(row.group) in authors:
        return "its author is one of the forget set's"
    if _text(row) in forgotten:
        return "it is a row of the forget set"
    text = plain_words(f"{row.question} {row.answer}")
    named = any(stands_in(one, text) for one in entities)
    return "it names an entity of the forget set" if named else None


def stands_in(entity: str, text: str) -> bool:
    """Does the text name the entity, and not only a longer word? Both are in plain words."""
    return f" {entity} " in f" {text} "


def _questions(source: str, rows: Sequence[Any]) -> list[Fact]:
    """Rows of question and answer, or of an answer alone; all of the answer is scored."""
    if not rows:
        return []
    return sorted(
        sound_rows(numbered(rows), source, _WANTED, _problems, _whole), key=lambda row: row.idx
    )


def _problems(row: Any) -> list[str]:
    keys = ("question", "answer")
    return row_problems(row, keys if isinstance(row, dict) and row.get("question") else keys[1:])


def _whole(row: Any, idx: int) -> Fact:
    said = row["answer"]
    return Fact(idx, row.get("question") or "", said, "", said, group_of(row, idx))


_WORD = re.compile(r"[^\W\d_][\w']*")


def wording(row: Fact) -> frozenset[str]:
    """The words of question and answer that name nothing: in lower case, and the question's first.

    >>> sorted(wording(Fact(0, "When was Ada born?", "Ada was born in May.", "", "May", 0)))
    ['born', 'in', 'was', 'when']
    """
    asked, said = _WORD.findall(row.question), _WORD.findall(row.answer)
    first = [one.casefold() for one in asked[:1]]
    found = frozenset((*first, *(one for one in (*asked, *said) if one.islower())))
    return found or frozenset(("",))


def likeness(a: frozenset[str], b: frozenset[str]) -> float:
    """Jaccard: shared words of all words.

    >>> likeness(frozenset("ab"), frozenset("bc"))
    0.3333333333333333
    """
    return len(a & b) / len(a | b)


Stratum = Literal["same relation", "same author type", "other"]

SAME_RELATION = 2 / 3
"""Share of a question's words, names aside, from which two questions ask the same. In the embedded
family questions of one relation share all words, others at most 0.57 of them."""

PRETRAINED = {"world": "world_facts_perturbed", "authors": "real_authors_perturbed"}
"""Names of facts that a base model knows too, and their files."""

NAMES = ("retain", *PRETRAINED)


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
    if data not in (DEMO, FORGET10):
        raise InputError(f"--also {named}: {data} comes with no such facts; name a file")
    if named in PRETRAINED:
        return _of_tofu(data, PRETRAINED[named])
    return validity_set() if data == FORGET10 else load_facts(EMBEDDED / "retain.json")


def strata_of(kept: Sequence[Fact], forget: Sequence[Fact]) -> list[Stratum]:
    """Kept rows by distance to the forget set: by what is asked, then by whom it is asked of.

    `same relation`: a forgotten question asks it, of somebody else. `same author type`: another
    question about somebody of whom such a one is asked. `other`: neither.
    """
    asked = {_asked_words(row) for row in forget}
    same = [max(likeness(_asked_words(row), one) for one in asked) >= SAME_RELATION for row in kept]
    alike = {row.group for row, yes in zip(kept, same, strict=True) if yes}
    return [
        "same relation" if yes else "same author type" if row.group in alike else "other"
        for row, yes in zip(kept, same, strict=True)
    ]


def _asked_words(row: Fact) -> frozenset[str]:
    return wording(replace(row, answer=""))


def other_answers(rows: Sequence[Fact], lengths: Sequence[Hashable]) -> list[int | None]:
    """For each row, another whose answer can replace it: wrong, and as long.

    Of the rows of another author, with another entity and as many tokens, the one that asks the
    most alike question; of equals the next in the list. None where no row is as long.
    """
    words = [_asked_words(row) for row in rows]

    def other(at: int) -> int | None:
        own = rows[at]
        fitting = [
            one
            for one in (*range(at + 1, len(rows)), *range(at))
            if lengths[one] == lengths[at]
            and rows[one].group != own.group
            and rows[one].entity.casefold() != own.entity.casefold()
        ]
        return max(fitting, key=lambda one: likeness(words[at], words[one]), default=None)

    return [*map(other, range(len(rows)))]


def neutral_beside(settings: NeutralRows, data: str, examples: Sequence[Fact]) -> Neutral:
    """The rows for validity and maps, or why there are none.

    Rows that nobody named and that are not to be had are a reason, not an error.

    Raises:
        InputError: a file that was named does not do, or a map was asked for.
    """
    validity, align = path_of(settings.validity_data), path_of(settings.align_data)
    try:
        return neutral_of(data, examples, validity_data=validity, align_data=align)
    except InputError as error:
        if validity or align or settings.align not in ("auto", "none"):
            raise
        return Neutral((), (), why=str(error))
