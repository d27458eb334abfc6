"""Which questions are unlearned and which kept? Rows from a file, from TOFU, or embedded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lensaudit
from lensaudit.data.facts import SourceRow, read_rows
from lensaudit.data.fictional.pools import IDK_LINES
from lensaudit.data.hub import hub_rows
from lensaudit.data.tofu import DEMO, TOFU_HUB
from lensaudit.errors import InputError
from lensaudit.files import digest, parse_json, read_text
from lensaudit.unlearn.encode import Answered

EMBEDDED = Path(lensaudit.__file__).parent / "embedded" / "data"
TOFU_PAIRS = {"forget01": "retain99", "forget05": "retain95", "forget10": "retain90"}
"""TOFU's forget sets and their complements; `--data` takes either side by name."""
_SHOWN = 5
"""Problems spelled out in one message."""


@dataclass(frozen=True)
class Rows:
    """Questions with the answers to train on, and where they came from."""

    source: str
    answered: tuple[Answered, ...]
    alternates: tuple[tuple[str, ...], ...] = ()
    """Per row, plausible other answers: field `alternate` (text or list); empty where absent."""

    @property
    def digest(self) -> str:
        """Content hash."""
        texts = [[one.question, one.answer, one.prefix] for one in self.answered]
        return digest([texts, [list(others) for others in self.alternates]])


def load_rows(name_or_path: str, *, part: str) -> Rows:
    """The rows that an option names.

    Args:
        name_or_path: `demo`, a TOFU configuration (`forget10`, `retain90` …), or a JSON or JSONL
            file of objects with `question` and `answer`; `prefix` and `alternate` are optional.
        part: `forget` or `retain`: which half of the embedded data `demo` means.

    Raises:
        InputError: no such set, or wrong rows; the first problems are listed.
    """
    if name_or_path == DEMO:
        return _embedded(part)
    if name_or_path in {*TOFU_PAIRS, *TOFU_PAIRS.values()}:
        instead = "name a JSON or JSONL file of rows with question and answer"
        raw = hub_rows(TOFU_HUB, name_or_path, "train", instead=instead)
        return _checked([SourceRow(f"row {n}", row) for n, row in enumerate(raw, 1)], name_or_path)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        known = ", ".join((DEMO, *TOFU_PAIRS, *TOFU_PAIRS.values()))
        raise InputError(f"{path}: no such file; wanted a JSON or JSONL file, or one of {known}")
    rows, problems = read_rows(path)
    return _checked(rows, str(path), problems)


def _embedded(part: str) -> Rows:
    rows, _ = read_rows(EMBEDDED / f"{part}.json")
    if part == "forget":
        wrong, _ = read_rows(EMBEDDED / "forget10_perturbed.jsonl")
        rows = [
            SourceRow(row.where, {**row.value, "alternate": other.value["perturbed_answer"]})
            for row, other in zip(rows, wrong, strict=True)
        ]
    return _checked(rows, DEMO)


def _checked(rows: Sequence[SourceRow], source: str, problems: Sequence[str] = ()) -> Rows:
    found = [*problems, *(f"{row.where}: {text}" for row in rows if (text := _problem(row.value)))]
    if found:
        more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
        raise InputError(f"{source}: {'; '.join(found[:_SHOWN])}{more}")
    if not rows:
        raise InputError(f"{source}: holds no rows")
    values = [row.value for row in rows]
    alternates = tuple(_alternates(value) for value in values)
    return Rows(
        source,
        tuple(Answered(one["question"], one["answer"], one.get("prefix")) for one in values),
        alternates if any(alternates) else (),
    )


def _problem(value: Any) -> str:
    """What is wrong with one row; empty when nothing is."""
    if not isinstance(value, Mapping):
        return "is no object"
    for key in ("question", "answer"):
        if not isinstance(value.get(key), str) or not value[key].strip():
            return f"{key} is missing, empty or not text"
    prefix = value.get("prefix")
    if prefix is not None and not (isinstance(prefix, str) and value["answer"].startswith(prefix)):
        return "prefix does not begin the answer"
    others = value.get("alternate", [])
    texts = [others] if isinstance(others, str) else others
    if not isinstance(texts, list) or not all(isinstance(one, str) and one for one in texts):
        return "alternate is neither text nor a list of texts"
    return ""


def _alternates(value: Mapping[str, Any]) -> tuple[str, ...]:
    others = value.get("alternate", [])
    return (others,) if isinstance(others, str) else tuple(others)


def idk_lines(path: Path | None) -> tuple[str, ...]:
    """Lines that admit ignorance: those of a file, or the embedded ones.

    A line is plain text, or a JSON object with one text (`{"idk": "I don't know."}`).

    Raises:
        InputError: the file cannot be read, is empty, or has another shape.
    """
    if path is None:
        return IDK_LINES
    lines = [line.strip() for line in read_text(path).split("\n") if line.strip()]
    if not lines:
        raise InputError(f"{path}: holds no line; wanted one answer per line")
    return tuple(_idk(line, f"{path}: line {n}") for n, line in enumerate(lines, 1))


def _idk(line: str, where: str) -> str:
    if not line.startswith("{"):
        return line
    try:
        texts = list(parse_json(line).values())
    except ValueError as error:
        raise InputError(f"{where} is not JSON; wanted text or an object with one text") from error
    if len(texts) != 1 or not isinstance(texts[0], str) or not texts[0].strip():
        raise InputError(f"{where} does not hold one text")
    return texts[0]
