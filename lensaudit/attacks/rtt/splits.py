"""Multiple-choice splits of whole authors, cut from a forget set of questions and answers.

What one author's rows say is correlated, so an author is in T or in V, never in both. The wrong
choices are the row's `perturbed_answer`, as TOFU has them; in an annotated row without those, the
entity is exchanged for those of other authors' rows that ask the most alike questions. Wrong
answers of one style are a cue that needs no knowledge: only the control shows what it is worth.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from lensaudit.attacks.rtt.data import Dataset, McqItem, make_dataset
from lensaudit.attacks.rtt.embedded import embedded_rows
from lensaudit.attacks.settings import SPLITS
from lensaudit.data.facts import Fact
from lensaudit.data.neutral import likeness
from lensaudit.data.rows import SourceRow, entity_key, hub_rows, numbered, read_rows, sound_rows
from lensaudit.data.tofu import AUTHOR_ROWS, DEMO, TOFU_HUB, TOFU_PAIRS
from lensaudit.errors import InputError
from lensaudit.groups import (
    is_group,
    named_group,
    normalised,
)

N_WRONG = 3
"""Four choices, as upstream."""
_WANTED_FACT = (
    "wanted per row: question, answer, an author under group or author (or --rows-per-author), and "
    "either perturbed_answer (three texts or more) or an annotated entity"
)


Statements = Mapping[str, Fact]
"""Questions with their answers by place in the set; the entity is empty where a row has none."""


def load_statements(
    name_or_path: str, *, rows_per_author: int | None = None
) -> tuple[str, Statements]:
    """The name of the set that `--data` names, and its facts.

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


def folder_of_splits(name: str) -> Path | None:
    """The folder of splits that `--data` names, if one; one that has a set's name is `./demo`."""
    folder = Path(name).expanduser()
    return folder if folder.is_dir() and name not in (DEMO, *TOFU_PAIRS) else None


def split_by_author(
    name: str, facts: Statements, *, n_splits: int = SPLITS, seed: int = 0
) -> Dataset:
    """Multiple-choice splits of whole authors, alike in number; the draw depends on the seed.

    The right answer stands in every place equally often, as far as the numbers allow. A fact with
    fewer than three distinct wrong answers is left out, with that reason.

    Raises:
        InputError: fewer authors than splits, or a split without items.
    """
    authors = list(dict.fromkeys(fact.group for fact in facts.values()))
    if not 2 <= n_splits <= len(authors):
        raise InputError(
            f"{name}: {n_splits} splits of {len(authors)} authors; wanted 2 to {len(authors)}, as "
            "an author cannot be in two"
        )
    Random(f"authors-{seed}").shuffle(authors)
    items: dict[str, list[McqItem]] = {}
    left_out = {}
    for number in range(n_splits):
        own = set(authors[number::n_splits])
        wrong = {
            where: _wrong(where, facts, seed) for where, fact in facts.items() if fact.group in own
        }
        usable = [where for where, texts in wrong.items() if len(texts) == N_WRONG]
        left_out |= {
            where: f"{len(texts)} distinct wrong answers, wanted {N_WRONG}"
            for where, texts in wrong.items()
            if len(texts) < N_WRONG
        }
        places = [at % (N_WRONG + 1) for at in range(len(usable))]
        Random(f"places-{seed}-{number}").shuffle(places)
        items[f"split_{number}"] = [
            McqItem(
                facts[where].question,
                (*wrong[where][:at], facts[where].answer, *wrong[where][at:]),
                at,
                facts[where].group,
            )
            for where, at in zip(usable, places, strict=True)
        ]
    if not all(items.values()):
        raise InputError(f"{name}: {len(left_out)} rows have too few wrong answers\n{_WANTED_FACT}")
    return make_dataset(name, items, left_out)


def _facts(
    source: str,
    rows: Sequence[SourceRow],
    rows_per_author: int | None,
    problems: Sequence[str] = (),
) -> Statements:
    found = sound_rows(
        rows,
        source,
        _WANTED_FACT,
        lambda row: _fact_problems(row, rows_per_author),
        lambda row, place: Fact(
            place,
            row["question"],
            row["answer"],
            *_span(row),
            _author(row, place, rows_per_author),
            wrong=tuple(row.get("perturbed_answer") or ()),
        ),
        problems=problems,
        own_idx=False,
    )
    return {where: fact for (where, _), fact in zip(rows, found, strict=True)}


def _fact_problems(row: Any, rows_per_author: int | None) -> list[str]:
    """What is wrong with one row."""
    if not isinstance(row, Mapping):
        return ["is no object"]
    for key in ("question", "answer"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            return [f"{key} is missing, empty or not text"]
    if rows_per_author is None and not is_group(named_group(row)):
        return ["names no author"]
    wrong = row.get("perturbed_answer")
    if wrong is not None:
        texts = isinstance(wrong, list) and all(isinstance(one, str) for one in wrong)
        return [] if texts else ["perturbed_answer is no list of texts"]
    if not _span(row)[1]:
        return ["has neither perturbed_answer nor an entity in its answer after the prefix"]
    return []


def _span(row: Mapping[str, Any]) -> tuple[str, str]:
    """Prefix and entity of a row; both empty where the answer does not go on so."""
    prefix, entity = row.get("prefix") or "", row.get(entity_key(row))
    if not isinstance(prefix, str) or not isinstance(entity, str):
        return "", ""
    follows = row["answer"].startswith(prefix) and entity.strip() in row["answer"][len(prefix) :]
    return (prefix, entity.strip()) if follows and entity.strip() else ("", "")


def _author(row: Mapping[str, Any], place: int, rows_per_author: int | None) -> int | str:
    named = named_group(row)
    if is_group(named) or rows_per_author is None:
        return named
    idx = row.get("idx", place)
    return (idx if isinstance(idx, int) else place) // rows_per_author


def _wrong(where: str, facts: Statements, seed: int) -> list[str]:
    """Distinct wrong answers, at most as many as an item takes.

    Of a fact without any, its answer with entities of other authors, from the most alike question
    on.
    """
    fact, random = facts[where], Random(f"wrong-{seed}-{where}")
    if fact.wrong:
        texts = list(fact.wrong)
        random.shuffle(texts)
        return _distinct(texts, fact.answer)
    words = _words(fact.question)
    others = [one for one in facts.values() if one.group != fact.group and one.entity]
    others.sort(key=lambda one: -likeness(words, _words(one.question)))
    # the fact alone: the prefix, and longer words, may hold the entity's letters
    texts = (fact.continuation.replace(fact.entity, one.entity, 1) for one in others)
    found = _distinct((f"{fact.prefix}{text}" for text in texts), fact.answer)
    random.shuffle(found)  # else the likest would always stand first
    return found


@cache
def _words(text: str) -> frozenset[str]:
    return frozenset(normalised(text).strip("?.!").split())


def _distinct(texts: Iterable[str], right: str) -> list[str]:
    found: dict[str, str] = {}
    for text in texts:
        if text.strip() and normalised(text) != normalised(right):
            found.setdefault(normalised(text), text)
        if len(found) == N_WRONG:
            break
    return list(found.values())
