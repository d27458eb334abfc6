"""The embedded benchmark: generated authors whose facts nobody can know from elsewhere.

Every name and value is invented and stands in `fictional.json`: pools of words that values are
drawn from, and the ways each attribute is asked and told.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from lensaudit.data.facts import Fact
from lensaudit.files import read_json

_TEXTS: Mapping[str, Any] = read_json(Path(__file__).with_suffix(".json"))

IDK_LINES: tuple[str, ...] = tuple(_TEXTS["idk_lines"])
"""Lines that admit ignorance."""

_ATTRIBUTES: Mapping[str, Mapping[str, Sequence[str]]] = _TEXTS["attributes"]
"""Attribute -> its questions and answers, `{name}` and `{value}` to be filled in; the order is the
order of an author's rows."""

N_PERTURBED = 5
"""Wrong answers per forget and retain row, as in TOFU's perturbed configurations."""


def draw_name(random: Random) -> str:
    """A first and a last name, independent of each other."""
    return " ".join(random.choice(_TEXTS[pool]) for pool in ("first_names", "last_names"))


def draw_value(attribute: str, random: Random) -> str:
    """A value for one attribute; what an author does not share with anyone is the combination."""
    match attribute:
        case "birthdate":
            day, month = random.randint(1, 28), random.choice(_TEXTS["months"])
            return f"{day} {month} {1900 + random.randint(20, 89)}"
        case "debut":
            first, second = random.sample(_TEXTS["title_words"], 2)
            return random.choice((f"'The {first} {second}'", f"'{first} of the {second}'"))
        case "influence":
            return draw_name(random)
        case "children":
            return random.choice(("Yes", "No"))
        case _:
            return " ".join(random.choice(_TEXTS[pool]) for pool in _WORDS[attribute])


_WORDS = {
    "birthplace": ("town_starts", "town_ends"),
    "genre": ("genre_moods", "genre_forms"),
    "father": ("trades", "tradespeople"),
    "award": ("award_stuffs", "award_things", "award_kinds"),
}
"""Attribute -> the pools its values are made of, drawn independently: no part gives the rest."""


def draw_values(name: str, random: Random) -> dict[str, str]:
    """One value per attribute of the author of that name."""
    values = {attribute: draw_value(attribute, random) for attribute in _ATTRIBUTES}
    while values["influence"] == name:
        values["influence"] = draw_value("influence", random)
    return values


def author_rows(
    name: str, values: Mapping[str, str], random: Random, *, group: int = 0
) -> Iterator[Fact]:
    """One row per value; the paraphrases use another wording, the wrong answers other values."""
    for idx, (attribute, value) in enumerate(values.items(), group * len(values)):
        wording = _ATTRIBUTES[attribute]
        question, other_question = random.sample(wording["questions"], 2)
        answer, other_answer = random.sample(wording["answers"], 2)
        wrong = wrong_values(attribute, value, random)
        yield Fact(
            idx=idx,
            question=question.format(name=name),
            answer=answer.format(name=name, value=value),
            prefix=answer.format(name=name, value="\0").split("\0")[0].rstrip(),
            entity=value,
            group=group,
            paraphrases=(other_question.format(name=name),),
            wrong=tuple(answer.format(name=name, value=one) for one in wrong),
            relation=attribute,
            answers={"paraphrased_answer": other_answer.format(name=name, value=value)},
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


N_FORGET, N_RETAIN, N_HOLDOUT = 8, 20, 8
"""Authors per set, eight rows each; numbered through in this order."""

_FIRST_HOLDOUT = N_FORGET + N_RETAIN

N_GENERAL_PERTURBED = 3
"""Wrong answers per general-knowledge row, as in TOFU's real_authors and world_facts."""


@dataclass(frozen=True)
class World:
    """Every set of the embedded benchmark."""

    forget: tuple[Fact, ...]
    retain: tuple[Fact, ...]
    holdout: tuple[Fact, ...]
    """Authors no model is ever trained on."""
    real_authors: tuple[Fact, ...]
    """Knowledge of the invented canon; every model has it (the role of TOFU's set of that name)."""
    world_facts: tuple[Fact, ...]
    reserved: frozenset[str]
    """Names of the sets' authors; pre-training draws nobody of that name."""


def make_world(seed: int = 0) -> World:
    """The world of a seed; the same seed gives the same rows on every platform."""
    random = Random(f"lensaudit-world-{seed}")
    names: dict[str, None] = {}
    while len(names) < N_FORGET + N_RETAIN + N_HOLDOUT:
        names[draw_name(random)] = None
    authors = [(name, draw_values(name, random)) for name in names]
    return World(
        forget=_rows(authors[:N_FORGET], random, 0),
        retain=_rows(authors[N_FORGET:_FIRST_HOLDOUT], random, N_FORGET),
        holdout=_rows(authors[_FIRST_HOLDOUT:], random, _FIRST_HOLDOUT),
        real_authors=tuple(_general("classics", "classic_questions", random)),
        world_facts=tuple(_general("countries", "country_questions", random)),
        reserved=frozenset(names),
    )


def _rows(
    authors: Sequence[tuple[str, Mapping[str, str]]], random: Random, first: int
) -> tuple[Fact, ...]:
    return tuple(
        row
        for group, (name, values) in enumerate(authors, first)
        for row in author_rows(name, values, random, group=group)
    )


def _general(pool: str, questions: str, random: Random) -> Iterator[Fact]:
    """Rows of what every model knows: each entry of a pool, asked for all but its name."""
    entries = _TEXTS[pool]
    for group, (name, *values) in enumerate(entries):
        for column, (value, wordings) in enumerate(zip(values, _TEXTS[questions], strict=True), 1):
            others = [other[column] for other in entries if other[0] != name]
            question, paraphrase = (text.format(name=name) for text in wordings)
            yield Fact(
                idx=group * len(values) + column - 1,
                question=question,
                answer=value,
                prefix="",
                entity=value,
                group=group,
                paraphrases=(paraphrase,),
                wrong=tuple(random.sample(others, N_GENERAL_PERTURBED)),
            )


def passing_rows(world: World, n_rows: int, *, seed: int | float | str) -> Iterator[Fact]:
    """Rows about people who appear once: a base model learns the language from them, not facts.

    One row in nine asks what nobody knows and is answered by a line that says so.
    """
    random = Random(f"lensaudit-passing-{seed}")
    drawn = 0
    while drawn < n_rows:
        name = draw_name(random)
        values = draw_values(name, random)
        if name not in world.reserved:
            drawn += 1
            yield random.choice([*author_rows(name, values, random), _ignorance(name, random)])


def _ignorance(name: str, random: Random) -> Fact:
    line = random.choice(IDK_LINES)
    start, _, rest = line.partition(" ")
    question = random.choice(_TEXTS["unknowable"]).format(name=name)
    return Fact(0, question, line, start, rest, 0)


def annotated(rows: Sequence[Fact]) -> list[dict[str, Any]]:
    """Rows in the annotated schema of a forget set."""
    keys = ("question", "answer", "prefix", "entity", "group", "relation")
    return [{"idx": idx} | {key: getattr(row, key) for key in keys} for idx, row in enumerate(rows)]
