"""Rows of published unlearning sets as rows that every command reads.

The user brings the files; no text of a set comes along. A set is a line of `SETS`: the columns of
each kind of row in it, and a function that makes rows of ours of one of theirs, or says why not.
Facts to keep go to a file of their own, so that no reader takes them for facts to forget.
"""

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from lensaudit.data.facts import Fact, validate
from lensaudit.data.rows import NO_LIST, SourceRow, numbered, problems_text, read_rows, row_problems
from lensaudit.doors.sets import (
    ALWAYS,
    NEIGHBOURS,
    PLAIN,
    SETS,
    Half,
    Made,
    Raw,
    Row,
    SetName,
    Shape,
    document_of,
)
from lensaudit.errors import InputError
from lensaudit.files import check_output, check_size, make_folder, read_json, write_jsonl
from lensaudit.groups import assumption, group_of
from lensaudit.settings import Option
from lensaudit.text import parse_json

MOST_BYTES = 1 << 30
"""Of a file; the largest of these sets has a tenth of it."""


@dataclass(frozen=True, kw_only=True)
class ConvertSettings:
    """A run of `data convert`: its files, and where the rows go."""

    name: SetName
    files: tuple[Path, ...]
    out: Annotated[
        Path,
        Option("Rows to forget, for --data; rows to keep go beside, .keep.jsonl.", flag="-o --out"),
    ]
    keep: Annotated[
        tuple[Path, ...],
        Option("File of rows to keep, where its name does not say so. Repeatable.", is_a="file"),
    ] = ()
    forget: Annotated[
        tuple[str, ...],
        Option(
            "Author, subject or edge to forget; all others are to be kept. "
            "Repeatable. [default: as the files' names say]"
        ),
    ] = ()
    model: Annotated[
        str | None,
        Option("wmdp: drop items that this model answers from the choices alone.", is_a="model"),
    ] = None


@dataclass(frozen=True)
class Converted:
    """What was written, and what was not and why."""

    written: Mapping[Half, tuple[Path, int]]
    """Half -> its file and how many rows are in it."""
    read: Mapping[str, str]
    """File -> what its rows were taken for."""
    without_span: int
    """Rows that name neither prefix nor entity: for `annotate`."""
    dropped: Mapping[str, int]
    """Why -> how many rows."""
    notes: tuple[str, ...]


def convert(settings: ConvertSettings, *, force: bool = False) -> Converted:
    """Write rows of a published set as rows of ours, JSONL.

    Args:
        settings: which files of which set, and where to.
        force: write over a file that is not ours.

    Raises:
        InputError: a file cannot be read, has other columns or wrong rows, or nothing is left.
    """
    if settings.model and settings.name != "wmdp":
        raise InputError(f"--model: {settings.name} has no choices; only wmdp's items are asked")
    read: dict[Path, Half] = {file: _half(file) for file in settings.files}
    read |= dict.fromkeys(settings.keep, "keep")
    dropped: Counter[str] = Counter()
    alike: dict[tuple[str, ...], list[Row]] = {}
    for raw, made in _raws(settings, read):
        if isinstance(made, str):
            dropped[made] += 1
            continue
        more = {key: raw.row[key] for key in ALWAYS if raw.row.get(key) is not None}
        for one in made:
            half = "forget" if one.get("author") in settings.forget else "keep"
            more["set"] = half if settings.forget else raw.half
            row = {**one, **more, "source": f"{raw.file.name} {raw.where}"}
            key = (row["question"], row["answer"], row.get("entity", ""))
            alike.setdefault(key, []).append(row)
    authors = {row.get("author") for same in alike.values() for row in same}
    if unknown := {*settings.forget} - authors:
        named = ", ".join(sorted(map(str, authors - {None})))
        raise InputError(
            f"--forget {min(unknown)}: no row belongs to it; rows belong to {named:.200}"
        )
    rows = _joined(alike.values(), dropped)
    if not (rows["forget"] or rows["keep"]):
        why = ", ".join(f"{n} rows: {text}" for text, n in dropped.items())
        raise InputError(f"{settings.files[0]}: no row is left ({why})")
    return Converted(
        written=_written(settings.out, rows, read, force=force),
        read={str(file): half for file, half in read.items()},
        without_span=sum("entity" not in one for own in rows.values() for one in own),
        dropped=dropped,
        notes=tuple(_notes(settings, rows)),
    )


