"""How often do the rules of `lensaudit annotate` find what people annotated?

Command: python experiments/annotation_agreement.py forget10_filtered.json
Hardware and time: any CPU, one second; no model.

Reads an annotated forget set (question, answer, prefix, entity), proposes a span for every row and
compares it with the annotated one: `same` words; at least half of the words in common (F1 >= 0.5,
`mostly`); at least one character in common (`touching`). The rules were scored on authors
0 to 9 of TOFU forget10 while they were written, so authors 10 to 19 are the measurement:

authors    rows  same  mostly  touching
0 to 9      180  0.39    0.63      0.71
10 to 19    187  0.43    0.61      0.68
"""

import json
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from lensaudit.data.annotate import propose
from lensaudit.data.facts import Fact, load_facts
from lensaudit.data.rules import WORD
from lensaudit.data.tofu import AUTHOR_ROWS

SEEN_AUTHORS = 10
"""Authors the rules were scored on while they were written."""


@dataclass(frozen=True)
class Agreement:
    """Shares of rows whose proposed span agrees with the annotated one."""

    n: int
    same: float
    mostly: float
    touching: float


def agreement(examples: list[Fact]) -> Agreement:
    found = [_compare(one) for one in examples]
    shares = [sum(column) / len(found) for column in zip(*found, strict=True)]
    return Agreement(len(found), *shares)


def _compare(example: Fact) -> tuple[bool, bool, bool]:
    proposal = propose(replace(example, prefix="", entity=""))
    got, wanted = _words(proposal.entity), _words(example.entity)
    common = sum((Counter(got) & Counter(wanted)).values())
    start = example.answer.index(example.entity, len(example.prefix))
    touching = proposal.start < start + len(example.entity) and proposal.end > start
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


if __name__ == "__main__":
    main()
