"""How often do the rules of `lensaudit annotate` find what people annotated?

Command: python -m experiments.annotation.agreement forget10_filtered.json
Hardware and time: any CPU, one second; no model.

Reads an annotated forget set (question, answer, prefix, entity), proposes a span for every row and
compares it with the annotated one: `same` words; at least half of the words in common (F1 >= 0.5,
`mostly`); at least one character in common (`touching`). A span is wrong where it is not mostly
right; `found` is the share of wrong spans that the review marks CHECK, `marked` that of the others.
Rules and marks were scored on authors 0 to 9 of TOFU forget10 while they were written, so authors
10 to 19 are the measurement:

authors    rows  same  mostly  touching  found  marked
0 to 9      180  0.39    0.63      0.72   0.63    0.11
10 to 19    187  0.44    0.62      0.68   0.44    0.14
a reader    187  0.66    0.82      0.87

How well could a rule do? A reader (a language model that went through the rows one by one) saw the
annotated rows of authors 0 to 9, and then marked those of authors 10 to 19 without their spans;
reader.json has what it marked, first and last character. Annotated spans do not follow from the
rows: a reader names the same words in two rows of three.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lensaudit.data.annotate import doubts, faults, propose
from lensaudit.data.facts import Fact, load_facts
from lensaudit.data.rules import WORD
from lensaudit.data.tofu import AUTHOR_ROWS

SEEN_AUTHORS = 10
"""Authors the rules were scored on while they were written."""


@dataclass(frozen=True)
class Agreement:
    """Shares of rows whose proposed span agrees with the annotated one, and of marked ones."""

    n: int
    same: float
    mostly: float
    touching: float
    found: float
    """Of wrong spans; NaN where there is none."""
    marked: float
    """Of the others."""


def agreement(examples: list[Fact]) -> Agreement:
    *agree, check = zip(*map(_compare, examples), strict=True)
    right = agree[1]
    wrong = [mark for mark, one in zip(check, right, strict=True) if not one]
    others = [mark for mark, one in zip(check, right, strict=True) if one]
    return Agreement(len(right), *map(_share, (*agree, wrong, others)))


def of_reader(examples: list[Fact]) -> Agreement:
    """Of the spans that a reader marked."""
    found = json.loads((Path(__file__).parent / "reader.json").read_text())
    by_idx = {one.idx: one for one in examples}
    agree = [_agrees(by_idx[int(idx)], *span) for idx, span in found.items()]
    same, mostly, touching = map(_share, zip(*agree, strict=True))
    return Agreement(len(agree), same, mostly, touching, math.nan, math.nan)


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else math.nan


def _compare(example: Fact) -> tuple[bool, bool, bool, bool]:
    proposal = propose(replace(example, prefix="", entity=""))
    agrees = _agrees(example, proposal.start, proposal.end)
    return *agrees, bool(faults(proposal) + doubts(proposal))


def _agrees(example: Fact, first: int, end: int) -> tuple[bool, bool, bool]:
    """Whether a span of the answer has the same words, mostly the same, or touches."""
    got, wanted = _words(example.answer[first:end]), _words(example.entity)
    common = sum((Counter(got) & Counter(wanted)).values())
    start = example.answer.index(example.entity, len(example.prefix))
    touching = first < start + len(example.entity) and end > start
    return got == wanted, 4 * common >= len(got) + len(wanted), touching


def _words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def by_author(examples: list[Fact]) -> tuple[Agreement, Agreement]:
    """Of the authors the rules were written on, and of the others."""
    seen = [one for one in examples if one.idx // AUTHOR_ROWS < SEEN_AUTHORS]
    return agreement(seen), agreement([one for one in examples if one not in seen])


def main() -> None:
    examples = load_facts(Path(sys.argv[1]))
    for authors, found in zip(("0 to 9", "10 to 19"), by_author(examples), strict=True):
        print(json.dumps({"authors": authors, **vars(found)}))
    read = of_reader(examples)
    print(json.dumps({"authors": "a reader, 10 to 19", "same": read.same, "mostly": read.mostly}))


if __name__ == "__main__":
    main()