def _joined(alike: Iterable[Sequence[Row]], dropped: Counter[str]) -> dict[Half, list[Row]]:
    """The rows by half, each once; of the same rows the first says where it stands."""
    rows: dict[Half, list[Row]] = {"forget": [], "keep": []}
    for same in alike:
        if len({row["set"] for row in same}) == 2:
            dropped["is both among the rows to forget and among the rows to keep"] += len(same)
            continue
        rows[same[0]["set"]].append({k: v for row in reversed(same) for k, v in row.items()})
        if len(same) > 1:
            dropped["stands twice: joined"] += len(same) - 1
    return rows


def _written(
    out: Path, rows: Mapping[Half, list[Row]], read: Iterable[Path], *, force: bool
) -> dict[Half, tuple[Path, int]]:
    """The rows to forget, and beside them those to keep; the only half stands where was said."""
    if not out.name:
        raise InputError("--out: names no file")
    beside = out.with_suffix(f".keep{out.suffix}") if rows["forget"] else out
    found: dict[Half, Path] = {"forget": out, "keep": beside}
    places: dict[Half, Path] = {half: place for half, place in found.items() if rows[half]}
    for half, place in places.items():
        if os.path.realpath(place) in map(os.path.realpath, read):
            raise InputError(f"{place}: would be written over; name another --out")
        check_output(place, ours=_is_ours, force=force)
        own = [one.get("idx") for one in rows[half]]
        if None in own or len(set(own)) < len(own):
            own = range(len(own))
        for idx, row in zip(own, rows[half], strict=True):
            row["idx"] = idx
    for half, place in places.items():
        if spanned := [one for one in rows[half] if "entity" in one]:
            validate(spanned, str(place))
        write_jsonl(make_folder(place.parent) / place.name, rows[half])
    return {half: (place, len(rows[half])) for half, place in places.items()}


def _notes(settings: ConvertSettings, rows: Mapping[Half, Sequence[Row]]) -> Iterator[str]:
    """What to know of the rows that no number says."""
    authors = {half: {one.get("author") for one in own} - {None} for half, own in rows.items()}
    if alone := assumption(group_of(one, one["idx"]) for one in rows["forget"]):
        yield alone
    if any(str(one).startswith(NEIGHBOURS) for one in authors["keep"]):
        yield (
            "rows to keep name the target, not the neighbour that they are about: each target "
            "counts as one author"
        )
    if both := authors["forget"] & authors["keep"]:
        yield f"{len(both)} authors have rows to keep too: readers leave those rows out"
    if settings.name == "pistol":
        yield "entities are random strings: before training all are equally likely"
    if settings.name == "wmdp" and not settings.model:
        yield "no choices-only control: name --model to drop items that choices alone give away"


def _is_ours(content: bytes) -> bool:
    """Did `convert` write this?"""
    try:
        rows = [parse_json(line) for line in content.splitlines()]
    except ValueError:
        return False
    return all(isinstance(row, dict) and {"set", "source"} <= row.keys() for row in rows)


_KEEP = re.compile(
    r"retain|retention|neighbou?r|keep|real_authors|world_facts|utility|factual", re.I
)
_FORGET = re.compile(r"forget|unlearn", re.I)
_NOT_ASKED = {
    "holdout": "held out: no model was taught it",
    "icl": "a solved example, not a question",
}


def _half(file: Path) -> Half:
    """What a file's name says of its rows, or else its folder's: to forget where neither does.

    >>> [_half(Path(one)) for one in ("neighbor_level1.json", "retain/qa.json", "qa.json")]
    ['keep', 'keep', 'forget']
    """
    for name in (file.stem, file.absolute().parent.name):
        if _KEEP.search(name):
            return "keep"
        if _FORGET.search(name):
            break
    return "forget"


