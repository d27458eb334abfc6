"""The world of the embedded family: whom its sets are about, and what every model knows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from lensaudit.data.facts import Fact
from lensaudit.data.fictional import TEXTS, author_rows, draw_name, draw_values

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
    entries = TEXTS[pool]
    for group, (name, *values) in enumerate(entries):
        for column, (value, wordings) in enumerate(zip(values, TEXTS[questions], strict=True), 1):
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
