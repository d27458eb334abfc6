"""What is asked: multiple-choice items in splits, one of which is held out per run."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from lensaudit.files import digest
from lensaudit.groups import Group, own_group

LETTERS = "ABCDEFGH"
"""Names of the options; a data set has at most so many per item."""


@dataclass(frozen=True)
class Item:
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
        """The right choice."""
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
    items: tuple[Item, ...]

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
    def items(self) -> tuple[Item, ...]:
        """Of all splits, by idx."""
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


def _numbered(draft: Draft, idx: int) -> Item:
    n = len(draft.choices)
    if not (2 <= n <= len(LETTERS) and 0 <= draft.answer < n and draft.question.strip()):
        raise ValueError(f"item {idx}: wanted a question, 2 to 8 choices and the right one's place")
    group = own_group(idx) if draft.group is None else draft.group
    return Item(idx, draft.question, draft.choices, draft.answer, group)


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key that puts split_10 after split_9.

    >>> sorted(["split_10", "split_9"], key=natural)
    ['split_9', 'split_10']
    """
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts if part)
