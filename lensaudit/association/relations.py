"""Which facts are asked in one way about different subjects?

A relation is a set of facts, one a subject, that one template asks: "Where was {} born?". Rows say
their relation themselves, or it is found: questions that are alike once the subject is taken out,
whose entities are of one kind. A template holds the subject's name and nothing else of the true
answer, so that no prompt gives a value away.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lensaudit.data.candidates import is_closed, kind_of, mentions
from lensaudit.data.facts import Fact
from lensaudit.groups import Group

FEWEST = 4
"""Subjects of a relation: of fewer than four a permutation says next to nothing."""
ALIKE = 0.2
"""Mean cosine of the words of questions of one relation, names aside, seldom ones counting more."""
N_TEMPLATES = 2
"""Ways in which a relation is asked at most."""
NAME = "{}"
_PARTICLE = r"(?:(?:al|bin|da|de|del|der|di|du|el|ibn|la|le|van|von) )*"
_CAPITALS = r"[^\W\d_a-z][\w.’'-]*"
_RUN = re.compile(rf"{_CAPITALS}(?: {_PARTICLE}{_CAPITALS})*")
_WORD = re.compile(r"[^\W\d_]+")
_POSSESSIVE = re.compile(r"['’]s?$")
_CAPITAL = re.compile(r"[^\W\d_a-z]|\d")


@dataclass(frozen=True)
class Wording:
    """How a relation is asked; `{}` stands for the subject's name."""

    question: str
    prefix: str

    def asked(self, name: str) -> tuple[str, str]:
        """Question and beginning of the answer about somebody."""
        return self.question.replace(NAME, name), self.prefix.replace(NAME, name)


@dataclass(frozen=True)
class Relation:
    """Facts that are asked in one way, one a subject."""

    name: str
    facts: tuple[Fact, ...]
    subjects: tuple[str, ...]
    """The name of each fact's subject."""
    templates: tuple[Wording, ...]

    @property
    def values(self) -> tuple[str, ...]:
        """What can be the answer: every entity once, in order."""
        return tuple(dict.fromkeys(one.entity.strip() for one in self.facts))

    @property
    def true(self) -> tuple[int, ...]:
        """Which of the values is each fact's."""
        place = {value: at for at, value in enumerate(self.values)}
        return tuple(place[one.entity.strip()] for one in self.facts)


@dataclass(frozen=True)
class Relations:
    """The relations of a forget set, and the facts that stand in none."""

    found: tuple[Relation, ...]
    unscored: Mapping[int, str]
    """Idx -> why a fact is not asked."""


def relations_of(rows: Sequence[Fact]) -> Relations:
    """The relations of a forget set, in the order of their first rows.

    At least four subjects each; of two facts of one subject in one relation the first counts.
    """
    names = subject_names(rows)
    unscored: dict[int, str] = {}
    asked = []
    for row in rows:
        why = _why_not(row, names.get(row.group))
        if why:
            unscored[row.idx] = why
        else:
            asked.append(row)
    found = []
    for label, members in _together(asked, names):
        kept: dict[Group, Fact] = {}
        for row in members:
            if kept.setdefault(row.group, row) is not row:
                unscored[row.idx] = f"another fact of its subject stands in the relation: {label}"
        facts = tuple(kept.values())
        why = _too_little(label, facts)
        if why:
            unscored |= {row.idx: why for row in facts}
            continue
        subjects = tuple(names[row.group] for row in facts)
        found.append(Relation(label, facts, subjects, _templates(facts, subjects)))
    return Relations(tuple(found), unscored)


def _why_not(row: Fact, name: str | None) -> str:
    if is_closed(row.entity):
        return "a Yes or No binds nothing: a coin would hit it"
    if name is None or name not in row.question:
        return "its question names no subject"
    if mentions(row.question, row.entity):
        return "its own question holds the entity"
    return ""


def _too_little(label: str, facts: Sequence[Fact]) -> str:
    if len(facts) < FEWEST:
        n = len(facts)
        return f"its relation ({label}) has {n} subject{'s' * (n > 1)}, wanted {FEWEST}"
    if len({row.entity.strip().casefold() for row in facts}) < 2:
        return f"all values of its relation ({label}) are alike"
    return ""


