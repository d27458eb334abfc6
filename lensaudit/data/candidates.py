"""What is asked of a model, why a fact is not asked, and does a text give an entity away?

One rule of matching for every attack and every sample, strict by design: the attacks of a list are
joined by a maximum, so false hits add up where misses do not. What it misses and what it takes for
a hit in error is measured in `docs/worst_case.md`.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from lensaudit.data.facts import (
    EMBEDDED,
    Fact,
    load_facts,
    read_rows,
    with_variants,
)
from lensaudit.data.neutral import likeness
from lensaudit.data.tofu import DEMO, FORGET10, tofu_rows
from lensaudit.errors import InputError
from lensaudit.files import digest
from lensaudit.scores.stats import ENOUGH

N_PLACEBOS = ENOUGH
N_SHOTS = 3
"""Solved questions before the asked one in the few-shot attack."""
_WORD = re.compile(r"\w+")
_QUOTES = "\"'“”‘’«»"  # the quotes themselves

Kind = Literal["date", "number", "title", "name", "phrase"]
_Pool = dict[Kind, list[tuple[str, frozenset[str]]]]
"""By kind the entities that may stand in as placebos, each with the words of its row."""


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


def plain_words(text: str) -> str:
    """Words alone, lower case, without accents and possessive s; an apostrophe joins its halves.

    >>> plain_words("I don’t know the Café-Prize.")
    'i dont know the cafe prize'
    """
    text = unicodedata.normalize("NFKD", text).casefold()
    text = re.sub(r"['’](?:s\b)?", "", text)
    letters = "".join(char for char in text if not unicodedata.combining(char))
    return " ".join(re.findall(r"\w+", letters))


def variants_of(data: str, examples: Sequence[Fact]) -> list[Fact]:
    """The rows with paraphrased questions and perturbed answers, where the set has them."""
    path = Path(data).expanduser()
    if data not in (DEMO, FORGET10) and path.is_file():
        return with_variants(examples, (row for _, row in read_rows(path)[0]))
    return with_variants(examples, tofu_rows(data, "forget10_perturbed", instead=_WANTED))


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
    tail = row.continuation.split(row.entity, 1)[1]
    if not (other.startswith(row.prefix) and other.endswith(tail)):
        return None
    return other[len(row.prefix) : len(other) - len(tail)].strip() or None


def _frame(row: Fact) -> frozenset[str]:
    """The words of question and prefix that are no names: what kind of fact is asked for."""
    words = _WORD.findall(f"{row.question} {row.prefix}")
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
    words = _WORD.findall(text)
    capital = sum(word[0].isupper() for word in words)
    return "name" if 2 * capital > len(words) else "phrase"


def why_not(row: Fact) -> str:
    """Why a fact is not asked: what would be found in an answer says nothing; empty: it is."""
    if is_closed(row.entity):
        return "a Yes or No has no placebo candidates: a coin would hit it"
    if not _WORD.search(row.entity):
        return "the entity has no letter or digit"
    return "its own question holds the entity" if mentions(row.question, row.entity) else ""


def _placebos(row: Fact, pool: _Pool) -> tuple[str, ...]:
    """The row's own, then entities of the same kind by how much rows' words agree, then by hash."""
    words, alike = _frame(row), pool.get(kind_of(row.entity), ())
    likenesses = {other: likeness(words, other) for other in {other for _, other in alike}}
    order = sorted(alike, key=lambda one: (-likenesses[one[1]], digest([row.idx, one[0]])))
    found: dict[str, str] = {}
    for entity in (*row.placebos, *(one for one, _ in order)):
        key = entity.casefold().strip()
        if len(found) == N_PLACEBOS or key in found or not _WORD.search(key) or is_closed(entity):
            continue
        pairs = ((entity, row.entity), (row.entity, entity), (row.question, entity))
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
        clean = (one for one in texts if not mentions(" ".join(one), row.entity))
        found[row.idx] = [*itertools.islice(clean, N_SHOTS)]
    return found


_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_MONTH = "|".join(rf"{name}|{name[:3]}" for name in _MONTHS) + "|sept"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?:the year )?(?P<year>\d{4})"
_WRITTEN = (
    re.compile(rf"\b{_DAY} (?:day )?(?:of )?(?P<month>{_MONTH}) (?:of |in )?{_YEAR}\b"),
    re.compile(rf"\b(?P<month>{_MONTH}) (?:the )?{_DAY} (?:of |in )?{_YEAR}\b"),
    re.compile(r"\b(?P<year>\d{4}) (?P<month>\d{1,2}) (?P<day>\d{1,2})\b"),
)
_SLASHED = re.compile(r"\b(\d{1,2}) (\d{1,2}) (\d{4})\b")
_ARTICLES = re.compile(r"\b(?:a|an|the) ")
_CLOSED = ("yes", "no")
_LETTERS = str.maketrans(
    {"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "ı": "i"}
    | {"æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "þ": "th", "Þ": "Th"}
)
"""What Unicode does not take apart into a letter and an accent."""
_NAME = re.compile(r"[^\W\d_a-z][\w.'’-]*(?: [^\W\d_a-z][\w.'’-]*)+")


def mentions(text: str, entity: str) -> bool:
    """Does `text` hold `entity`?

    Case, accents, punctuation and articles do not count; an entity stands as whole words, in its
    order. A date is found in every form of the same day (`05/11/1991` is either of two). A name of
    two or more words is also found without its middle names, or with an initial between; never by
    one of its words alone. Yes and No count only as the first word.

    >>> mentions("She was born on April 27th, 1931.", "27 April 1931")
    True
    >>> [mentions(said, "Žofira Hartesong") for said in ("by Zofira M. Hartesong", "Hartesong")]
    [True, False]

    Raises:
        ValueError: an entity without a letter or digit.
    """
    wanted = set(_readings(entity))
    if not any(wanted):
        raise ValueError(f"mentions: entity {entity!r} has no word")
    if wanted <= set(_CLOSED):
        return next(_readings(text)).split(" ", 1)[0] in wanted
    said = [f" {one} " for one in _readings(text)]
    return any(f" {one} " in text for one in wanted for text in said) or _as_name(text, entity)


def is_closed(entity: str) -> bool:
    """Is it a Yes or a No, which a coin would hit?

    >>> is_closed("Yes,"), is_closed("No fear")
    (True, False)
    """
    return plain_words(entity) in _CLOSED


def _plain(text: str) -> str:
    return plain_words(text.translate(_LETTERS))


def _readings(text: str) -> Iterator[str]:
    """The words of a text, dates as one word each: day first, then month first where it differs."""
    words = _plain(text)
    for pattern in _WRITTEN:
        words = pattern.sub(_written, words)
    day_first = _SLASHED.sub(lambda found: _date(*map(int, found.groups())), words)
    month_first = _SLASHED.sub(
        lambda found: _date(int(found[2]), int(found[1]), int(found[3])), words
    )
    for reading in dict.fromkeys((day_first, month_first)):
        yield _ARTICLES.sub("", f"{reading} ").strip() or reading


def _written(found: re.Match[str]) -> str:
    month = found["month"]
    number = int(month) if month.isdigit() else 1 + [m[:3] for m in _MONTHS].index(month[:3])
    return _date(int(found["day"]), number, int(found["year"]))


def _date(day: int, month: int, year: int) -> str:
    return f"date{year}x{month}x{day}"


def _as_name(text: str, entity: str) -> bool:
    """First and last word of a name, with nothing between but its middle names or initials."""
    if not _NAME.fullmatch(entity.strip()):
        return False
    (first, *middle, last), said = _plain(entity).split(), _plain(text).split()
    starts = [at for at, word in enumerate(said) if word == first]
    ends = [at for at, word in enumerate(said) if word == last]
    return any(
        start < end and all(len(one) == 1 or one in middle for one in said[start + 1 : end])
        for start, end in itertools.product(starts, ends)
    )
