"""Relations: facts that are asked in one way about different subjects.

A relation is a set of facts, one a subject, that one template asks: "Where was {} born?". Rows say
their relation themselves, or it is found: questions that are alike once the subject is taken out,
whose entities are of one kind. A template holds the subject's name and nothing else of the true
answer, so that no prompt gives a value away.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lensaudit.data.candidates import Kind, kind_of
from lensaudit.data.facts import Fact
from lensaudit.data.matching import is_closed, mentions
from lensaudit.groups import Group, is_own, natural
from lensaudit.results.sentences import by_root

FEWEST = 4
"""Subjects of a relation: of fewer than four a permutation says next to nothing."""
ALIKE = 0.25
"""Mean cosine of the words of questions of one relation, names aside, seldom ones counting more."""
N_TEMPLATES = 2
"""Ways in which a relation is asked at most."""
NAME = "{}"
_PARTICLE = r"(?:(?:al|bin|da|de|del|der|di|du|el|ibn|la|le|van|von) )*"
_CAPITALS = r"[^\W\d_a-z][\w.’'-]*"
_RUN = re.compile(rf"{_CAPITALS}(?: {_PARTICLE}{_CAPITALS})*")
_PAIR = re.compile(f"{_RUN.pattern} and {_RUN.pattern}")
_WORD = re.compile(r"[^\W\d_]+")
_POSSESSIVE = re.compile(r"['’]s?$")
_CAPITAL = re.compile(r"[^\W\d_a-z]|\d")


@dataclass(frozen=True)
class Wording:
    """How a relation is asked; `{}` stands for the subject's name."""

    question: str
    prefix: str

    def asked(self, name: str) -> tuple[str, str]:
        """Question about a subject, and the beginning of the answer."""
        return self.question.replace(NAME, name), self.prefix.replace(NAME, name)


