"""What is wrong with a data set? Ambiguous and repeated items, leaks, cues that need no fact."""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from lensaudit.attacks.rtt.items import Dataset, McqItem, normalised
from lensaudit.attacks.rtt.settings import Policy
from lensaudit.errors import InputError

LAST_YEAR = 2024
"""Years after it cannot be known; `rtt.md` section 2 counts them in Random Birthdays."""
Kind = Literal[
    "ambiguous", "repeated", "leak", "shared_group", "duplicate_choice", "sorted", "future_year"
]
MEANINGS: dict[Kind, str] = {
    "ambiguous": "the right answer stands twice among the choices",
    "repeated": "the same question twice in one split",
    "leak": "the same question in several splits",
    "shared_group": "the same author or entity in several splits",
    "duplicate_choice": "a choice stands twice",
    "sorted": "choices always ascend: a letter is a rank",
    "future_year": f"choices hold years after {LAST_YEAR}",
}
BLOCKING: frozenset[Kind] = frozenset({"ambiguous", "repeated", "leak", "shared_group"})
"""They make V accuracy mean something else; a run refuses them unless told what to do."""


@dataclass(frozen=True)
class Defect:
    """One finding and the items it concerns."""

    kind: Kind
    idx: tuple[int, ...]
    detail: str

    @property
    def blocks(self) -> bool:
        """Whether a run is refused for it."""
        return self.kind in BLOCKING


@dataclass(frozen=True)
class Inspection:
    """Everything found in a data set; nothing is changed in it."""

    n_items: int
    defects: tuple[Defect, ...]
    n_answers: tuple[int, ...]
    """How often each place holds the right answer."""

    def of(self, kind: Kind) -> tuple[Defect, ...]:
        """Findings of one kind."""
        return tuple(one for one in self.defects if one.kind == kind)

    @property
    def counts(self) -> dict[str, int]:
        """Kind -> number of findings, the absent ones left out."""
        return {kind: n for kind in MEANINGS if (n := len(self.of(kind)))}

    @property
    def blocking(self) -> tuple[Defect, ...]:
        """Findings for which a run is refused."""
        return tuple(one for one in self.defects if one.blocks)


def inspect(dataset: Dataset) -> Inspection:
    """Look for every kind of defect."""
    places = Counter(item.answer for item in dataset.items)
    found = (
        *_ambiguous(dataset.items),
        *_repeated(dataset),
        *_shared_groups(dataset),
        *_sorted(dataset.items),
        *_future_years(dataset.items),
    )
    answers = tuple(places[place] for place in range(dataset.n_choices))
    return Inspection(len(dataset.items), found, answers)


def handled(dataset: Dataset, policy: Policy) -> Dataset:
    """The data set a run may use: as it is, without the blocking items, or not at all.

    `drop` leaves out every item that a blocking defect concerns, all copies of a repeated one.

    Raises:
        InputError: blocking defects under `refuse`, or nothing left under `drop`.
    """
    blocking = inspect(dataset).blocking
    if not blocking or policy == "keep":
        return dataset
    gone = {idx for defect in blocking for idx in defect.idx}
    if policy == "refuse":
        counts: Counter[Kind] = Counter(defect.kind for defect in blocking)
        listed = "; ".join(f"{n} x {MEANINGS[kind]}" for kind, n in counts.items())
        raise InputError(
            f"{dataset.name}: {listed} (first: {blocking[0].detail})\n"
            f"mend the items, or leave the {len(gone)} out with --defects drop, or take them as "
            "they are with --defects keep"
        )
    kept = dataset.without(gone, "defective; see `lensaudit rtt validate`")
    if not all(split.items for split in kept.splits):
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
    for copies in _same(dataset, lambda item: item.group):
        splits = sorted({split for split, _ in copies})
        if len(splits) > 1:
            idx = tuple(item.idx for _, item in copies)
            yield Defect(
                "shared_group", idx, f"group {copies[0][1].group!r} in {', '.join(splits)}"
            )


def _same(dataset: Dataset, key) -> Iterator[list[tuple[str, McqItem]]]:
    """Items that agree in `key`, with the names of their splits."""
    by_key: dict[Hashable, list[tuple[str, McqItem]]] = defaultdict(list)
    for split in dataset.splits:
        for item in split.items:
            by_key[key(item)].append((split.name, item))
    return (copies for copies in by_key.values() if len(copies) > 1)


def _sorted(items: tuple[McqItem, ...]) -> Iterator[Defect]:
    if all(a <= b for item in items for a, b in pairwise(item.choices)):
        yield Defect("sorted", tuple(item.idx for item in items), "in every item")


def _future_years(items: Iterable[McqItem]) -> Iterator[Defect]:
    for item in items:
        years = [
            one for one in item.choices if re.fullmatch(r"\d{4}", one) and int(one) > LAST_YEAR
        ]
        for year in years:
            yield Defect("future_year", (item.idx,), f"item {item.idx}: {year}")
