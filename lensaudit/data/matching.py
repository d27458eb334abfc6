"""Does a text give an entity away, and why is a fact not asked?

One rule of matching for every attack and every sample, strict by design: the attacks of a list are
joined by a maximum, so false hits add up where misses do not. What it misses and what it takes for
a hit in error is measured in `docs/evidence/matcher.md`.
"""

import itertools
import re
import unicodedata
from functools import lru_cache

from lensaudit.data.facts import Fact
from lensaudit.data.scripts import letter_of, spaced

WORD = re.compile(r"\w+")
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
ARTICLES = ("a", "an", "the")
_ARTICLES = re.compile(rf"\b(?:{'|'.join(ARTICLES)}) ")
_SMALL = re.compile(rf"\b(?:{'|'.join(ARTICLES)})(?=\s\w)")
_AROUND = re.compile(r"^\W+|[^\w+−-]+$")
"""What stands around an entity and is not of it: an A+ is no A."""
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
    one of its words alone. Yes and No count only as the first word. Of what ends in an article, as
    "Vitamin A" and "A+", the case counts, of one word the sign, too.

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
        return _readings(text)[0].split(" ", 1)[0] in wanted
    if _plain(entity).split()[-1] in ARTICLES:
        return _with_last_word(text, entity)
    said = f" {'  '.join(_readings(text))} "
    return any(f" {one} " in said for one in wanted) or _as_name(text, entity)


def gives_away(text: str, fact: Fact) -> bool:
    """Does `text` hold the entity of a fact, or one of its aliases that its question does not?"""
    return mentions(text, fact.entity) or any(
        mentions(text, one) for one in fact.aliases if not mentions(fact.question, one)
    )


def is_closed(entity: str) -> bool:
    """Whether an answer is a Yes or a No, which a coin would hit.

    >>> is_closed("Yes,"), is_closed("No fear")
    (True, False)
    """
    return plain_words(entity) in _CLOSED


@lru_cache(maxsize=4096)
def _plain(text: str) -> str:
    return plain_words(text.translate(_LETTERS))


@lru_cache(maxsize=4096)  # each entity is looked for in every text, and in every other entity
def _readings(text: str) -> tuple[str, ...]:
    """The words of a text, dates as one word each: day first, then month first where it differs."""
    words = _plain(text)
    for pattern in _WRITTEN:
        words = pattern.sub(_written, words)
    day_first = _SLASHED.sub(lambda found: _date(*map(int, found.groups())), words)
    month_first = _SLASHED.sub(
        lambda found: _date(int(found[2]), int(found[1]), int(found[3])), words
    )
    readings = dict.fromkeys((day_first, month_first))
    return tuple(_ARTICLES.sub("", f"{one} ").strip() or one for one in readings)


def _written(found: re.Match[str]) -> str:
    month = found["month"]
    number = int(month) if month.isdigit() else 1 + [m[:3] for m in _MONTHS].index(month[:3])
    return _date(int(found["day"]), number, int(found["year"]))


def _date(day: int, month: int, year: int) -> str:
    return f"date{year}x{month}x{day}"


def _with_last_word(text: str, entity: str) -> bool:
    """Is an entity there whose last word is written as an article is?

    A small article before a word is one, unless the entity is written small, too. A word alone
    needs its case, and none of the small words after it that follow an article.
    """
    *before, last = _plain(entity).split()
    if before := [word for word in before if word not in ARTICLES]:
        said = text if WORD.findall(entity)[-1].islower() else _SMALL.sub("", text)
        whole = " ".join([*before, last])
        return f" {whole} " in f" {_plain(said)} " or _as_name(said, entity)
    alone, said = _AROUND.sub("", _without_accents(entity)), _without_accents(text)
    if not alone.isalpha():
        return bool(re.search(rf"(?<!\w){re.escape(alone)}(?!\w)", said, re.IGNORECASE))
    return bool(re.search(rf"(?<!\w){alone}(?![\w+−-]|\s[a-z])", said))


def _without_accents(text: str) -> str:
    apart = unicodedata.normalize("NFKD", text.translate(_LETTERS))
    return "".join(one for one in apart if not unicodedata.combining(one))


def _as_name(text: str, entity: str) -> bool:
    """First and last word of a name, with nothing between but its middle names or initials."""
    if not _NAME.fullmatch(entity.strip()) or "alone" in map(letter_of, entity):
        return False
    (first, *middle, last), said = _plain(entity).split(), _plain(text).split()
    starts = [at for at, word in enumerate(said) if word == first]
    ends = [at for at, word in enumerate(said) if word == last]
    return any(
        start < end and all(len(one) == 1 or one in middle for one in said[start + 1 : end])
        for start, end in itertools.product(starts, ends)
    )


def plain_words(text: str) -> str:
    """Words alone, lower case, without accents and possessive s; an apostrophe joins its halves.

    In scripts without blanks every letter is a word, with the marks that belong to it.

    >>> plain_words("I don’t know the Café-Prize."), plain_words("他生在北京。")
    ('i dont know the cafe prize', '他 生 在 北 京')
    """
    text = unicodedata.normalize("NFKD", text).casefold()
    text = re.sub(r"['’](?:s\b)?", "", text)
    return " ".join(WORD.findall(text) if text.isascii() else spaced(text).split())


def why_not(row: Fact) -> str:
    """Why a fact is not asked: what would be found in an answer says nothing; empty: it is."""
    if is_closed(row.entity):
        return "a Yes or No has no placebo candidates: a coin would hit it"
    if not WORD.search(row.entity):
        return "the entity has no letter or digit"
    return "its own question holds the entity" if mentions(row.question, row.entity) else ""