@dataclass(frozen=True)
class Relation:
    """Facts that are asked in one way, one a subject."""

    name: str
    facts: tuple[Fact, ...]
    subjects: tuple[str, ...]
    """The name of each fact's subject."""
    templates: tuple[Wording, ...]
    invented: tuple[str, ...] = ()
    """Names of subjects that do not exist, who are asked about too."""
    placebos: tuple[str, ...] = ()
    """Further values of the same kind."""

    @property
    def values(self) -> tuple[str, ...]:
        """What can be the answer: every entity once, in order, then the placebos."""
        return (*dict.fromkeys(one.entity.strip() for one in self.facts), *self.placebos)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all subjects, the real ones first."""
        return (*self.subjects, *self.invented)

    @property
    def true(self) -> tuple[int, ...]:
        """For each fact, which of the values is its own."""
        place = {value: at for at, value in enumerate(self.values)}
        return tuple(place[one.entity.strip()] for one in self.facts)


def lines_of(found: Sequence[Relation], unscored: Mapping[int, str]) -> list[str]:
    """Relations by size, and facts in no relation by reason, as lines of text."""
    sizes = [f"{one.name} ({len(one.facts)})" for one in found]
    n = sum(len(one.facts) for one in found)
    facts = f"{n} facts in {len(sizes)} relations{': ' if sizes else ''}{', '.join(sizes)}"
    return [facts, *(f"{k} in none: {text}" for text, k in by_root(unscored.values()))]


def relations_of(
    rows: Sequence[Fact], *, fewest: int = FEWEST
) -> tuple[tuple[Relation, ...], dict[int, str]]:
    """The relations of a forget set, whatever the order of its rows; idx -> why one is not asked.

    As the rows say them; of rows that all say none as they are found. At least `fewest` subjects
    each, by author; of two facts of one subject in one relation that of the lower idx counts.
    """
    rows = _by_subject(rows)
    if not any(row.relation for row in rows):
        rows = labelled(rows)
    names = subject_names(rows)
    unscored = _not_asked(rows, names)
    asked = [row for row in rows if row.idx not in unscored]
    found = []
    for label in dict.fromkeys(row.relation or "" for row in asked):
        own = [row for row in asked if (row.relation or "") == label]
        first = {row.group: row for row in reversed(own)}
        facts = tuple(row for row in own if first[row.group] is row)
        if why := _too_little(label, facts, fewest):
            unscored |= {row.idx: why for row in own}
            continue
        again = f"another fact of its subject stands in the relation: {label}"
        unscored |= {row.idx: again for row in own if first[row.group] is not row}
        subjects = tuple(names[row.group] for row in facts)
        found.append(Relation(label, facts, subjects, _templates(facts, subjects)))
    return tuple(found), unscored


_UNSAID = "says no relation, and other rows do (`lensaudit annotate` finds it)"


def labelled(rows: Sequence[Fact]) -> list[Fact]:
    """The rows with a relation each, which may be one of a single row; as they say it, or found.

    A row that cannot be asked keeps what it says.
    """
    rows = _by_subject(rows)
    names = subject_names(rows)
    unscored = _not_asked(rows, names)
    asked = [row for row in rows if row.idx not in unscored]
    found = {row.idx: label for label, own in _together(asked, names).items() for row in own}
    return [replace(row, relation=row.relation or found.get(row.idx)) for row in rows]


def _not_asked(rows: Sequence[Fact], names: Mapping[Group, str]) -> dict[int, str]:
    first = {names[group].casefold(): group for group in reversed([*names])}
    return {row.idx: why for row in rows if (why := _why_not(row, names, first))}


def _by_subject(rows: Sequence[Fact]) -> list[Fact]:
    """Rows by author and idx; one without an author gets the name that most of these rows hold."""
    alone = [row for row in rows if is_own(row.group)]
    often = Counter(run for row in alone for run in set(_runs(row.question)))
    likely = {
        row.idx: max(runs, key=lambda run: (often[run], len(run), run))
        for row in alone
        if (runs := _runs(row.question))
    }
    return sorted(
        (replace(row, group=likely.get(row.idx, row.group)) for row in rows),
        key=lambda row: (natural(row.group), row.idx),
    )


def _why_not(row: Fact, names: Mapping[Group, str], first: Mapping[str, Group]) -> str:
    name = names.get(row.group)
    named = name is not None and name in row.question
    letters = any(map(str.isalnum, row.entity))
    checks = {
        "the entity has no letter or digit": not letters,
        "a Yes or No binds nothing: a coin would hit it": is_closed(row.entity),
        "its question names no subject": not named,
        f"another subject is called {name} too": first.get((name or "").casefold()) != row.group,
        "its own question holds the entity": letters and mentions(row.question, row.entity),
    }
    return next((why for why, found in checks.items() if found), "")


def _too_little(label: str, facts: Sequence[Fact], fewest: int) -> str:
    if not label:
        return _UNSAID
    if len(facts) < fewest:
        n = len(facts)
        alone = f"its relation ({label}) has {n} subjects"
        first = alone if n > 1 else f"stands alone in its relation ({label})"
        return f"{first}; {fewest} subjects wanted"
    if len({row.entity.strip().casefold() for row in facts}) < min(2, fewest):
        return f"all values of its relation ({label}) are alike"
    return ""


def subject_names(rows: Sequence[Fact]) -> dict[Group, str]:
    """By author, the name that most of the author's questions hold.

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
    """Runs of capital words after the first word, and two of them that `and` joins.

    >>> _runs("What did Ada Byron's father do?"), _runs("Where was Mary de la Cruz born?")
    (['Ada Byron'], ['Mary de la Cruz'])
    """
    _, _, rest = question.partition(" ")
    return [_POSSESSIVE.sub("", run) for run in (*_RUN.findall(rest), *_PAIR.findall(rest))]


def _together(rows: Sequence[Fact], names: Mapping[Group, str]) -> dict[str, list[Fact]]:
    """Rows without a relation by what they ask for, or by likeness of their words."""
    found: dict[str, list[Fact]] = {row.relation: [] for row in rows if row.relation}
    kinds: dict[str, list[tuple[Fact, str]]] = {}
    for row in [row for row in rows if not row.relation]:
        name = names[row.group]
        if relation := _asked_for(row.question.replace(name, ""), row.entity):
            found.setdefault(relation, []).append(row)
        else:
            kinds.setdefault(kind_of(row.entity), []).append((row, name))
    for members in kinds.values():
        for own in _alike(members):
            label = _label(own)
            while label in found:  # other kinds of entity, asked for in the same words
                label = f"{label} *"
            found[label] = own
    return found


