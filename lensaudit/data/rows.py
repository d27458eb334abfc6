"""Rows of a file or of the Hub as they are read, and all that is wrong with them in a line."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from unicodedata import normalize

from lensaudit.data.tables import TABLES, rows_within, table_rows
from lensaudit.errors import InputError
from lensaudit.files import read_json, read_text
from lensaudit.groups import (
    author_key,
    group_problem,
    grouped,
    named_group,
    normalised,
)
from lensaudit.text import parse_json

NO_LIST = (
    "found no list of rows: wanted a list of objects, an object with one such list or with columns "
    "of equal length, one object per line (name it .jsonl), or a table (.csv, .tsv)"
)
"""What is wrong with a file that holds one JSON value and no list."""

_HALF = "half a Unicode character (a lone surrogate)"
_SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Half a character: no tokenizer takes it."""

_LISTED = 20
"""Problems spelled out in one message; the others are counted."""

_NAMED = 3
"""Rows named of those that share a problem."""

_SHOWN = 40
"""Characters of a value quoted in a message."""


Made = TypeVar("Made")


SourceRow = tuple[str, Any]
"""A decoded row after its place in the file: `line 3` or `row 3`, counted from 1."""


def numbered(rows: Iterable[Any]) -> list[SourceRow]:
    """Rows with their places in a list."""
    return [(f"row {n}", row) for n, row in enumerate(rows, 1)]


def read_rows(path: Path) -> tuple[list[SourceRow], list[str]]:
    """The usable rows of a file, and what is wrong with the others: no JSON, or no Unicode.

    Raises:
        InputError: the file cannot be read, or is JSON but no list.
    """
    text, suffix = read_text(path), Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in TABLES:
        return table_rows(text, TABLES[suffix])
    listed, lined = text.lstrip().startswith("["), suffix in (".jsonl", ".ndjson")
    whole: Any = None
    # a line may be a list itself, and `.json` may hold lines (the Hub)
    if listed == lined and (lined or suffix == ".json"):
        with suppress(ValueError):
            whole = parse_json(text)
    if listed and (not lined or any(isinstance(one, Mapping) for one in whole or ())):
        rows, problems = numbered(read_json(path, unique=True)), []
    elif whole is not None and not lined:
        rows = numbered(rows_within(read_json(path, unique=True)))
        problems = [] if rows else [f"{NO_LIST}; {_keys(whole)}"]
    else:
        rows, problems = _read_lines(text)
    if "\\ud" not in text.lower():  # an escape is the only way in: the file is UTF-8
        return rows, problems
    broken = [row for row in rows if _SURROGATE.search(json.dumps(row[1], ensure_ascii=False))]
    sound = [row for row in rows if row not in broken]
    return sound, [*problems, *(f"{where} holds {_HALF}" for where, _ in broken)]


def _keys(value: Any) -> str:
    return (
        f"found {', '.join(value) or 'nothing'}"[:200]
        if isinstance(value, Mapping)
        else _kind(value)
    )


def read_values(path: Path) -> list[Any]:
    """The rows of a JSON list or of a file with one JSON object per line, all of them usable.

    Raises:
        InputError: names the first row that cannot be read.
    """
    rows, problems = read_rows(path)
    if problems:
        raise InputError(f"{path}: {problems[0]}")
    return [value for _, value in rows]


def _read_lines(text: str) -> tuple[list[SourceRow], list[str]]:
    rows, problems = [], []
    # not splitlines(): U+2028 and its like may stand inside a JSON string
    for n, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append((f"line {n}", parse_json(line, unique=True)))
        except json.JSONDecodeError as error:
            problems.append(f"line {n} is not JSON ({error.msg}, column {error.colno})")
        except ValueError as error:
            problems.append(f"line {n} is not usable JSON ({error})")
    return rows, problems


