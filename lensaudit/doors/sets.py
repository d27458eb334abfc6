"""Which published unlearning sets are known: columns of their rows, and what becomes of each."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lensaudit.data.annotate import LONGESTWORDS
from lensaudit.data.facts import relation_problems
from lensaudit.data.rows import row_problems
from lensaudit.data.tofu import AUTHOR_ROWS, author_of

SetName = Literal["tofu", "muse", "wmdp", "rwku", "lume", "pistol", "knowundo", "elude"]
Half = Literal["forget", "keep"]


@dataclass(frozen=True)
class Raw:
    """A row of a published set and where it stands."""

    row: Mapping[str, Any]
    file: Path
    where: str
    """`line 3` or `row 3` of the file."""
    place: int
    """Among the rows of its file, from 0."""
    n: int
    """Rows of its file."""
    half: Half
    beside: dict[str, list[str]]
    """LUME: what the questions about each document are answered with."""


Row = dict[str, Any]
Made = Sequence[Row] | str
"""Rows of ours, or why there is none."""


@dataclass(frozen=True)
class Shape:
    """One kind of row: its columns, and what becomes of it."""

    columns: Mapping[str, str]
    """Column -> what it must be, a key of `KINDS`; a row has these and no others but `more`."""
    become: Callable[[Raw], Made]
    more: Mapping[str, str]
    """Columns that a row may lack, or hold nothing under."""

    def problems(self, row: Mapping[str, Any]) -> list[str]:
        """What is wrong with the values of a row that fits."""
        kinds = {**self.columns, **{k: v for k, v in self.more.items() if row.get(k) is not None}}
        texts = [key for key, kind in kinds.items() if kind == "text"]
        wrong = [
            f"{key} is {repr(row[key])[:40]}, wanted {kind}"
            for key, kind in kinds.items()
            if key not in texts and not KINDS[kind](row[key])
        ]
        return [*row_problems(row, texts), *relation_problems(row), *wrong]

    def __str__(self) -> str:
        more = ", ".join((*self.more, *ALWAYS))
        return f"{', '.join(self.columns)} (and perhaps {more})"


ALWAYS = ("idx", "relation")
_ID = re.compile(r"(.+?)[-_ ]?(sc|qa)(\d+)")


def _named(value: Any) -> re.Match[str] | None:
    """Document and kind in an id of LUME; stray quotes are no part of it.

    >>> [_named(one).groups() for one in ('"0a1b-77sc1', "0a1b-77qa3'")]
    [('0a1b-77', 'sc', '1'), ('0a1b-77', 'qa', '3')]
    """
    return _ID.fullmatch(value.strip("\"' \t")) if isinstance(value, str) else None


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_text(one) for one in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


KINDS: Mapping[str, Callable[[Any], bool]] = {
    "text": _is_text,
    "four texts or numbers": lambda value: (
        isinstance(value, list)
        and len(value) == 4
        and all(_is_text(one) or type(one) in (int, float) for one in value)
    ),
    "text or a list of texts": lambda value: _is_text(value) or _is_texts(value),
    "0, 1, 2 or 3": lambda value: type(value) is int and 0 <= value <= 3,
    "1, 2 or 3": lambda value: type(value) in (int, str) and str(value) in ("1", "2", "3"),
    "a document's, with sc1 or qa0, qa1 …": lambda value: _named(value) is not None,
    "Task1, Task2 or Task3": lambda value: _is_text(value) and bool(re.search("[123]", value)),
    "text, a number or a list of texts": lambda value: (
        type(value) is int or _is_text(value) or _is_texts(value)
    ),
    "anything": lambda value: True,
}
"""What a value can be."""
_VARIANTS: dict[str, str] = dict.fromkeys(
    ("paraphrased_question", "paraphrased_answer", "perturbed_answer"), "text or a list of texts"
)
"""Columns of TOFU that readers of ours know: other wordings, and wrong answers."""
_OPTIONS = {f"option{n}": "text" for n in range(1, 5)}


def _asked(raw: Raw, question: str = "question", answer: str = "answer", **more: object) -> Row:
    """Question, answer, and what else the row says under names that readers know."""
    known = {key: raw.row[key] for key in _VARIANTS if raw.row.get(key) is not None}
    return {"question": raw.row[question], "answer": raw.row[answer], **known, **more}


def _whole(answer: str) -> Row:
    """The span of an answer that is nothing but the fact."""
    return {"prefix": "", "entity": answer}


def _short(answer: str) -> Row:
    """The same, and nothing where the answer is a sentence: `annotate` looks into it.

    >>> _short("Oslo"), _short("She was born in Oslo.")
    ({'prefix': '', 'entity': 'Oslo'}, {})
    """
    sentence = answer.rstrip()[-1] in ".!?" or len(answer.split()) > LONGESTWORDS
    return {} if sentence else _whole(answer)


def _tofu(raw: Raw) -> Made:
    """Authors stand one after the other; a file that was cut does not tell them."""
    config, idx = raw.file.stem, raw.row.get("idx", raw.place)
    told = "idx" in raw.row or raw.n % AUTHOR_ROWS == 0
    known = told and re.match(r"forget|retain|holdout|full", config)
    # options of the sets of real authors and world facts, the right one among them
    options = [
        raw.row[key] for key in _OPTIONS if raw.row.get(key) not in (None, raw.row["answer"])
    ]
    wrong = {"perturbed_answer": options} if options else {}
    return [wrong | _asked(raw) | ({"author": author_of(config, idx)} if known else {})]


def _verbatim(raw: Raw) -> Made:
    """The beginning of a text's continuation is scored, as long as TOFU's longest entity."""
    words = [*re.finditer(r"\S+", raw.row["gt"])][:LONGESTWORDS]
    return [
        _asked(raw, "prompt", "gt", **_whole(raw.row["gt"][words[0].start() : words[-1].end()]))
    ]


_ALL_OF = re.compile(
    r"\b(?:all|none|any|both|neither|two|three|either) of (?:the|these|those)\b"
    r"|^(?:both )?[A-D] and [A-D]\b",
    re.I,
)
"""A choice that speaks of the other choices."""


_YEAR = re.compile(r"\d{4}")
_OF_SPLITS = ("correct_year", "original_question", "correct_answer", "wrong_answers", "split")
"""What splits of such items for retraining (RTT) say beside them."""


def _wmdp(raw: Raw) -> Made:
    choices, at = [str(one) for one in raw.row["choices"]], raw.row["answer"]
    entity = choices[at]
    if _ALL_OF.search(entity):
        return "the answer speaks of the other choices"
    if not (any(map(str.isalpha, entity)) or _YEAR.fullmatch(entity)):
        return "the answer is a number"
    others = [one for one in choices if one != entity and not _ALL_OF.search(one)]
    return [
        {"question": raw.row["question"], "answer": entity, **_whole(entity), "placebos": others}
    ]


def _rwku(raw: Raw) -> Made:
    query, answer, level = raw.row["query"], raw.row["answer"], str(raw.row["level"])
    if level == "3":
        return "an attack on level 3, not a fact"
    more = {"author": _subject(raw, raw.row["subject"])} if raw.row.get("subject") else {}
    if level == "2":
        return [_asked(raw, "query", **_short(answer), **more)]
    blank = max(re.finditer("_+", query), key=lambda one: len(one[0]), default=None)
    if blank is None:
        raise ValueError("level 1 is a cloze, and its query has no blank (a run of underscores)")
    start, end = blank.span()
    span = {"prefix": query[:start].rstrip(), "entity": answer}
    filled = query[:start] + answer + query[end:]
    return [{"question": query, "answer": filled, **span, **more}]


NEIGHBOURS = "neighbours of "


def _subject(raw: Raw, name: str) -> str:
    """Rows to keep carry the name of the forgotten: whom they are about is not said."""
    return name if raw.half == "forget" else f"{NEIGHBOURS}{name}"


def _lume(raw: Raw) -> Made:
    """Of a person's particulars in a completion each is a fact of its own."""
    document, kind = document_of(raw.row)
    row, text = _asked(raw, "input", "output", author=document), raw.row["output"]
    if "2" not in raw.row["task"]:
        return [row]
    if kind == "qa":
        return [row | _short(text)]
    found = [one for one in raw.beside.get(document, ()) if one in text]
    spans = [{"prefix": text[: text.index(one)].rstrip(), "entity": one} for one in found]
    return [row | one for one in spans] or [row]


