"""What is asked: multiple-choice items in splits, one of which is held out per run.

As files they are `split_0.jsonl`, `split_1.jsonl` …, in the format of
github.com/aghyad-deeb/unlearning_evaluation @ 26be6ba: one object per line with `question`,
`choices` (texts or numbers) and `answer` (place of the right one, from 0). An optional `group` or
`author` names the author or entity; other keys are ignored.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lensaudit.data.facts import read_rows, sound_rows
from lensaudit.errors import InputError
from lensaudit.files import digest, make_folder, write_jsonl
from lensaudit.groups import Group, group_problem, named_group, own_group

LETTERS = "ABCDEFGH"
"""Names of the options; a data set has at most so many per item."""


@dataclass(frozen=True)
class McqItem:
    """One multiple-choice question."""

    idx: int
    """Number in the data set, counted from 0 over its splits in order."""
    question: str
    choices: tuple[str, ...]
    answer: int
    """Place of the right choice, from 0."""
    group: Group
    """The author or entity, which no two splits may share."""

    @property
    def right(self) -> str:
        """Text of the right choice."""
        return self.choices[self.answer]


@dataclass(frozen=True)
class Draft:
    """An item before it has a number."""

    question: str
    choices: tuple[str, ...]
    answer: int
    group: Group | None = None
    """None: the item is its own group."""


@dataclass(frozen=True)
class McqSplit:
    """One of the parts that take turns in being held out."""

    name: str
    items: tuple[McqItem, ...]

    @property
    def digest(self) -> str:
        """Content hash, apart from names and numbers."""
        return digest([[one.question, list(one.choices), one.answer] for one in self.items])


@dataclass(frozen=True)
class Dataset:
    """Splits in the natural order of their names."""

    name: str
    splits: tuple[McqSplit, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Place of a row -> why it is no item here; counted in the log."""

    @property
    def items(self) -> tuple[McqItem, ...]:
        """Items of all splits by idx."""
        return tuple(item for split in self.splits for item in split.items)

    @property
    def n_choices(self) -> int:
        """Options per item; chance is one in so many."""
        return len(self.splits[0].items[0].choices)

    @property
    def digest(self) -> str:
        """Content hash of the splits and their names."""
        return digest([[split.name, split.digest] for split in self.splits])

    def without(self, idx: Collection[int], reason: str) -> "Dataset":
        """The data set without some items; their numbers are not given to others."""
        gone = set(idx)
        splits = tuple(
            replace(split, items=tuple(one for one in split.items if one.idx not in gone))
            for split in self.splits
        )
        left_out = {f"item {one}": reason for one in sorted(gone)}
        return Dataset(self.name, splits, {**self.left_out, **left_out})


def make_dataset(
    name: str,
    splits: Mapping[str, Iterable[Draft]],
    left_out: Mapping[str, str] | None = None,
) -> Dataset:
    """Number the items; the order in which splits are given does not matter.

    Raises:
        ValueError: fewer than two splits, an empty one, or items that are no question.
    """
    parts, idx = [], 0
    for split in sorted(splits, key=natural):
        items = []
        for draft in splits[split]:
            items.append(_numbered(draft, idx))
            idx += 1
        parts.append(McqSplit(split, tuple(items)))
    counts = {len(item.choices) for part in parts for item in part.items}
    if len(parts) < 2 or not all(part.items for part in parts) or len(counts) != 1:
        raise ValueError(
            f"{name}: found {len(parts)} splits with {sorted(counts)} choices per item; wanted two "
            "splits or more, none of them empty, and one number of choices"
        )
    return Dataset(name, tuple(parts), left_out or {})


def _numbered(draft: Draft, idx: int) -> McqItem:
    n = len(draft.choices)
    if not (2 <= n <= len(LETTERS) and 0 <= draft.answer < n and draft.question.strip()):
        raise ValueError(f"item {idx}: wanted a question, 2 to 8 choices and the right one's place")
    group = own_group(idx) if draft.group is None else draft.group
    return McqItem(idx, draft.question, draft.choices, draft.answer, group)


def normalised(text: str) -> str:
    r"""Two spellings of one question are equal in this form.

    >>> normalised("When  was Ada\nborn?") == normalised("when was ADA born?")
    True
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key that puts split_10 after split_9.

    >>> sorted(["split_10", "split_9"], key=natural)
    ['split_9', 'split_10']
    """
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts if part)


_SPLIT = re.compile(r"split_\d+")
_WANTED = (
    "wanted per line: question (text), choices (2 to 8 texts or numbers, the same count "
    "everywhere), answer (place of the right one, from 0); optional group or author"
)


def load_mcq(folder: Path, *, only: Sequence[str] = ()) -> Dataset:
    """The splits of a folder; every row is loaded, see `inspect` for what is wrong with them.

    Args:
        folder: holds `split_<n>.jsonl` files, at least two; other files are not read.
        only: split names to take part; all by default.

    Raises:
        InputError: fewer than two splits, no such split, or rows that are not items.
    """
    files = {
        path.stem: path for path in folder.glob("split_*.jsonl") if _SPLIT.fullmatch(path.stem)
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
    drafts = {name: _drafts(files[name]) for name in names}
    counts = {len(one.choices) for split in drafts.values() for one in split}
    if len(counts) > 1:
        raise InputError(
            f"{folder}: items have {sorted(counts)} choices, wanted one number\n{_WANTED}"
        )
    return make_dataset(folder.resolve().name, drafts)


def save_mcq(dataset: Dataset, folder: Path) -> Path:
    """Write the splits, as `load_mcq` reads them."""
    make_folder(folder)
    for split in dataset.splits:
        rows = (
            {
                "question": item.question,
                "choices": list(item.choices),
                "answer": item.answer,
                "group": item.group,
            }
            for item in split.items
        )
        write_jsonl(folder / f"{split.name}.jsonl", rows)
    return folder


def _drafts(path: Path) -> list[Draft]:
    rows, problems = read_rows(path)
    return [_draft(row) for row in sound_rows(rows, _problem, str(path), _WANTED, problems)]


def _problem(value: Any) -> str:
    """What is wrong with one row; empty when nothing is."""
    if not isinstance(value, Mapping):
        return "is no object"
    if not isinstance(value.get("question"), str) or not value["question"].strip():
        return "question is missing, empty or not text"
    choices = value.get("choices")
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(LETTERS):
        return "choices is no list of 2 to 8"
    if not all(_is_choice(one) for one in choices):
        return "a choice is empty, or neither text nor a number"
    answer = value.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
        return f"answer is {answer!r}, wanted a place from 0 to {len(choices) - 1}"
    return group_problem(value) or ""


def _is_choice(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, int | float) and not isinstance(value, bool)


def _draft(value: Mapping[str, Any]) -> Draft:
    # numbers in one data set and texts in another would never be found equal
    choices = tuple(str(one) for one in value["choices"])
    return Draft(value["question"], choices, value["answer"], named_group(value))
