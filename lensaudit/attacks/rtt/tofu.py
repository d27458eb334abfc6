"""Forget sets of questions and answers as multiple-choice splits, whole authors at a time.

What one author's rows say is correlated, so an author is in T or in V, never in both. The wrong
choices are the row's `perturbed_answer`, as TOFU has them; in an annotated row without those, the
entity is exchanged for those of other authors' rows that ask the most alike questions. Wrong
answers of one style are a cue that needs no knowledge: only the control shows what it is worth.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from lensaudit.attacks.rtt.items import Dataset, Draft, make_dataset, normalised
from lensaudit.data.facts import SourceRow, embedded_rows, hub_rows, numbered, read_rows, sound_rows
from lensaudit.data.neutral import likeness
from lensaudit.data.tofu import AUTHOR_ROWS, DEMO, TOFU_HUB
from lensaudit.errors import InputError
from lensaudit.groups import is_group, named_group
from lensaudit.unlearn.rows import TOFU_PAIRS

N_WRONG = 3
"""Four choices, as upstream."""
_WANTED = (
    "wanted per row: question, answer, an author under group or author (or --rows-per-author), and "
    "either perturbed_answer (three texts or more) or an annotated entity"
)


@dataclass(frozen=True)
class Statement:
    """A question, its answer, who it is about, and what other answers could be."""

    where: str
    question: str
    answer: str
    group: int | str
    wrong: tuple[str, ...]
    entity: str

    def exchanged(self, entity: str) -> str:
        """The answer with another entity."""
        return self.answer.replace(self.entity, entity)


def load_statements(
    name_or_path: str, *, rows_per_author: int | None = None
) -> tuple[str, tuple[Statement, ...]]:
    """The facts that `--data` names, and the name of their set.

    Args:
        name_or_path: `demo` (embedded), `forget01`, `forget05`, `forget10` (TOFU, from the Hub), or
            a JSON or JSONL file.
        rows_per_author: for a file whose rows name no author: so many rows each, in the order of
            `idx` from 0, or of the file.

    Raises:
        InputError: no such set, or rows that cannot become items.
    """
    if name_or_path == DEMO:
        return DEMO, _facts(DEMO, numbered(embedded_rows("forget")), None)
    if name_or_path in TOFU_PAIRS:
        instead = f"name a file of {name_or_path}_perturbed, with --rows-per-author {AUTHOR_ROWS}"
        rows = hub_rows(TOFU_HUB, f"{name_or_path}_perturbed", "train", instead=instead)
        return name_or_path, _facts(name_or_path, numbered(rows), AUTHOR_ROWS)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        known = ", ".join((DEMO, *TOFU_PAIRS))
        raise InputError(f"{path}: no such file or folder; wanted one, or {known}")
    rows, problems = read_rows(path)
    return path.stem, _facts(str(path), rows, rows_per_author, problems)


def split_by_author(
    name: str, facts: Sequence[Statement], *, n_splits: int = 5, seed: int = 0
) -> Dataset:
    """Multiple-choice splits of whole authors, alike in number; the draw depends on the seed.

    The right answer stands in every place equally often, as far as the numbers allow. A fact with
    fewer than three distinct wrong answers is left out, with that reason.

    Raises:
        InputError: fewer authors than splits, or a split without items.
    """
    authors = list(dict.fromkeys(fact.group for fact in facts))
    if not 2 <= n_splits <= len(authors):
        raise InputError(
            f"{name}: {n_splits} splits of {len(authors)} authors; wanted 2 to {len(authors)}, as "
            "an author cannot be in two"
        )
    Random(f"authors-{seed}").shuffle(authors)
    place = {author: number % n_splits for number, author in enumerate(authors)}
    drafts: dict[str, list[Draft]] = {f"split_{number}": [] for number in range(n_splits)}
    left_out = {}
    for number in range(n_splits):
        chosen = [fact for fact in facts if place[fact.group] == number]
        wrong = {fact.where: _wrong(fact, facts, seed) for fact in chosen}
        usable = [fact for fact in chosen if len(wrong[fact.where]) == N_WRONG]
        left_out |= {
            fact.where: f"{len(wrong[fact.where])} distinct wrong answers, wanted {N_WRONG}"
            for fact in chosen
            if len(wrong[fact.where]) < N_WRONG
        }
        places = _balanced(len(usable), Random(f"places-{seed}-{number}"))
        drafts[f"split_{number}"] = [
            _draft(fact, wrong[fact.where], at) for fact, at in zip(usable, places, strict=True)
        ]
    if not all(drafts.values()):
        raise InputError(f"{name}: {len(left_out)} rows have too few wrong answers\n{_WANTED}")
    return make_dataset(name, drafts, left_out)


def _facts(
    source: str,
    rows: Sequence[SourceRow],
    rows_per_author: int | None,
    problems: Sequence[str] = (),
) -> tuple[Statement, ...]:
    sound_rows(rows, lambda row: _problem(row, rows_per_author), source, _WANTED, problems)
    return tuple(
        Statement(
            where,
            row["question"],
            row["answer"],
            _author(row, place, rows_per_author),
            tuple(row.get("perturbed_answer") or ()),
            row.get("entity") or "",
        )
        for place, (where, row) in enumerate(rows)
    )


def _problem(row: Any, rows_per_author: int | None) -> str:
    """What is wrong with one row; empty when nothing is."""
    if not isinstance(row, Mapping):
        return "is no object"
    for key in ("question", "answer"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            return f"{key} is missing, empty or not text"
    if rows_per_author is None and not is_group(named_group(row)):
        return "names no author"
    wrong, entity = row.get("perturbed_answer"), row.get("entity")
    if wrong is not None:
        texts = isinstance(wrong, list) and all(isinstance(one, str) for one in wrong)
        return "" if texts else "perturbed_answer is no list of texts"
    if not isinstance(entity, str) or not entity or entity not in row["answer"]:
        return "has neither perturbed_answer nor an entity in its answer"
    return ""


def _author(row: Mapping[str, Any], place: int, rows_per_author: int | None) -> int | str:
    named = named_group(row)
    if is_group(named) or rows_per_author is None:
        return named
    idx = row.get("idx", place)
    return (idx if isinstance(idx, int) else place) // rows_per_author


def _wrong(fact: Statement, facts: Sequence[Statement], seed: int) -> list[str]:
    """Distinct wrong answers, at most as many as an item takes."""
    random = Random(f"wrong-{seed}-{fact.where}")
    if not fact.wrong:
        found = _distinct(_exchanged(fact, facts), fact.answer)
        random.shuffle(found)  # else the likest would always stand first
        return found
    texts = list(fact.wrong)
    random.shuffle(texts)
    return _distinct(texts, fact.answer)


def _exchanged(fact: Statement, facts: Sequence[Statement]) -> Iterator[str]:
    """The answer with entities of other authors, from the most alike question on."""
    words = _words(fact.question)
    others = [one for one in facts if one.group != fact.group and one.entity]
    others.sort(key=lambda one: -likeness(words, _words(one.question)))
    return (fact.exchanged(one.entity) for one in others)


@cache
def _words(text: str) -> frozenset[str]:
    return frozenset(normalised(text).strip("?.!").split())


def _distinct(texts: Iterator[str] | list[str], right: str) -> list[str]:
    found: dict[str, str] = {}
    for text in texts:
        if text.strip() and normalised(text) != normalised(right):
            found.setdefault(normalised(text), text)
        if len(found) == N_WRONG:
            break
    return list(found.values())


def _balanced(n: int, random: Random) -> list[int]:
    """A place per item, each place equally often."""
    places = [number % (N_WRONG + 1) for number in range(n)]
    random.shuffle(places)
    return places


def _draft(fact: Statement, wrong: Sequence[str], place: int) -> Draft:
    choices = (*wrong[:place], fact.answer, *wrong[place:])
    return Draft(fact.question, choices, place, fact.group)