def subject_names(rows: Sequence[Fact]) -> dict[Group, str]:
    """By author the name that most of the author's questions hold.

    A group that is a name itself stands for itself. None, and so no entry, where no run of capital
    words stands in at least half of the questions.
    """
    by_group: dict[Group, list[str]] = {}
    for row in rows:
        by_group.setdefault(row.group, []).append(row.question)
    found = {}
    for group, questions in by_group.items():
        runs = Counter(run for text in questions for run in set(_runs(text)))
        if isinstance(group, str) and any(group in text for text in questions):
            runs = Counter({group: len(questions)})
        held = {run: sum(run in text for text in questions) for run in runs}
        likely = [run for run, n in held.items() if 2 * n >= len(questions)]
        if likely:
            found[group] = max(likely, key=lambda run: (len(run), held[run], run))
    return found


def _runs(question: str) -> list[str]:
    """Runs of capital words after the first word, and after it as parts of a run.

    >>> _runs("What did Ada Byron's father do?"), _runs("Where was Mary de la Cruz born?")
    (['Ada Byron'], ['Mary de la Cruz'])
    """
    _, _, rest = question.partition(" ")
    return [_POSSESSIVE.sub("", run) for run in _RUN.findall(rest)]


def _together(rows: Sequence[Fact], names: Mapping[Group, str]) -> list[tuple[str, list[Fact]]]:
    """Rows by relation: as they say it, else by likeness among those of one kind of entity."""
    named: dict[str, list[Fact]] = {}
    kinds: dict[str, list[tuple[Fact, str]]] = {}
    for row in rows:
        if row.relation:
            named.setdefault(row.relation, []).append(row)
        else:
            kinds.setdefault(kind_of(row.entity), []).append((row, names[row.group]))
    found = list(named.items())
    for members in kinds.values():
        found += [(_label(one), one) for one in _alike(members)]
    return sorted(found, key=lambda one: min(row.idx for row in one[1]))


def _alike(rows: Sequence[tuple[Fact, str]]) -> list[list[Fact]]:
    """Average linkage of the words of questions and beginnings, seldom ones counting more."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist
    from sklearn.feature_extraction.text import TfidfVectorizer

    if len(rows) < FEWEST:
        return [[row for row, _ in rows]]
    texts = [f"{row.question} {row.prefix}".replace(name, " ") for row, name in rows]
    counted = TfidfVectorizer(stop_words="english", sublinear_tf=True)
    try:
        words = counted.fit_transform(texts).toarray()
    except ValueError:  # nothing but names and stop words
        return [[row for row, _ in rows]]
    apart = np.nan_to_num(pdist(words, "cosine"), nan=1.0)  # no words of its own: like nothing
    labels = fcluster(linkage(apart, "average"), 1 - ALIKE, "distance")
    found: dict[int, list[Fact]] = {}
    for (row, _), label in zip(rows, labels.tolist(), strict=True):
        found.setdefault(label, []).append(row)
    return list(found.values())


def _label(rows: Sequence[Fact]) -> str:
    """The question of the first row without what only it says."""
    texts = [set(_WORD.findall(row.question.casefold())) for row in rows]
    often = Counter(word for text in texts for word in text)
    kept = [w for w in _WORD.findall(rows[0].question.casefold()) if 3 * often[w] > len(rows)]
    return " ".join(dict.fromkeys(kept)) or rows[0].question


def _templates(facts: Sequence[Fact], subjects: Sequence[str]) -> tuple[Wording, ...]:
    """The wordings of most facts that say nothing of a value, the commonest first."""
    whole, questions = Counter[Wording](), Counter[str]()
    for row, name in zip(facts, subjects, strict=True):
        question, prefix = row.question.replace(name, NAME), row.prefix.replace(name, NAME)
        others = [other for other in subjects if other in question]
        if others or not _says_nothing(question):
            continue
        questions[question] += 1
        whole[Wording(question, prefix if _says_nothing(prefix) else "")] += 1
    if not whole:  # every question states something: the words of the likest, without it
        row, name = facts[0], subjects[0]
        return (Wording(row.question.replace(name, NAME), ""),)
    return tuple(one for one, _ in whole.most_common(N_TEMPLATES))


def _says_nothing(text: str) -> bool:
    """No name and no number but the subject, after the first word.

    >>> _says_nothing("Where was {} born?"), _says_nothing("In Lima {} won the")
    (True, False)
    """
    return not _CAPITAL.search(text.partition(" ")[2].replace(NAME, ""))
