"""What is asked: multiple-choice items in splits, one of which is held out per run.

As files they are `split_0.jsonl`, `split_1.jsonl` …, in the format of
github.com/aghyad-deeb/unlearning_evaluation @ 26be6ba: one object per line with `question`,
`choices` (texts or numbers) and `answer` (place of the right one, from 0). An optional `group` or
`author` names the author or entity; other keys are ignored.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any, Literal

from lensaudit.attacks.settings import Policy
from lensaudit.data.rows import read_rows, sound_rows
from lensaudit.errors import InputError
from lensaudit.files import make_folder, write_jsonl
from lensaudit.groups import (
    author_key,
    group_problem,
    grouped,
    named_group,
    normalised,
    own_group,
)
from lensaudit.text import digest

LETTERS = "ABCDEFGH"
"""Names of the options; a data set has at most so many per item."""


@dataclass(frozen=True)
class McqItem:
    """One multiple-choice question."""

    question: str
    choices: tuple[str, ...]
    answer: int
    """Place of the right choice, from 0."""
    group: Any = None
    """The author or entity, a `Group`, which no two splits may share; None until a data set is made
    of it: an item that names none is its own."""
    idx: int = -1
    """Number in the data set, counted from 0 over its splits in order."""

    @property
    def right(self) -> str:
        """Text of the right choice."""
        return self.choices[self.answer]


LAST_YEAR = 2024
"""Years after it cannot be known; `rtt.md` section 2 counts them in Random Birthdays."""
Kind = Literal[
    "ambiguous",
    "repeated",
    "leak",
    "shared_group",
    "shared_entity",
    "duplicate_choice",
    "sorted",
    "future_year",
]
MEANINGS: dict[Kind, str] = {
    "ambiguous": "the right answer stands twice among the choices",
    "repeated": "the same question twice in one split",
    "leak": "the same question in several splits",
    "shared_group": "the same author or entity in several splits",
    "shared_entity": "an entity that a row of another split names: training on that tells it",
    "duplicate_choice": "a choice stands twice",
    "sorted": "choices always ascend: a letter is a rank",
    "future_year": f"choices hold years after {LAST_YEAR}",
}


@dataclass(frozen=True)
class Defect:
    """One finding and the items it concerns."""

    kind: Kind
    idx: tuple[int, ...]
    detail: str

    @property
    def blocks(self) -> bool:
        """Whether a run refuses it unless told otherwise: V accuracy would mean something else."""
        return self.kind in ("ambiguous", "repeated", "leak", "shared_group", "shared_entity")


@dataclass(frozen=True)
class Dataset:
    """Multiple-choice items in splits that take turns in being held out."""

    name: str
    splits: Mapping[str, tuple[McqItem, ...]]
    """By name, in the natural order of names."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Place of a row -> why it is no item here; counted in the log."""

    @property
    def items(self) -> tuple[McqItem, ...]:
        """Items of all splits by idx."""
        return tuple(chain(*self.splits.values()))

    @property
    def n_choices(self) -> int:
        """Options per item; chance is one in so many."""
        return len(self.items[0].choices)

    @property
    def digest(self) -> str:
        """Content hash of the splits and their names, apart from numbers."""
        asked = {
            name: [[one.question, list(one.choices), one.answer] for one in items]
            for name, items in self.splits.items()
        }
        return digest([[name, digest(items)] for name, items in asked.items()])

    @property
    def n_answers(self) -> tuple[int, ...]:
        """How often each place holds the right answer."""
        places = Counter(item.answer for item in self.items)
        return tuple(places[place] for place in range(self.n_choices))

    @cached_property
    def defects(self) -> tuple[Defect, ...]:
        """Everything that is found in it, of every kind; nothing is changed."""
        return (
            *_ambiguous(self.items),
            *_repeated(self),
            *_shared_groups(self),
            *_sorted(self.items),
            *_future_years(self.items),
        )

    @property
    def blocking(self) -> tuple[Defect, ...]:
        """Defects for which a run is refused."""
        return tuple(one for one in self.defects if one.blocks)

    @property
    def counts(self) -> dict[str, int]:
        """Kind of defect -> number, the absent ones left out."""
        found = Counter(one.kind for one in self.defects)
        return {kind: found[kind] for kind in MEANINGS if found[kind]}

    def document(self) -> dict[str, Any]:
        """The data set as `rtt validate --json` prints it."""
        return {
            "data": self.name,
            "digest": self.digest,
            "n_items": len(self.items),
            "splits": {name: len(items) for name, items in self.splits.items()},
            "n_choices": self.n_choices,
            "answers": dict(zip(LETTERS, self.n_answers, strict=False)),
            "left_out": dict(self.left_out),
            "defects": [
                {
                    "kind": one.kind,
                    "meaning": MEANINGS[one.kind],
                    "blocks": one.blocks,
                    "items": list(one.idx),
                    "detail": one.detail,
                }
                for one in self.defects
            ],
        }

    def without(self, idx: Mapping[int, str]) -> "Dataset":
        """The data set without the items of some idx, for a reason; no other takes their number."""
        splits = {
            name: tuple(one for one in items if one.idx not in idx)
            for name, items in self.splits.items()
        }
        left_out = {f"item {one}": idx[one] for one in sorted(idx)}
        return Dataset(self.name, splits, {**self.left_out, **left_out})