def document_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Document and kind of a row of LUME, as its id says."""
    found = _named(row["id"])
    assert found is not None  # as `Shape.problems` saw
    return found[1], found[2]


def _pistol(raw: Raw) -> Made:
    edge = raw.row["edge"]
    named = " - ".join(map(str, edge)) if isinstance(edge, list) else str(edge)
    return [_asked(raw, author=named, **_short(raw.row["answer"]))]


_QA = {"question": "text", "answer": "text"}
PLAIN = Shape({"text": "text"}, lambda raw: "plain text: nothing is asked", {"subject": "text"})

SETS: Mapping[SetName, tuple[Shape, ...]] = {
    "tofu": (Shape(_QA, _tofu, _VARIANTS | _OPTIONS),),
    "muse": (
        Shape(_QA, lambda raw: [_asked(raw, **_whole(raw.row["answer"]))], {}),
        Shape({"prompt": "text", "gt": "text"}, _verbatim, {}),
        PLAIN,
    ),
    "wmdp": (
        Shape(
            {"question": "text", "choices": "four texts or numbers", "answer": "0, 1, 2 or 3"},
            _wmdp,
            dict.fromkeys(("subject", *_OF_SPLITS), "anything"),
        ),
    ),
    "rwku": (
        Shape(
            {"query": "text", "answer": "text", "level": "1, 2 or 3"},
            _rwku,
            {"type": "anything", "subject": "text"},
        ),
        PLAIN,
        Shape(
            {"target": "text"}, lambda raw: "names a target: nothing is asked", {"intro": "text"}
        ),
    ),
    "lume": (
        Shape(
            {
                "id": "a document's, with sc1 or qa0, qa1 …",
                "input": "text",
                "output": "text",
                "task": "Task1, Task2 or Task3",
            },
            _lume,
            {"split": "text"},
        ),
    ),
    "pistol": (
        Shape(_QA | {"edge": "text, a number or a list of texts"}, _pistol, {}),
        Shape(_QA, lambda raw: [_asked(raw, **_short(raw.row["answer"]))], {}),  # factual data
    ),
    "knowundo": (
        Shape({"text": "text", "labels": "text"}, lambda raw: [_asked(raw, "text", "labels")], {}),
    ),
    "elude": (
        Shape(
            _QA | {"entity": "text"},
            lambda raw: [_asked(raw, author=_subject(raw, raw.row["entity"]))],
            _VARIANTS,
        ),
    ),
}
"""Set -> its kinds of rows."""
