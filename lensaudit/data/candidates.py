"""What is asked of a model, why a fact is not asked, and does a text give an entity away?

One rule of matching for every attack and every sample, strict by design: the attacks of a list are
joined by a maximum, so false hits add up where misses do not. What it misses and what it takes for
a hit in error is measured in `docs/worst_case.md`.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lensaudit.data.facts import Fact, embedded_rows, hub_rows, read_rows, validate, with_variants
from lensaudit.data.tofu import DEMO, FORGET10, TOFU_HUB
from lensaudit.errors import InputError
from lensaudit.files import digest
from lensaudit.groups import own_group
from lensaudit.scores.stats import ENOUGH

N_PLACEBOS = ENOUGH
N_SHOTS = 3
"""Solved questions before the asked one in the few-shot attack."""
_WORD = re.compile(r"\w+")
_QUOTES = "\"'“”‘’«»"  # the quotes themselves

Kind = Literal["date", "number", "title", "name", "phrase"]


@dataclass(frozen=True)
class Candidate:
    """One fact of the forget set."""

    row: Fact
    placebos: tuple[str, ...] = ()
    """Entities of the same kind, those of the likest questions first."""
    shots: tuple[tuple[str, str], ...] = ()
    """Questions and answers of other authors that do not hold the entity."""
    unscored: str | None = None
    """Why it is not asked; None where it is."""

    @property
    def paraphrase(self) -> str | None:
        """The question in other words, where the data set has one."""
        return next(iter(self.row.paraphrases), None)

    @property
    def candidates(self) -> tuple[str, ...]:
        """The true entity, then the placebos."""
        return (self.row.entity, *self.placebos)


def facts_of(data: str, examples: Sequence[Fact]) -> tuple[Candidate, ...]:
    """The facts of a forget set, in its order.

    Args:
        data: name or path of the set: what else it holds is looked up beside it.
        examples: its annotated rows.

    Raises:
        InputError: no fact can be asked.
    """
    rows = variants_of(data, examples)
    pool = _pool([*rows, *(neighbours() if data == DEMO else ())])
    facts = tuple(_fact(row, rows, pool) for row in rows)
    if all(fact.unscored for fact in facts):
        raise InputError(
            f"{data}: none of the {len(facts)} facts can be asked ({facts[0].unscored}); wanted "
            "entities that their question does not hold, with others of the same kind beside them"
        )
    return facts


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
    if data == DEMO:
        return with_variants(examples, embedded_rows("forget"))
    if data == FORGET10:
        rows = hub_rows(TOFU_HUB, "forget10_perturbed", "train", instead=_WANTED)
        return with_variants(examples, rows)
    path = Path(data).expanduser()
    path = path / "forget10_perturbed.jsonl" if path.is_dir() else path
    rows = [row for _, row in read_rows(path)[0]] if path.exists() else []
    return with_variants(examples, rows)


def neighbours() -> list[Fact]:
    """Rows of other authors beside the embedded set, and their perturbed answers."""
    rows = embedded_rows("retain")
    return with_variants(validate(rows, "retain"), rows)


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


@dataclass(frozen=True)
class _Pooled:
    """An entity that may stand in as a placebo, and the words of the row it comes from."""

    entity: str
    kind: Kind
    words: frozenset[str]
    frame: int
    """Of the row, to compare rows once for all entities in them."""


def _pool(rows: Sequence[Fact]) -> list[_Pooled]:
    found = []
    for frame, row in enumerate(rows):
        texts = [row.entity, *(swapped_entity(row, other) for other in row.wrong)]
        words = _frame(row)
        found += [_Pooled(text, kind_of(text), words, frame) for text in texts if text]
    return found


def _frame(row: Fact) -> frozenset[str]:
    """The words of question and prefix that are no names: what kind of fact is asked for."""
    return frozenset(
        word for word in _WORD.findall(f"{row.question} {row.prefix}") if not word[0].isupper()
    )


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


def _fact(row: Fact, rows: Sequence[Fact], pool: Sequence[_Pooled]) -> Candidate:
    if is_closed(row.entity):
        return Candidate(row, unscored="a Yes or No has no placebo candidates: a coin would hit it")
    if not _WORD.search(row.entity):
        return Candidate(row, unscored="the entity has no letter or digit")
    if mentions(row.question, row.entity):
        return Candidate(row, unscored="its own question holds the entity")
    placebos = _placebos(row, pool)
    if not placebos:
        return Candidate(row, unscored="no placebo candidates of its kind")
    return Candidate(row, placebos, tuple(_shots(row, rows)))


def _placebos(row: Fact, pool: Sequence[_Pooled]) -> tuple[str, ...]:
    """The row's own, then entities of the same kind by how much rows' words agree, then by hash."""
    words, kind = _frame(row), kind_of(row.entity)
    likeness: dict[int, float] = {}

    def order(one: _Pooled) -> tuple[float, str]:
        if one.frame not in likeness:
            union = len(words | one.words)
            likeness[one.frame] = len(words & one.words) / union if union else 1.0
        return -likeness[one.frame], digest([row.idx, one.entity])

    found: dict[str, str] = {}
    alike = sorted((one for one in pool if one.kind == kind), key=order)
    for entity in (*row.placebos, *(one.entity for one in alike)):
        if len(found) == N_PLACEBOS:
            break
        key = entity.casefold().strip()
        if key in found or not _WORD.search(key) or is_closed(entity):
            continue
        if mentions(entity, row.entity) or mentions(row.entity, entity):
            continue
        if not mentions(row.question, entity):
            found[key] = entity.strip()
    return tuple(found.values())


def _shots(row: Fact, examples: Sequence[Fact]) -> Iterable[tuple[str, str]]:
    """The same for all facts of an author, but for those that hold the entity."""
    others = [one for one in examples if one.group != row.group and not is_closed(one.entity)]
    others.sort(key=lambda one: digest([str(row.group), one.idx]))
    clean = (one for one in others if not mentions(f"{one.question} {one.answer}", row.entity))
    return [(one.question, one.answer) for _, one in zip(range(N_SHOTS), clean, strict=False)]


def lost(facts: Sequence[Candidate], reasons: Mapping[int, str]) -> tuple[Candidate, ...]:
    """The facts, with those unscored that the tokenizer leaves no token of."""
    return tuple(
        replace(fact, unscored=fact.unscored or reasons[fact.row.idx])
        if fact.row.idx in reasons
        else fact
        for fact in facts
    )


def n_without_author(facts: Sequence[Candidate]) -> int:
    """Rows that name no group, each of which is its own author."""
    return sum(fact.row.group == own_group(fact.row.idx) for fact in facts)


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
    for said in _readings(text):
        if wanted <= set(_CLOSED):
            return said.split(" ", 1)[0] in wanted
        if any(f" {one} " in f" {said} " for one in wanted):
            return True
    return _as_name(text, entity)


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
