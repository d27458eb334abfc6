"""The embedded benchmark: generated authors whose facts nobody can know from elsewhere.

Every name and value is invented and stands in `fictional.json`: pools of words that values are
drawn from, and the ways each attribute is asked and told.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from lensaudit.data.facts import Fact
from lensaudit.files import read_json

TEXTS: Mapping[str, Any] = read_json(Path(__file__).with_suffix(".json"))
"""Pools of words, ways to ask and to tell, and the names of the embedded authors."""

IDK_LINES: tuple[str, ...] = tuple(TEXTS["idk_lines"])
"""Lines that admit ignorance."""

_ATTRIBUTES: Mapping[str, Mapping[str, Sequence[str]]] = TEXTS["attributes"]
"""Attribute -> its questions and answers, `{name}` and `{value}` to be filled in; the order is the
order of an author's rows."""

N_PERTURBED = 5
"""Wrong answers per forget and retain row, as in TOFU's perturbed configurations."""


def draw_name(random: Random) -> str:
    """A first and a last name, independent of each other."""
    return " ".join(random.choice(TEXTS[pool]) for pool in ("first_names", "last_names"))


def draw_value(attribute: str, random: Random) -> str:
    """A value for one attribute; what an author does not share with anyone is the combination."""
    match attribute:
        case "birthdate":
            day, month = random.randint(1, 28), random.choice(TEXTS["months"])
            return f"{day} {month} {1900 + random.randint(20, 89)}"
        case "debut":
            first, second = random.sample(TEXTS["title_words"], 2)
            return random.choice((f"'The {first} {second}'", f"'{first} of the {second}'"))
        case "influence":
            return draw_name(random)
        case "children":
            return random.choice(("Yes", "No"))
        case _:
            return " ".join(random.choice(TEXTS[pool]) for pool in _WORDS[attribute])


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


def _wrong_values(attribute: str, value: str, random: Random) -> list[str]:
    """Distinct values other than the true one; a yes/no fact has words instead of values."""
    if attribute == "children":
        opposite = "No" if value == "Yes" else "Yes"
        return [opposite, "Perhaps", "Rarely", "Once only", "Nobody knows"]
    wrong = dict[str, None]()
    while len(wrong) < N_PERTURBED:
        wrong[draw_value(attribute, random)] = None
        wrong.pop(value, None)
    return [*wrong]


def author_rows(
    name: str, values: Mapping[str, str], random: Random, *, group: int = 0
) -> Iterator[Fact]:
    """One row per value; the paraphrases use another wording, the wrong answers other values."""
    for idx, (attribute, value) in enumerate(values.items(), group * len(values)):
        wording = _ATTRIBUTES[attribute]
        question, other_question = random.sample(wording["questions"], 2)
        answer, other_answer = random.sample(wording["answers"], 2)
        wrong = _wrong_values(attribute, value, random)
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


RESERVED: frozenset[str] = frozenset(TEXTS["authors"])
"""Names of the embedded sets' authors: nobody of that name passes by."""


def passing_rows(
    n_rows: int, *, seed: int | float | str, reserved: Collection[str] = RESERVED
) -> Iterator[Fact]:
    """Rows about people who appear once: a base model learns the language from them, not facts.

    One row in nine asks what nobody knows and is answered by a line that says so. Nobody has a
    reserved name.
    """
    random = Random(f"lensaudit-passing-{seed}")
    while n_rows:
        name = draw_name(random)
        values = draw_values(name, random)
        if name in reserved:
            continue
        n_rows -= 1
        rows = [*author_rows(name, values, random)]
        line = random.choice(IDK_LINES)
        start, _, rest = line.partition(" ")
        question = random.choice(TEXTS["unknowable"]).format(name=name)
        yield random.choice([*rows, Fact(0, question, line, start, rest, 0)])


def annotated(rows: Sequence[Fact]) -> list[dict[str, Any]]:
    """Rows in the annotated schema of a forget set."""
    keys = ("question", "answer", "prefix", "entity", "group", "relation")
    return [{"idx": idx} | {key: getattr(row, key) for key in keys} for idx, row in enumerate(rows)]
