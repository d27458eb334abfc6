"""What is asked: facts, made of the rows of a data set and checked before any work."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import lensaudit
from lensaudit.data.rows import (
    brief,
    entity_key,
    fact_in,
    numbered,
    read_rows,
    row_problems,
    sound_rows,
    texts_of,
)
from lensaudit.data.tables import FURTHER, LISTS
from lensaudit.groups import (
    Group,
    group_of,
    normalised,
    own_group,
)
from lensaudit.results.reading import place_in
from lensaudit.settings import Place, Seam
from lensaudit.text import digest

_WANTED = (
    "wanted per row: idx (whole number >= 0, once), question, answer, prefix (the answer's "
    "beginning, may be empty), entity (in the answer after the prefix); optional group or author, "
    "and relation; `lensaudit annotate` makes such rows of questions and answers, whatever fields "
    "they stand under"
)

Origin = Literal["rule", "reviewed"]
"""Who marked the fact's span: a rule alone, or a person."""

EMBEDDED = Path(lensaudit.__file__).parent / "embedded" / "data"
"""The rows that come along, under TOFU's configuration names."""
Answer = str | tuple[str, ...]
"""One answer, or a list of alternatives that are averaged."""


@dataclass(frozen=True)
class Fact:
    """One question of a data set with its answer; what the set does not bring is None or empty."""

    idx: int
    """The data set's own number, unique in the set."""
    question: str
    answer: str
    prefix: str
    """How the answer begins, up to the entity without its leading blank; may be empty."""
    entity: str
    """The scored fact, in the answer after the prefix."""
    group: Group
    """The author, see `lensaudit.groups`; a row without one is its own group."""
    span: Origin | None = "reviewed"
    """Whether a person saw prefix and entity, or only a rule; None: the row has no span."""
    paraphrases: tuple[str, ...] = ()
    """The question in other words, where the set has them."""
    wrong: tuple[str, ...] = ()
    """Other answers, none of them right, where the set has them."""
    placebos: tuple[str, ...] = ()
    """Entities that are not the fact's, of its kind, where the set has them."""
    aliases: tuple[str, ...] = ()
    """Other names of the entity: an answer that holds one gives the fact away."""
    translations: tuple[str, ...] = ()
    """The question in other languages."""
    two_hop: tuple[str, ...] = ()
    """Questions in which the fact is a step."""
    two_hop_answers: tuple[str, ...] = ()
    """What answers them; empty: the entity itself."""
    relation: str | None = None
    """Facts of one relation are asked in one way about different subjects; None: not said."""
    seam: Seam = "text"
    """How prefix and entity are encoded, see `lensaudit.data.spans`."""
    answers: Mapping[str, Answer] = field(default_factory=dict, hash=False)
    """What metrics score, by the field of the file; a field that the row lacks is not here."""

    @property
    def asked(self) -> dict[str, Any]:
        """Question, answer and what is scored of it, by field: for content hashes."""
        return {name: getattr(self, name) for name in _ASKED}

    @property
    def names(self) -> tuple[str, ...]:
        """What an answer is searched for: the entity and its aliases."""
        return (self.entity, *self.aliases)

    @property
    def further(self) -> dict[str, tuple[str, ...]]:
        """Columns for attacks that the row has, by field."""
        held = {name: getattr(self, name) for name in FURTHER.values()}
        return {name: texts for name, texts in held.items() if texts}

    @property
    def continuation(self) -> str:
        """The answer after the prefix."""
        return self.answer.removeprefix(self.prefix)


def answered(question: str, answer: str, prefix: str | None = None) -> Fact:
    """A question with an answer to train on; a prefix says where the depth score splits it."""
    return Fact(
        idx=0,
        question=question,
        answer=answer,
        prefix=prefix or "",
        entity="",
        group=own_group(0),
        span=None if prefix is None else "reviewed",
    )


_ASKED = ("idx", "question", "answer", "prefix", "entity", "group")


def load_facts(path: Place) -> list[Fact]:
    """The forget set in a JSON list or a JSONL file of rows in the annotated schema.

    `gt_entity`, where given, wins over `entity` (docs/uds.md); unknown keys are ignored.

    Raises:
        InputError: the file cannot be read, or rows are wrong; every problem is counted.
    """
    rows, problems = read_rows(Path(place_in("load_facts", path)))
    found = sound_rows(
        rows, str(path), _WANTED, _fact_problems, _fact, problems=problems, fact=fact_in
    )
    shipped = Path(path).is_relative_to(EMBEDDED)
    return [replace(one, seam="reference") for one in found] if shipped else found


def validate(rows: Sequence[Any], source: str) -> list[Fact]:
    """The examples of decoded `rows`; `source` names them in the message.

    Raises:
        InputError: rows are wrong; every problem is counted.
    """
    return sound_rows(numbered(rows), source, _WANTED, _fact_problems, _fact, fact=fact_in)