def make_dataset(
    name: str,
    splits: Mapping[str, Iterable[McqItem]],
    left_out: Mapping[str, str] | None = None,
) -> Dataset:
    """Number the items; the order in which splits are given does not matter.

    Raises:
        InputError: fewer than two splits, an empty one, or items that are no question.
    """
    idx = count()
    parts = {
        split: tuple(
            replace(one, idx=at, group=own_group(at) if one.group is None else one.group)
            for one, at in zip(splits[split], idx, strict=False)
        )
        for split in sorted(splits, key=natural)
    }
    counts = {len(item.choices) for items in parts.values() for item in items}
    sound = all(
        item.question.strip() and item.answer in range(len(item.choices))
        for items in parts.values()
        for item in items
    )
    usual = len(counts) == 1 and counts <= {*range(2, len(LETTERS) + 1)}
    if len(parts) < 2 or not all(parts.values()) or not usual or not sound:
        raise InputError(
            f"{name}: found {len(parts)} splits with {sorted(counts)} choices per item; wanted two "
            "splits or more, none of them empty, and in each item a question, one number of "
            "choices, 2 to 8, and the right one's place"
        )
    return Dataset(name, parts, left_out or {})


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key that puts split_10 after split_9.

    >>> sorted(["split_10", "split_9"], key=natural)
    ['split_9', 'split_10']
    """
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts if part)


_WANTED_ITEM = (
    "wanted per line: question (text), choices (2 to 8 texts or numbers, the same count "
    "everywhere), answer (place of the right one, from 0); optional group or author"
)


def load_mcq(folder: Path, *, only: Sequence[str] = ()) -> Dataset:
    """The splits of a folder; every row is loaded, `Dataset.defects` says what is wrong.

    Args:
        folder: holds `split_<n>.jsonl` files, at least two; other files are not read.
        only: split names to take part; all by default.

    Raises:
        InputError: fewer than two splits, no such split, or rows that are not items.
    """
    files = {
        path.stem: path
        for path in folder.glob("split_*.jsonl")
        if re.fullmatch(r"split_\d+", path.stem)
    }
    if unknown := [name for name in only if name not in files]:
        known = ", ".join(sorted(files, key=natural)) or "none"
        raise InputError(f"{folder}: no split {unknown[0]!r}; it holds {known}")
    names = sorted(only or files, key=natural)
    if len(set(names)) < 2:
        raise InputError(
            f"{folder}: found {len(set(names))} of the files split_<n>.jsonl, wanted two or more: "
            "one is held out, the others are trained on"
        )
    read = {name: read_rows(files[name]) for name in names}
    items = {
        name: sound_rows(
            rows,
            str(files[name]),
            _WANTED_ITEM,
            _problems,
            # numbers in one data set and texts in another would never be found equal
            lambda row, _: McqItem(
                row["question"], tuple(map(str, row["choices"])), row["answer"], named_group(row)
            ),
            problems=problems,
            own_idx=False,
        )
        for name, (rows, problems) in read.items()
    }
    return make_dataset(folder.resolve().name, items)


def save_mcq(dataset: Dataset, folder: Path) -> Path:
    """Write the splits, as `load_mcq` reads them."""
    make_folder(folder)
    names = ("question", "choices", "answer", "group")
    for split, items in dataset.splits.items():
        rows = ({name: getattr(item, name) for name in names} for item in items)
        write_jsonl(folder / f"{split}.jsonl", rows)
    return folder


def _problems(value: Any) -> list[str]:
    """What is wrong with one row."""
    if not isinstance(value, Mapping):
        return ["is no object"]
    if not isinstance(value.get("question"), str) or not value["question"].strip():
        return ["question is missing, empty or not text"]
    choices = value.get("choices")
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(LETTERS):
        return ["choices is no list of 2 to 8"]
    texts = [one for one in choices if isinstance(one, str) and one.strip()]
    numbers = [one for one in choices if type(one) in (int, float)]
    if len(texts) + len(numbers) < len(choices):
        return ["a choice is empty, or neither text nor a number"]
    answer = value.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
        return [f"answer is {answer!r}, wanted a place from 0 to {len(choices) - 1}"]
    return list(filter(None, [group_problem(value)]))


def handled(dataset: Dataset, policy: Policy, more: Sequence[Defect] = ()) -> Dataset:
    """The data set a run may use: as it is, without the blocking items, or not at all.

    `drop` leaves out every item that a blocking defect concerns, all copies of a repeated one.
    `more`: blocking defects that the items alone do not show.

    Raises:
        InputError: blocking defects under `refuse`, or nothing left under `drop`.
    """
    blocking = (*dataset.blocking, *more)
    if not blocking or policy == "keep":
        return dataset
    gone = {idx: MEANINGS[defect.kind] for defect in blocking for idx in defect.idx}
    if policy == "refuse":
        counts: Counter[Kind] = Counter(defect.kind for defect in blocking)
        listed = "; ".join(f"{n} x {MEANINGS[kind]}" for kind, n in counts.items())
        raise InputError(
            f"{dataset.name}: {listed} (first: {blocking[0].detail})\n"
            f"mend the items, or leave the {len(gone)} out with --defects drop, or take them as "
            "they are with --defects keep"
        )
    kept = dataset.without(gone)
    if not all(kept.splits.values()):
        raise InputError(f"{dataset.name}: --defects drop leaves a split without items")
    return kept


def _ambiguous(items: Iterable[McqItem]) -> Iterator[Defect]:
    for item in items:
        choices = [normalised(one) for one in item.choices]
        if len(set(choices)) == len(choices):
            continue
        detail = f"item {item.idx} {item.question[:60]!r}: {', '.join(item.choices)[:80]}"
        yield Defect("duplicate_choice", (item.idx,), detail)
        if choices.count(choices[item.answer]) > 1:
            yield Defect("ambiguous", (item.idx,), detail)


def _repeated(dataset: Dataset) -> Iterator[Defect]:
    for copies in _same(dataset, lambda item: normalised(item.question)):
        splits = {split for split, _ in copies}
        items = [item for _, item in copies]
        agree = len({normalised(item.right) for item in items}) == 1
        answers = "with the same answer" if agree else "with different answers"
        detail = f"{items[0].question[:60]!r} in {', '.join(sorted(splits))}, {answers}"
        idx = tuple(item.idx for item in items)
        yield Defect("leak" if len(splits) > 1 else "repeated", idx, detail)


def _shared_groups(dataset: Dataset) -> Iterator[Defect]:
    for copies in _same(dataset, lambda item: author_key(item.group)):
        splits = sorted({split for split, _ in copies})
        if len(splits) > 1:
            idx = tuple(item.idx for _, item in copies)
            yield Defect(
                "shared_group", idx, f"group {copies[0][1].group!r} in {', '.join(splits)}"
            )


def _same(
    dataset: Dataset, key: Callable[[McqItem], Hashable]
) -> Iterator[list[tuple[str, McqItem]]]:
    """Items that agree in `key`, with the names of their splits."""
    placed = ((split, item) for split, items in dataset.splits.items() for item in items)
    by_key = grouped((key(item), (split, item)) for split, item in placed)
    return (copies for copies in by_key.values() if len(copies) > 1)


def _sorted(items: tuple[McqItem, ...]) -> Iterator[Defect]:
    if all(a <= b for item in items for a, b in pairwise(item.choices)):
        yield Defect("sorted", tuple(item.idx for item in items), "in every item")


def _future_years(items: Iterable[McqItem]) -> Iterator[Defect]:
    return (
        Defect("future_year", (item.idx,), f"item {item.idx}: {one}")
        for item in items
        for one in item.choices
        if re.fullmatch(r"\d{4}", one) and int(one) > LAST_YEAR
    )
