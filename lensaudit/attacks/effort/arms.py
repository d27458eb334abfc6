"""What is trained on, and which facts are held out of it?

Arm T trains on some authors' facts and holds the others' out, in turn, so that every fact is read
once. The other arms train on rows that tell none of the facts, and hold out all of them. Each arm
has as many rows as T, so that equal steps are equal passes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import Any

from lensaudit.attacks.rtt.data import Dataset, Defect, handled, load_mcq
from lensaudit.attacks.rtt.readout import EncodedItem, EncodedSplit, encode_split, others_than
from lensaudit.attacks.rtt.splits import folder_of_splits, load_statements, split_by_author
from lensaudit.attacks.settings import Arm, EffortSettings, FactReadout
from lensaudit.data.chat import Encoding
from lensaudit.data.facts import Fact, answered
from lensaudit.data.matching import plain_words
from lensaudit.data.neutral import (
    likeness,
    neutral_of,
    neutral_rows,
    open_names,
    read_neutral,
    stands_in,
    wording,
)
from lensaudit.data.spans import Encoded, encode
from lensaudit.data.tofu import DEMO, FORGET10, TOFU_PAIRS, forget_set
from lensaudit.errors import InputError
from lensaudit.groups import Group, normalised, spread
from lensaudit.text import digest
from lensaudit.training.rows import load_rows, raw_sample


@dataclass(frozen=True)
class HeldOut:
    """All facts that are read, and what each arm trains on."""

    data: Dataset
    readout: FactReadout
    folds: Mapping[Arm, tuple[EncodedSplit, ...]]
    likeness: Mapping[Arm, float]
    """Of arms retain and syntax: mean share of words in common with the fact worded most alike."""
    left_out: int
    """Rows of the other arms that name an entity or an author of the forget set."""

    @property
    def digest(self) -> str:
        """Content hash of facts and rows."""
        folds = chain(*self.folds.values())
        return digest(
            [self.data.digest, [[one.trained_digest, one.scored_digest] for one in folds]]
        )

    def n_rows(self, arm: Arm) -> int:
        """Rows that an arm trains on; of T those of one fold."""
        return min(len(fold.samples) for fold in self.folds[arm])


def held_out(settings: EffortSettings, name: str, tokenizer: Any) -> HeldOut:
    """Facts and rows of every arm, checked.

    Args:
        settings: which arms and files, how many splits, the seed.
        name: of the forget set.
        tokenizer: of all models.

    Raises:
        InputError: no such data, defects that are refused, entities that T and V share, or an arm
            without rows.
    """
    data, facts, known = _facts(settings, name)
    readout = settings.readout or ("said" if known else "answer")
    said: dict[int, EncodedItem] = {}
    if readout == "said":
        data, said = _spans(data, known, tokenizer)
    # T is trained on the answer after its question, without options: the form it is read in
    encoded = {
        name: encode_split(tokenizer, items, "answer") for name, items in data.splits.items()
    }
    if said:
        encoded = {
            name: replace(one, items=tuple(said[item.idx] for item in data.splits[name]))
            for name, one in encoded.items()
        }
    every = tuple(item for one in encoded.values() for item in one.items)
    place = count()
    turns = tuple(
        EncodedSplit(
            one.items,
            tuple(chain(*(other.samples for other in others_than(name, encoded)))),
            tuple(next(place) for _ in one.items),
        )
        for name, one in encoded.items()
    )
    n_rows = min(len(one.samples) for one in turns)
    folds: dict[Arm, tuple[EncodedSplit, ...]] = {}
    alike: dict[Arm, float] = {}
    left_out = 0
    for arm in settings.arms:
        if arm == "T":
            folds[arm] = turns
            continue
        rows, n_left = _rows(settings, arm, name, facts)
        left_out += n_left
        chosen = _chosen(arm, rows, facts, n_rows, settings.seed)
        samples = tuple(_sample(tokenizer, row) for row in chosen)
        folds[arm] = (EncodedSplit(every, samples, tuple(range(len(every)))),)
        if arm != "neutral":
            words = [wording(one) for one in facts]
            best = [max(likeness(wording(row), one) for one in words) for row in chosen]
            alike[arm] = sum(best) / len(best)
    return HeldOut(data, readout, folds, alike, left_out)


def _facts(settings: EffortSettings, name: str) -> tuple[Dataset, list[Fact], Mapping[str, Fact]]:
    """The facts in splits; as rows whose entities may not be told; and the annotated, by question.

    Raises:
        InputError: no such data, defects or shared entities that are refused.
    """
    if folder := folder_of_splits(name):
        data = handled(load_mcq(folder), settings.defects)
        if settings.limit is not None or settings.exclude:
            raise InputError(
                "--limit and --exclude cut a forget set; a folder of splits is taken whole"
            )
        return data, [_plain(one.idx, one.question, one.right, one.group) for one in data.items], {}
    set_name, facts = load_statements(name, rows_per_author=settings.rows_per_author)
    chosen = list(facts.items())
    if settings.exclude:
        rows = forget_set(FORGET10 if name in TOFU_PAIRS else name, exclude=settings.exclude)
        left = {normalised(one.question) for one in rows}
        chosen = [row for row in chosen if normalised(row[1].question) in left]
    facts = dict(spread(chosen, settings.limit, lambda row: row[1].group))
    known = _annotated(name)
    rows = [
        replace(known[normalised(one.question)], group=one.group)
        if normalised(one.question) in known
        else replace(one, entity=one.entity or one.answer)
        for one in facts.values()
    ]
    data = split_by_author(set_name, facts, n_splits=settings.splits, seed=settings.seed)
    data = handled(data, settings.defects)
    return handled(data, settings.defects, [*_shared_entities(data, known)]), rows, known


def _annotated(name: str) -> Mapping[str, Fact]:
    """The rows of the set whose entity is annotated, by question; none of a set without."""
    try:
        rows = forget_set(FORGET10 if name in TOFU_PAIRS else name)
    except InputError:
        return {}
    return {normalised(one.question): one for one in rows}


def _spans(
    data: Dataset, known: Mapping[str, Fact], tokenizer: Any
) -> tuple[Dataset, dict[int, EncodedItem]]:
    """The facts whose entity is annotated and has tokens; by idx, the text that ends with it.

    Raises:
        InputError: a split has none.
    """
    asked = {item.idx: normalised(item.question) for item in data.items}
    spans = {idx: encode(known[one], tokenizer) for idx, one in asked.items() if one in known}
    found = {
        idx: EncodedItem(0, (), (Encoding(one.token_ids[: one.end + 1], one.start + 1),))
        for idx, one in spans.items()
        if isinstance(one, Encoded)
    }
    why = "no annotated entity, or none of its tokens"
    data = data.without({one.idx: why for one in data.items if one.idx not in found})
    if not all(data.splits.values()):
        raise InputError(
            f"{data.name}: a split has no annotated entity to read; take --readout answer"
        )
    return data, found


def _plain(idx: int, question: str, answer: str, group: Group) -> Fact:
    """A row without annotation: all of its answer is scored."""
    return Fact(idx, question, answer, "", answer, group)


def _shared_entities(data: Dataset, known: Mapping[str, Fact]) -> Iterator[Defect]:
    """Facts of one split whose entity a row of another names."""
    for split, items in data.splits.items():
        others = [item for name, held in data.splits.items() if name != split for item in held]
        told = " | ".join(plain_words(f"{one.question} {one.right}") for one in others)
        for item in items:
            row = known.get(normalised(item.question))
            entity = open_names([row.entity] if row else [])
            if named := [one for one in entity if stands_in(one, told)]:
                yield Defect("shared_entity", (item.idx,), repr(named[0]))


def _rows(
    settings: EffortSettings, arm: Arm, name: str, facts: Sequence[Fact]
) -> tuple[list[Fact], int]:
    """The rows of an arm that tell no fact, and how many did."""
    named = settings.neutral_data if arm == "neutral" else settings.retain_data
    if named is not None:
        found = neutral_rows(facts, _read(str(named)))
    elif name in (DEMO, *TOFU_PAIRS):
        found = neutral_of(DEMO if name == DEMO else FORGET10, facts)
    else:
        flag = "--neutral-data" if arm == "neutral" else "--kept"
        raise InputError(f"--arm {arm}: {name} comes with no rows for it; name some with {flag}")
    known = arm == "neutral" and named is None
    rows = list(found.ordinary if known else (*found.fit, *found.validity))
    if not rows:
        raise InputError(
            f"--arm {arm}: all rows name an entity or an author of the forget set; name others"
        )
    return rows, len(found.left_out)


def _read(named: str) -> list[Fact]:
    path = Path(named).expanduser()
    if path.exists():
        return read_neutral(path)
    rows = load_rows(named, part="retain")
    return [_plain(n, one.question, one.answer, f"row {n}") for n, one in enumerate(rows)]


def _chosen(
    arm: Arm, rows: Sequence[Fact], facts: Sequence[Fact], n_rows: int, seed: int
) -> list[Fact]:
    """So many rows: at random, or for each fact in turn the one that is worded most like it."""
    drawn = list(rows)
    Random(f"rows-{seed}").shuffle(drawn)
    if arm != "syntax":
        return drawn[:n_rows]
    wordings = [wording(one) for one in drawn]
    left, chosen = list(range(len(drawn))), []
    order = list(facts)
    Random(f"facts-{seed}").shuffle(order)
    for fact in order[:n_rows]:
        if not left:
            break
        words = wording(fact)
        best = max(left, key=lambda place: likeness(words, wordings[place]))
        left.remove(best)
        chosen.append(drawn[best])
    return chosen


def _sample(tokenizer: Any, row: Fact) -> Encoding:
    """A row to train on; plain text is all loss, an answer is what its question does not say."""
    if row.question:
        return raw_sample(tokenizer, answered(row.question, row.answer))
    return Encoding((*tokenizer(row.answer)["input_ids"], tokenizer.eos_token_id), 0)
