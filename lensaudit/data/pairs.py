"""Question-answer pairs that nobody annotated: what `lensaudit annotate` reads."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lensaudit.data.annotate import Pair
from lensaudit.data.facts import read_rows
from lensaudit.errors import InputError
from lensaudit.groups import group_of, group_problem

_WANTED = "wanted per row: question, answer; optional idx (all or none), group or author, entity"


@dataclass(frozen=True)
class Fields:
    """What the fields of a row are called in somebody's file."""

    question: str = "question"
    answer: str = "answer"
    group: str = "group"

    def usual(self, row: Any) -> Any:
        """The row under the usual names; what is no object stays what it is."""
        if not isinstance(row, Mapping):
            return row
        named = {usual: row[own] for usual, own in vars(self).items() if own in row}
        return {**row, **named}


def read_pairs(path: Path, fields: Fields = Fields()) -> list[tuple[Pair, str | None]]:
    """The pairs of a file, each with its entity where the row names one.

    Rows without `idx` are numbered from 0 in the order of the file.

    Args:
        path: JSON or JSONL.
        fields: what is asked, answered and who it is about, as the file calls it.

    Raises:
        InputError: the file cannot be read, or rows are wrong; every problem is counted.
    """
    read, problems = read_rows(path)
    rows = [replace(row, value=fields.usual(row.value)) for row in read]
    numbered = [isinstance(row.value, Mapping) and "idx" in row.value for row in rows]
    if any(numbered) and not all(numbered):
        problems.append(f"{numbered.count(False)} of {len(rows)} rows have no idx")
    seen: set[int] = set()
    pairs = []
    for place, row in enumerate(rows):
        wrong = _wrong(row.value)
        idx = row.value.get("idx", place) if not wrong else None
        if idx is not None and idx in seen:
            wrong = [f"duplicate idx {idx}"]
        problems += [f"{row.where}: {one}" for one in wrong]
        if not wrong and idx is not None:
            seen.add(idx)
            pairs.append((_pair(idx, row.value), row.value.get("entity") or None))
    if problems or not pairs:
        said = "; ".join(problems[:20]) or "no rows"
        more = f"; and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise InputError(f"{path}: {said}{more}\n{_WANTED}")
    return pairs


def _wrong(row: Any) -> list[str]:
    if not isinstance(row, Mapping):
        return ["not an object"]
    idx = row.get("idx", 0)
    found = [
        f"{key} is missing or no text"
        for key in ("question", "answer")
        if not isinstance(row.get(key), str) or not row[key].strip()
    ]
    if isinstance(idx, bool) or not isinstance(idx, int) or not 0 <= idx < 2**63:
        found.append("idx is no whole number >= 0")
    if not isinstance(row.get("entity"), str | None):
        found.append("entity is no text")
    return [*found, problem] if (problem := group_problem(row)) else found


def _pair(idx: int, row: Mapping[str, Any]) -> Pair:
    return Pair(idx, row["question"], row["answer"], group_of(row, idx))