def sound_rows(
    rows: Sequence[SourceRow],
    source: str,
    wanted: str,
    wrong: Callable[[Any], Sequence[str]],
    make: Callable[[Any, int], Made],
    *,
    problems: Sequence[str] = (),
    own_idx: bool = True,
    fact: Callable[[Any], Iterable[str]] | None = None,
) -> list[Made]:
    """What rows become, or one error that lists what is wrong with all of them.

    Args:
        rows: with their places.
        source: where they come from, for messages.
        wanted: what a row has to be, for messages.
        wrong: all that is wrong with a row by itself.
        make: of a sound row and its number: its `idx`, or its place where no row has one.
        problems: found when the file was read.
        own_idx: False counts rows from 0, whatever they say.
        fact: texts of a row that is counted, so that it may not stand there twice; None: may.

    Raises:
        InputError: no rows, or some are wrong, or name one author in two spellings; the first ones
            are listed.
    """
    told, made, sound = list(problems), list[Made](), list[SourceRow]()
    has_idx = [own_idx and "idx" in row for _, row in rows if isinstance(row, Mapping)]
    named = any(has_idx)
    if named and not all(has_idx):
        told.append(f"{has_idx.count(False)} of {len(rows)} rows have no idx")
    seen: dict[int, str] = {}
    for place, (where, row) in enumerate(rows):
        found = list(wrong(row))
        idx = row_idx(row) if named else place
        if idx is not None and seen.setdefault(idx, where) != where:
            found.append(f"duplicate idx {idx}, first in {seen[idx]}")
        told += [
            f"{where}{f' (idx {idx})' if named and idx is not None else ''}: {one}" for one in found
        ]
        if idx is not None and not told:
            made.append(make(row, idx))
        sound += [(where, row)] * (not found)
    told += [*spelled_apart(sound), *(_twice(sound, fact) if fact else ())]
    if told or not made:
        raise InputError(problems_text(told or ["holds no rows"], source, wanted))
    return made


def spelled_apart(rows: Sequence[SourceRow]) -> Iterator[str]:
    """Authors that rows name in two spellings: they would be counted as two."""
    first: dict[str, tuple[Any, str]] = {}
    for where, row in rows:
        name = named_group(row) if isinstance(row, Mapping) else None
        if name is not None:
            known, there = first.setdefault(author_key(name), (name, where))
            if known != name:
                same = normalize("NFC", str(name)) == normalize("NFC", str(known))
                yield (
                    f"{where}: {brief(name)} is the author {brief(known)} of {there}"
                    f"{' in another Unicode form' * same}; write one"
                )


def fact_in(row: Mapping[str, Any]) -> tuple[str, str]:
    """Question, and entity or answer: two rows that share them are one fact."""
    return row["question"], row.get(entity_key(row)) or row["answer"]


def _twice(rows: Sequence[SourceRow], fact: Callable[[Any], Iterable[str]]) -> Iterator[str]:
    """Facts that stand there twice: they would be counted twice."""
    first: dict[tuple[str, ...], str] = {}
    for where, row in rows:
        there = first.setdefault(tuple(map(normalised, fact(row))), where)
        if there != where:
            yield f"{where}: is the fact of {there}; leave one of them out"


def problems_text(problems: Sequence[str], source: str, wanted: str) -> str:
    """Two lines, however many problems there are; rows of one problem share its words.

    >>> print(problems_text(["row 1: no idx", "row 2: no idx"], "a.json", "wanted an idx"))
    a.json: 2 problems: 2 rows (row 1, row 2): no idx
    wanted an idx
    """
    parts = (one.partition(": ") for one in problems)
    told = together((who, what) for who, _, what in parts)
    listed = "; ".join(f"{who}: {what}" if what else who for who, what in told[:_LISTED])
    more = f"; and {len(told) - _LISTED} more" if len(told) > _LISTED else ""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return f"{source}: {count}: {listed}{more}\n{wanted}"