_WORK = "(?:profession|occupation|job|work|career|employ|living|vocation)"
_ASKS = r"\b(?:what|which|name|list|mention|some|any|one|an|tell)\b"
_TEXT: frozenset[Kind] = frozenset(("phrase", "name"))
_NAMED: frozenset[Kind] = frozenset(("title", "name"))
_RELATIONS: Mapping[str, tuple[str, frozenset[Kind]]] = {
    "gender": (r"\bgender\b", _TEXT),
    "father": (rf"\bfather\b.*{_WORK}|{_WORK}.*\bfather\b", _TEXT),
    "mother": (rf"\bmother\b.*{_WORK}|{_WORK}.*\bmother\b", _TEXT),
    "parents": (
        rf"\bparents?\b.*{_WORK}|{_WORK}.*\bparents?\b|^who (?:are|were)\b.*\bparents\b",
        _TEXT,
    ),
    "birthdate": (
        r"\b(?:when|date|day|year)\b.*\bborn\b|\b(?:date|day|year) of birth\b|\bbirth ?da",
        frozenset(("date",)),
    ),
    "birthplace": (
        r"\b(?:where|city|country|place|town)\b.*(?:\bborn\b|\binto the world\b)"
        r"|\bbirth ?place\b|\bplace of birth\b",
        _TEXT,
    ),
    "genre": (r"\b(?:what|which)(?: \w+){0,3} genre\b|\bkind of (?:books|literature)\b", _TEXT),
    "language": (r"\b(?:what|which) languages?\b", _TEXT),
    "award": (
        rf"{_ASKS}.*\b(?:award|prize|accolade|honou?r)s?\b.*"
        r"\b(?:won|received?|honou?red|awarded|bestowed|given|has|have)\b",
        _NAMED,
    ),
    "debut": (r"\bdebut\b|\bfirst (?:book|novel)\b", frozenset(("title",))),
    "book": (
        rf"{_ASKS}.*\b(?:books?|novels?|titles?)\b.*"
        r"\b(?:written|authored|penned|published|by|wrote|write)\b",
        frozenset(("title",)),
    ),
    "themes": (r"\b(?:themes?|motifs?)\b", _TEXT),
    "university": (r"\b(?:where|which|what)\b.*\b(?:universit|college|stud)", frozenset(("name",))),
}
"""What biographies are often asked for: words of the question, and kinds of entity that answer."""
_MODEL = re.compile(r"^(?:who|which (?:writer|author))\b.*\b(?:influence|literary model)")
_OTHERWISE = re.compile(
    r"\b(?:influenc|inspir|impact|affect|shap|reflect|resembl|portray|differ|align)"
    r"|\b(?:year|why|in which book)\b(?!.*\bborn\b)"
)
"""Questions about something else that hold the words of a relation."""


def _asked_for(question: str, entity: str) -> str | None:
    """The relation that a question without its subject asks for, if it is a common one.

    >>> _asked_for("What is the profession of 's father?", "a baker")
    'father'
    >>> _asked_for("How has her father's profession influenced her work?", "by patience")
    """
    text, kind = question.strip().casefold(), kind_of(entity)
    if kind == "name" and _MODEL.search(text):
        return "influence"
    if _OTHERWISE.search(text):
        return None
    asked = ((name, re.search(words, text), kinds) for name, (words, kinds) in _RELATIONS.items())
    return next((name for name, found, kinds in asked if found and kind in kinds), None)


def _alike(rows: Sequence[tuple[Fact, str]]) -> list[list[Fact]]:
    """Average linkage of the words of questions and beginnings, seldom ones counting more."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform
    from sklearn.feature_extraction.text import TfidfVectorizer

    if len(rows) < FEWEST:
        return [[row for row, _ in rows]]
    texts = [f"{row.question} {row.prefix}".replace(name, " ") for row, name in rows]
    counted = TfidfVectorizer(stop_words="english", sublinear_tf=True)
    try:
        words = counted.fit_transform(texts)
    except ValueError:  # nothing but names and stop words
        return [[row for row, _ in rows]]
    apart = 1 - (words @ words.T).toarray()  # rows have length 1, or no words: like nothing
    np.fill_diagonal(apart, 0)
    labels = fcluster(
        linkage(squareform(apart.clip(0), checks=False), "average"), 1 - ALIKE, "distance"
    )
    own = [(row, label) for (row, _), label in zip(rows, labels.tolist(), strict=True)]
    every = dict.fromkeys(label for _, label in own)
    return [[row for row, label in own if label == one] for one in every]


def _label(rows: Sequence[Fact]) -> str:
    """The question of the first row without what only it says."""
    texts = [set(_WORD.findall(row.question.casefold())) for row in rows]
    often = Counter(word for text in texts for word in text)
    kept = [w for w in _WORD.findall(rows[0].question.casefold()) if 3 * often[w] > len(rows)]
    return " ".join(dict.fromkeys(kept)) or rows[0].question


def _templates(facts: Sequence[Fact], subjects: Sequence[str]) -> tuple[Wording, ...]:
    """The wordings of most facts that say nothing of a value; of equals the first author's."""
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