def _raws(settings: ConvertSettings, files: Mapping[Path, Half]) -> list[tuple[Raw, Made]]:
    """The rows of all files with what becomes of them; perturbed ones after those they perturb.

    Raises:
        InputError: lists what is wrong with the rows of the first file that is.
    """
    name = settings.name
    found: list[tuple[Raw, Shape]] = []
    beside: dict[str, list[str]] = {}
    for file in sorted(files, key=lambda one: "perturbed" in one.stem):
        check_size(file, MOST_BYTES)
        rows, problems = _rows(file, nested=name == "knowundo")
        seen: set[Any] = set()
        for place, (where, value) in enumerate(rows):
            row = {"text": value} if PLAIN in SETS[name] and isinstance(value, str) else value
            shape, wrong = _shape(name, row)
            if shape is not None and not wrong:
                wrong = [f"duplicate idx {row['idx']}"] if row.get("idx") in seen else []
                seen |= {row.get("idx")} - {None}
                raw = Raw(row, file, where, place, len(rows), files[file], beside)
                found.append((raw, shape))
            problems += [f"{where}: {one}" for one in wrong]
        if problems or not rows:
            wanted = f"wanted columns {' or '.join(map(str, SETS[name]))}"
            text = problems_text(problems or ["holds no rows"], str(file), wanted)
            raise InputError(text.replace("\n", "; "))
    for raw, _ in found if name == "lume" else ():
        document, kind = document_of(raw.row)
        if kind == "qa":
            beside.setdefault(document, []).append(raw.row["output"].strip().rstrip("."))
    solved = _solved([raw.row for raw, _ in found], settings.model) if settings.model else ()
    why = "the choices alone give the answer away"
    return [
        (raw, why if at in solved else _made(raw, shape)) for at, (raw, shape) in enumerate(found)
    ]


def _shape(name: SetName, row: Any) -> tuple[Shape | None, list[str]]:
    """The kind of a row, and what is wrong with it."""
    if not isinstance(row, Mapping):
        return None, row_problems(row)
    for shape in SETS[name]:
        if shape.columns.keys() <= row.keys() <= {*shape.columns, *shape.more, *ALWAYS}:
            return shape, shape.problems(row)
    return None, [f"found columns {', '.join(map(str, row)) or 'none'}"[:300]]


def _made(raw: Raw, shape: Shape) -> Made:
    words = re.split(r"[^a-z]+", raw.file.stem.lower())
    why = next((why for word, why in _NOT_ASKED.items() if word in words), None)
    try:
        return why or shape.become(raw)
    except ValueError as error:
        raise InputError(f"{raw.file}: {raw.where}: {error}") from error


def _rows(file: Path, *, nested: bool) -> tuple[list[SourceRow], list[str]]:
    """The rows of a JSON list or of JSONL, whatever the suffix; of an object that is one row too.

    Args:
        file: of a published set.
        nested: rows stand in lists below `train` and `val`.
    """
    rows, problems = read_rows(file)
    if problems and problems[0].startswith(NO_LIST):
        rows, problems = numbered([read_json(file)]), []
    return ([one for row in rows for one in _flat(*row)] if nested else rows), problems


def _flat(where: str, value: Any) -> Iterator[SourceRow]:
    """Rows in lists in lists and under `train` and `val`, each with its way there."""
    if isinstance(value, list):
        for n, one in enumerate(value, 1):
            yield from _flat(f"{where} {n}", one)
    elif isinstance(value, Mapping) and value and value.keys() <= {"train", "val"}:
        for key, one in value.items():
            yield from _flat(f"{where} {key}", one)
    else:
        yield where, value


def _solved(rows: Sequence[Mapping[str, Any]], model: str) -> set[int]:
    """Places of items that a model answers from the choices alone, without their question.

    Each choice follows all four; the one of the highest mean log-probability (nats per token) is
    the model's.
    """
    from lensaudit.evaluation.known import answer_logprobs  # imports torch

    asked = [
        Fact(4 * at + n, "\n".join(row["choices"]), one, "", one, at)
        for at, row in enumerate(rows)
        for n, one in enumerate(row["choices"])
    ]
    scores = answer_logprobs(asked, model)
    found = set()
    for at, row in enumerate(rows):
        own = [scores.get(4 * at + n, -math.inf) for n in range(4)]
        if own.index(max(own)) == row["answer"]:
            found.add(at)
    return found
