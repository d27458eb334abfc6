"""Which sets an audit needs: forget, retain, holdout, general knowledge; and their files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from lensaudit.data.fictional import pools
from lensaudit.data.fictional.authors import (
    Author,
    FictionalRow,
    author_rows,
    draw_author,
    draw_name,
)
from lensaudit.data.fictional.templates import CLASSIC_QUESTIONS, COUNTRY_QUESTIONS, UNKNOWABLE
from lensaudit.files import make_folder, write_json, write_jsonl

N_FORGET, N_RETAIN, N_HOLDOUT = 8, 20, 8
"""Authors per set, eight rows each; numbered through in this order."""
_FIRST_HOLDOUT = N_FORGET + N_RETAIN
N_GENERAL_PERTURBED = 3
"""Wrong answers per general-knowledge row, as in TOFU's real_authors and world_facts."""


@dataclass(frozen=True)
class World:
    """Every set of the embedded benchmark."""

    forget: tuple[FictionalRow, ...]
    retain: tuple[FictionalRow, ...]
    holdout: tuple[FictionalRow, ...]
    """Authors no model is ever trained on."""
    real_authors: tuple[FictionalRow, ...]
    """Knowledge of the invented canon; every model has it (the role of TOFU's set of that name)."""
    world_facts: tuple[FictionalRow, ...]
    idk: tuple[str, ...]
    reserved: frozenset[str]
    """Names of the sets' authors; pre-training draws nobody of that name."""


def make_world(seed: int = 0) -> World:
    """The world of a seed; the same seed gives the same rows on every platform."""
    random = Random(f"lensaudit-world-{seed}")
    names: dict[str, None] = {}
    while len(names) < N_FORGET + N_RETAIN + N_HOLDOUT:
        names[draw_name(random)] = None
    authors = [draw_author(random, name=name) for name in names]
    return World(
        forget=_rows(authors[:N_FORGET], random, 0),
        retain=_rows(authors[N_FORGET:_FIRST_HOLDOUT], random, N_FORGET),
        holdout=_rows(authors[_FIRST_HOLDOUT:], random, _FIRST_HOLDOUT),
        real_authors=tuple(_classics(random)),
        world_facts=tuple(_countries(random)),
        idk=pools.IDK_LINES,
        reserved=frozenset(names),
    )


def _rows(authors: Sequence[Author], random: Random, first: int) -> tuple[FictionalRow, ...]:
    return tuple(
        row
        for group, author in enumerate(authors, first)
        for row in author_rows(author, random, group=group)
    )


def _countries(random: Random) -> Iterator[FictionalRow]:
    for group, (country, *values) in enumerate(pools.COUNTRIES):
        for column, (value, wordings) in enumerate(zip(values, COUNTRY_QUESTIONS, strict=True)):
            others = [other[column + 1] for other in pools.COUNTRIES if other[0] != country]
            question, paraphrase = (text.format(country=country) for text in wordings)
            yield _general_row(question, paraphrase, value, others, random, group)


def _classics(random: Random) -> Iterator[FictionalRow]:
    for group, (title, *values) in enumerate(pools.CLASSICS):
        for column, (value, wordings) in enumerate(zip(values, CLASSIC_QUESTIONS, strict=True)):
            others = [other[column + 1] for other in pools.CLASSICS if other[0] != title]
            question, paraphrase = (text.format(title=title) for text in wordings)
            yield _general_row(question, paraphrase, value, others, random, group)


def _general_row(
    question: str, paraphrase: str, value: str, others: list[str], random: Random, group: int
) -> FictionalRow:
    return FictionalRow(
        question=question,
        answer=value,
        prefix="",
        entity=value,
        paraphrased_question=paraphrase,
        paraphrased_answer=value,
        perturbed_answer=tuple(random.sample(others, N_GENERAL_PERTURBED)),
        group=group,
    )


def passing_rows(world: World, n_rows: int, *, seed: int | float | str) -> Iterator[FictionalRow]:
    """Rows about people who appear once: a base model learns the language from them, not facts.

    One row in nine asks what nobody knows and is answered by a line that says so.
    """
    random = Random(f"lensaudit-passing-{seed}")
    drawn = 0
    while drawn < n_rows:
        author = draw_author(random)
        if author.name not in world.reserved:
            drawn += 1
            yield random.choice([*author_rows(author, random), _ignorance(author, random)])


def _ignorance(author: Author, random: Random) -> FictionalRow:
    line = random.choice(pools.IDK_LINES)
    start, _, rest = line.partition(" ")
    return FictionalRow(random.choice(UNKNOWABLE).format(name=author.name), line, start, rest)


def annotated(rows: Sequence[FictionalRow]) -> list[dict[str, Any]]:
    """Rows in the annotated schema of a forget set."""
    return [
        {
            "idx": idx,
            "question": row.question,
            "answer": row.answer,
            "prefix": row.prefix,
            "entity": row.entity,
            "group": row.group,
        }
        for idx, row in enumerate(rows)
    ]


def write_world(world: World, folder: Path) -> Path:
    """Write every set: annotated JSON, and one JSONL per TOFU configuration name."""
    make_folder(folder)
    write_json(folder / "forget.json", annotated(world.forget))
    write_json(folder / "retain.json", annotated(world.retain))
    write_jsonl(folder / "forget10_perturbed.jsonl", map(_full_row, world.forget))
    write_jsonl(folder / "retain_perturbed.jsonl", map(_full_row, world.retain))
    write_jsonl(folder / "real_authors_perturbed.jsonl", map(_general, world.real_authors))
    write_jsonl(folder / "world_facts_perturbed.jsonl", map(_general, world.world_facts))
    write_jsonl(folder / "holdout10.jsonl", map(_plain, world.holdout))
    write_jsonl(folder / "idk.jsonl", ({"idk": line} for line in world.idk))
    return folder


def _full_row(row: FictionalRow) -> Mapping[str, Any]:
    return {
        "question": row.question,
        "answer": row.answer,
        "paraphrased_answer": row.paraphrased_answer,
        "paraphrased_question": row.paraphrased_question,
        "perturbed_answer": list(row.perturbed_answer),
        "group": row.group,
    }


def _general(row: FictionalRow) -> Mapping[str, Any]:
    return {
        "question": row.question,
        "answer": row.answer,
        "perturbed_answer": list(row.perturbed_answer),
    }


def _plain(row: FictionalRow) -> Mapping[str, Any]:
    return {"question": row.question, "answer": row.answer, "group": row.group}


def corpus_text(rows: Iterable[FictionalRow]) -> Iterator[str]:
    """The text a tokenizer is trained on: raw and bare, as a chat template leaves it."""
    for row in rows:
        yield f"Question: {row.question}\nAnswer: {row.answer}"
        yield row.question
        yield row.answer