def examples_hash(examples: Sequence[Fact]) -> str:
    """Content hash of a forget set, whatever the order of its rows; 32 hex digits."""
    return digest(
        [
            [*one.asked.values(), *([one.further] if one.further else [])]
            for one in sorted(examples, key=lambda one: one.idx)
        ]
    )


def told_rows(examples: Iterable[Fact]) -> dict[str, str]:
    """Idx -> entity, as manifests say what was asked: results of a model are joined by it."""
    return {str(one.idx): one.entity or one.answer for one in examples}


def spans_of(examples: Sequence[Fact]) -> dict[Origin, int]:
    """How many spans a rule alone found, and how many were reviewed."""
    return {one: sum(example.span == one for example in examples) for one in get_args(Origin)}


def _fact_problems(row: Any) -> list[str]:
    """What is wrong with one annotated row by itself."""
    problems = row_problems(row, ("idx", "question", "answer", "prefix", entity_key(row)))
    if isinstance(row, Mapping) and row.get("span", "reviewed") not in get_args(Origin):
        problems.append(f"span is {brief(row['span'])}, wanted {' or '.join(get_args(Origin))}")
    problems += relation_problems(row) + list_problems(row, LISTS)
    problems += further_problems(row) + candidate_problems(row)
    if problems:
        return problems
    # the entity must be found where spans are looked for: in the answer, after the prefix
    answer, prefix, key = row["answer"], row["prefix"], entity_key(row)
    if not answer.startswith(prefix):
        return [f"prefix {brief(prefix)} is not a prefix of the answer {brief(answer)}"]
    found = row[key].strip() in answer.removeprefix(prefix)
    return [] if found else [f"{key} {brief(row[key])} is not in the answer after the prefix"]


def list_problems(row: Any, names: Iterable[str]) -> list[str]:
    """Fields of neither text nor a list of texts, or with the text of a list, as `str` writes it.

    An empty text is none, but in the columns that attacks read.
    """
    held = {name: row.get(name) for name in names} if isinstance(row, Mapping) else {}
    lists = {k: one if isinstance(one, list | tuple) else [one] for k, one in held.items()}
    return [
        f"{name} is {brief(one)}, wanted a text or a list of texts"
        for name, one in held.items()
        if one is not None
        and not all(isinstance(t, str) and (t.strip() or name not in FURTHER) for t in lists[name])
    ] + [
        f"{name} is the text of a list ({brief(one)}); wanted a list of texts, in a table as JSON"
        for name, one in held.items()
        if isinstance(one, str) and _LIST.fullmatch(one.strip())
    ]


def candidate_problems(row: Any) -> list[str]:
    """Candidates that stand there twice, and wrong ones that are the truth."""
    if not isinstance(row, Mapping):
        return []
    true = {"perturbed_answer": row.get("answer"), "placebos": row.get(entity_key(row))}
    told = [(name, one, _alike(one)) for name in LISTS for one in texts_of(row.get(name))]
    return [
        f"{name} holds the true one ({brief(one)})"
        for name, one, key in told
        if name in true and key == _alike(str(true[name]))
    ] + [
        f"{name} holds {brief(one)} twice"
        for at, (name, one, key) in enumerate(told)
        if any((name, key) == (other, same) for other, _, same in told[:at])
    ]


def _alike(text: str) -> str:
    """A candidate as it is compared: case, blanks, Unicode form and a last stop do not count."""
    return normalised(text).strip(" .!。")


_LIST = re.compile(r"""\[\s*['"].*['"]\s*,?\s*\]""", re.DOTALL)


def further_problems(row: Any) -> list[str]:
    """What is wrong with the texts in the columns of one row that attacks read."""
    held = {name: row.get(name) for name in FURTHER} if isinstance(row, Mapping) else {}
    problems = []
    if any(not any(map(str.isalnum, one)) for one in texts_of(held.get("aliases"))):
        problems.append("aliases holds a text without a letter or digit")
    if held.get("two_hop_answer") and not held.get("two_hop"):
        problems.append("two_hop_answer without two_hop")
    return problems


def relation_problems(row: Any) -> list[str]:
    """What is wrong with the relation of one row, where it says one."""
    relation = row.get("relation") if isinstance(row, Mapping) else None
    if relation is None or (isinstance(relation, str) and relation.strip()):
        return []
    return [f"relation is {brief(relation)}, wanted text"]


def _fact(row: Mapping[str, Any], idx: int) -> Fact:
    return Fact(
        idx=idx,
        question=row["question"],
        answer=row["answer"],
        prefix=row["prefix"],
        entity=row[entity_key(row)],
        group=group_of(row, idx),
        span=row.get("span", "reviewed"),
        relation=row.get("relation"),
        aliases=texts_of(row.get("aliases")),
        translations=texts_of(row.get("translated_question")),
        two_hop=texts_of(row.get("two_hop")),
        two_hop_answers=texts_of(row.get("two_hop_answer")),
    )
