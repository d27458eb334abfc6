"""Multiple-choice splits as files: `split_0.jsonl`, `split_1.jsonl` …, as upstream keeps them.

Format of github.com/aghyad-deeb/unlearning_evaluation @ 26be6ba: one object per line with
`question`, `choices` (texts or numbers) and `answer` (place of the right one, from 0). An optional
`group` or `author` names the author or entity; other keys are ignored.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lensaudit.attacks.rtt.items import LETTERS, Dataset, Draft, make_dataset, natural
from lensaudit.data.facts import SourceRow, read_rows
from lensaudit.errors import InputError
from lensaudit.files import make_folder, write_jsonl
from lensaudit.groups import group_problem, named_group

_SPLIT = re.compile(r"split_\d+")
_SHOWN = 5
_WANTED = (
    "wanted per line: question (text), choices (2 to 8 texts or numbers, the same count "
    "everywhere), answer (place of the right one, from 0); optional group or author"
)


def load_mcq(folder: Path, *, only: Sequence[str] = ()) -> Dataset:
    """The splits of a folder; every row is loaded, see `inspect` for what is wrong with them.

    Args:
        folder: holds `split_<n>.jsonl` files, at least two; other files are not read.
        only: split names to take part; all by default.

    Raises:
        InputError: fewer than two splits, no such split, or rows that are not items.
    """
    files = {
        path.stem: path for path in folder.glob("split_*.jsonl") if _SPLIT.fullmatch(path.stem)
    }
    if unknown := [name for name in only if name not in files]:
        known = ", ".join(sorted(files, key=natural)) or "none"
        raise InputError(f"{folder}: no split {unknown[0]!r}; it holds {known}")
    names = sorted(only or files, key=natural)
    if len(set(names)) < 2:
        raise InputError(
            f"{folder}: found {len(set(names))} of the files split_<n>.jsonl, wanted two or more: "
            "one is held out, the others are trained on"
        )
    drafts = {name: _drafts(files[name]) for name in names}
    counts = {len(one.choices) for split in drafts.values() for one in split}
    if len(counts) > 1:
        raise InputError(
            f"{folder}: items have {sorted(counts)} choices, wanted one number\n{_WANTED}"
        )
    return make_dataset(folder.resolve().name, drafts)


def save_mcq(dataset: Dataset, folder: Path) -> Path:
    """Write the splits, as `load_mcq` reads them."""
    make_folder(folder)
    for split in dataset.splits:
        rows = (
            {
                "question": item.question,
                "choices": list(item.choices),
                "answer": item.answer,
                "group": item.group,
            }
            for item in split.items
        )
        write_jsonl(folder / f"{split.name}.jsonl", rows)
    return folder


def _drafts(path: Path) -> list[Draft]:
    rows, problems = read_rows(path)
    problems = [
        *problems,
        *(f"{row.where}: {text}" for row in rows if (text := _problem(row.value))),
    ]
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise InputError(f"{path}: {'; '.join(problems[:_SHOWN])}{more}\n{_WANTED}")
    if not rows:
        raise InputError(f"{path}: holds no item\n{_WANTED}")
    return [_draft(row) for row in rows]


def _problem(value: Any) -> str:
    """What is wrong with one row; empty when nothing is."""
    if not isinstance(value, Mapping):
        return "is no object"
    if not isinstance(value.get("question"), str) or not value["question"].strip():
        return "question is missing, empty or not text"
    choices = value.get("choices")
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(LETTERS):
        return "choices is no list of 2 to 8"
    if not all(_is_choice(one) for one in choices):
        return "a choice is empty, or neither text nor a number"
    answer = value.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
        return f"answer is {answer!r}, wanted a place from 0 to {len(choices) - 1}"
    return group_problem(value) or ""


def _is_choice(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, int | float) and not isinstance(value, bool)


def _draft(row: SourceRow) -> Draft:
    value = row.value
    # numbers in one data set and texts in another would never be found equal
    choices = tuple(str(one) for one in value["choices"])
    return Draft(value["question"], choices, value["answer"], named_group(value))
