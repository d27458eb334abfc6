"""Who is asked about: authors drawn from the pools, and one question-answer row per fact."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from lensaudit.data.fictional import pools
from lensaudit.data.fictional.templates import WORDINGS

N_PERTURBED = 5
"""Wrong answers per forget and retain row, as in TOFU's perturbed configurations."""


@dataclass(frozen=True)
class Author:
    """One person and the facts about them."""

    name: str
    facts: dict[str, str] = field(default_factory=dict)
    """Attribute -> value."""


@dataclass(frozen=True)
class FictionalRow:
    """One question with its answer and the variants the metrics need."""

    question: str
    answer: str
    prefix: str
    """Start of the answer, up to the entity, without the blank between them."""
    entity: str
    paraphrased_question: str = ""
    paraphrased_answer: str = ""
    perturbed_answer: tuple[str, ...] = ()
    group: int = 0
    """The author's number within the set; intervals count it."""


def draw_name(random: Random) -> str:
    """A first and a last name, independent of each other."""
    return f"{random.choice(pools.FIRST_NAMES)} {random.choice(pools.LAST_NAMES)}"


def draw_value(attribute: str, random: Random) -> str:
    """A value for one attribute; what an author does not share with anyone is the combination."""
    match attribute:
        case "birthdate":
            return f"{random.randint(1, 28)} {random.choice(pools.MONTHS)} {_year(random)}"
        case "debut":
            first, second = random.sample(pools.TITLE_WORDS, 2)
            return random.choice((f"'The {first} {second}'", f"'{first} of the {second}'"))
        case "influence":
            return draw_name(random)
        case "children":
            return random.choice(("Yes", "No"))
        case _:
            return " ".join(random.choice(words) for words in _WORDS[attribute])


def _year(random: Random) -> int:
    return 1900 + random.randint(20, 89)


_WORDS = {
    "birthplace": (pools.TOWN_STARTS, pools.TOWN_ENDS),
    "genre": (pools.GENRE_MOODS, pools.GENRE_FORMS),
    "father": (pools.TRADES, pools.TRADESPEOPLE),
    "award": (pools.AWARD_STUFFS, pools.AWARD_THINGS, pools.AWARD_KINDS),
}
"""Attribute -> the words its values are made of, drawn independently: no part gives the rest."""


def draw_author(random: Random, *, name: str | None = None) -> Author:
    """An author with one value per attribute."""
    name = name or draw_name(random)
    facts = {attribute: draw_value(attribute, random) for attribute in WORDINGS}
    while facts["influence"] == name:
        facts["influence"] = draw_value("influence", random)
    return Author(name, facts)


def author_rows(author: Author, random: Random, *, group: int = 0) -> Iterator[FictionalRow]:
    """One row per fact; the paraphrases use another wording, the perturbed answers other values."""
    for attribute, value in author.facts.items():
        wording = WORDINGS[attribute]
        question, other_question = random.sample(wording.questions, 2)
        answer, other_answer = random.sample(wording.answers, 2)
        prefix = answer.format(name=author.name, value="\0").split("\0")[0].rstrip()
        wrong = wrong_values(attribute, value, random)
        yield FictionalRow(
            question=question.format(name=author.name),
            answer=answer.format(name=author.name, value=value),
            prefix=prefix,
            entity=value,
            paraphrased_question=other_question.format(name=author.name),
            paraphrased_answer=other_answer.format(name=author.name, value=value),
            perturbed_answer=tuple(answer.format(name=author.name, value=one) for one in wrong),
            group=group,
        )


def wrong_values(attribute: str, value: str, random: Random) -> list[str]:
    """Distinct values other than the true one; a yes/no fact has words instead of values."""
    if attribute == "children":
        opposite = "No" if value == "Yes" else "Yes"
        return [opposite, "Perhaps", "Rarely", "Once only", "Nobody knows"]
    wrong: list[str] = []
    while len(wrong) < N_PERTURBED:
        other = draw_value(attribute, random)
        if other != value and other not in wrong:
            wrong.append(other)
    return wrong