def together(told: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Group equal remarks: each once, with all rows it is about; an empty one stays alone.

    >>> together([("row 1", "no idx"), ("row 2", "no answer"), ("row 3", "no idx")])
    [('2 rows (row 1, row 3)', 'no idx'), ('row 2', 'no answer')]
    """
    found = grouped((what or who, who) for who, what in told)
    return [(_rows(who), what) if [what] != who else (what, "") for what, who in found.items()]


def _rows(who: Sequence[str]) -> str:
    """A row's place, or the number of rows and the place of the first."""
    first = ", ".join(who[:_NAMED]) + (", …" if len(who) > _NAMED else "")
    return first if len(who) == 1 else f"{len(who)} rows ({first})"


def row_problems(row: Any, keys: Sequence[str] = ("question", "answer")) -> list[str]:
    """What is wrong with one row: texts under `keys`, and idx and group where it has them.

    >>> row_problems({"question": "Who?", "idx": -1})
    ['no answer (found question, idx)', 'idx is -1, wanted a whole number >= 0']
    """
    if not isinstance(row, Mapping):
        return [f"found {_kind(row)}, wanted an object"]
    missing = [key for key in keys if key not in row]
    problems = [f"no {', '.join(missing)} ({_keys(row)})"] if missing else []
    if "idx" in row and row_idx(row) is None:
        problems.append(f"idx is {brief(row['idx'])}, wanted a whole number >= 0")
    texts = [key for key in keys if key in row and key != "idx"]
    problems += [one for key in texts for one in _text_problems(row[key], key)]
    return [*problems, problem] if (problem := group_problem(row)) else problems


def _text_problems(value: Any, key: str) -> list[str]:
    if not isinstance(value, str):
        return [f"{key} is {_kind(value)}, wanted text"]
    if not value.strip() and key != "prefix":
        return [f"{key} is empty"]
    return [f"{key} holds {_HALF}"] if _SURROGATE.search(value) else []


def texts_of(value: Any) -> tuple[str, ...]:
    """The texts of a field that holds one or a list; empty ones are none."""
    texts = value if isinstance(value, list | tuple) else (value,)
    return tuple(text for text in texts if isinstance(text, str) and text.strip())


def entity_key(row: Any) -> str:
    """The column that holds the row's entity."""
    return "gt_entity" if isinstance(row, Mapping) and row.get("gt_entity") else "entity"


def row_idx(row: Any) -> int | None:
    """The row's number, if it has a usable one (HDF5 stores 64-bit integers)."""
    idx = row.get("idx") if isinstance(row, Mapping) else None
    usable = isinstance(idx, int) and not isinstance(idx, bool) and 0 <= idx < 2**63
    return idx if usable else None


def brief(value: Any) -> str:
    """A value in a message, on one line and short."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _kind(value: Any) -> str:
    """The JSON name of a value's type, and the value where it is short."""
    names = {dict: "an object", list: "a list", type(None): "null"}
    shown = {str: "text", bool: "true/false"}.get(type(value), "a number")
    return names.get(type(value), f"{shown} ({brief(value)})")


def kept_of_hub(repo: str) -> Path:
    """Folder in which `datasets` keeps a fetched data set: one folder per configuration."""
    from huggingface_hub import constants  # a tenth of a second

    kept = Path(os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME) / "datasets")
    return kept / repo.replace("/", "___").lower()


def hub_rows(repo: str, config: str, split: str, *, instead: str) -> list[dict[str, Any]]:
    """The rows of one split, from the Hub or the cache of `datasets`.

    Args:
        repo: `organisation/name`.
        config: the data set's configuration.
        split: `train` …
        instead: what to do where it cannot be fetched; ends the message.

    Raises:
        InputError: no network and nothing cached, or no such data set, configuration or split.
    """
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    from lensaudit.hub import reachable

    # datasets takes seconds to import, and tries for 23 before it notices that there is no network
    if not (kept_of_hub(repo) / config).is_dir() and not reachable():
        raise InputError(f"{repo} {config}: cannot be fetched (no network); {instead}")
    import datasets

    try:
        return [dict(row) for row in datasets.load_dataset(repo, config, split=split)]
    except (OSError, HTTPError, ValueError, RuntimeError) as error:
        # not the error's own text: it may be long or hold a token
        raise InputError(
            f"{repo} {config}: cannot be fetched ({type(error).__name__}); {instead}"
        ) from error
