"""Which results lie in a folder? Every file and folder named is found, or left out aloud."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lensaudit.errors import InputError
from lensaudit.files import read_json

Kind = Literal["patch", "eval", "steering", "interventions", "rtt", "meta", "aggregate"]

MARKS: dict[str, Kind] = {
    "summary.json": "patch",
    "TOFU_EVAL.json": "eval",
    "MUSE_EVAL.json": "eval",
    "results.json": "steering",
    "layer_sweep.json": "steering",
    "interventions.json": "interventions",
}
"""A file of this name in a folder is a finished result of this kind."""
SCHEMAS: dict[str, Kind] = {
    "steer-results": "steering",
    "steer-sweep": "steering",
    "steer-interventions": "interventions",
    "meta_table": "meta",
    "aggregate": "aggregate",
    "rtt-summary": "rtt",
}
"""What a file of any name says of itself under `kind`, or under `schema` before the slash."""

_TRACES = ("manifest.json", "results.jsonl", "layers.csv", "passes", "jobs.jsonl", "responses")
_DEPTH = 6
"""Folders below a named one that are looked into."""
WANTED = (
    "wanted a folder that lensaudit patch, eval, meta, steer or rtt wrote, or one that holds such"
)


@dataclass(frozen=True)
class Found:
    """One finished result: the file that marks it."""

    kind: Kind
    path: Path


@dataclass(frozen=True)
class LeftOut:
    """What was named or met and is not on the page, and why."""

    path: str
    reason: str


def locate(paths: Iterable[Path]) -> tuple[list[Found], list[LeftOut]]:
    """Finished results under the named files and folders, each once; and what was no result.

    Raises:
        InputError: a path does not exist.
    """
    found: dict[Path, Found] = {}
    left: list[LeftOut] = []
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: no such file or folder; {WANTED}")
        here, missed = _in_folder(path) if path.is_dir() else _file(path)
        left += missed
        for one in here:
            found.setdefault(one.path.resolve(), one)
        if not here and not missed:
            left.append(LeftOut(str(path), "holds no result of lensaudit"))
    return list(found.values()), left


def _in_folder(top: Path) -> tuple[list[Found], list[LeftOut]]:
    found: list[Found] = []
    left: list[LeftOut] = []
    for folder, names in _folders(top):
        here = [one for name in sorted(names) for one in _marked(folder / name)]
        found += here
        traces = [name for name in _TRACES if name in names]
        if traces and not here:
            left.append(LeftOut(str(folder), _unfinished(traces)))
    return found, left


def _unfinished(traces: Sequence[str]) -> str:
    return f"unfinished: holds {traces[0]} but no summary; run its command again to go on"


def _folders(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """Folders from `top` down, with the names in them; what starts with a dot is not entered."""
    base = len(top.parts)
    for folder, inner, files in os.walk(top):
        names = [*files, *inner]
        deep = len(Path(folder).parts) - base >= _DEPTH
        inner[:] = [] if deep else sorted(n for n in inner if n[:1] != "." and n != "passes")
        yield Path(folder), names


def _marked(path: Path) -> list[Found]:
    """The result that a file marks; a JSON file of another name is asked for its schema."""
    if path.suffix not in (".json", ".csv") or not path.is_file():
        return []
    kind = _by_schema(path) if path.suffix == ".json" else None
    kind = kind or MARKS.get(path.name) or _by_columns(path)
    return [Found(kind, path)] if kind else []


def _file(path: Path) -> tuple[list[Found], list[LeftOut]]:
    found = _marked(path)
    return found, [] if found else [LeftOut(str(path), f"is no result of lensaudit; {WANTED}")]


def _by_schema(path: Path) -> Kind | None:
    with path.open("rb") as stream:
        start = stream.read(4096)
    if b'"schema"' not in start and b'"kind"' not in start:
        return None
    try:
        content = read_json(path)
    except InputError:
        return None
    said = content if isinstance(content, dict) else {}
    names = (str(said.get(field, "")).partition("/")[0] for field in ("kind", "schema"))
    return next((SCHEMAS[name] for name in names if name in SCHEMAS), None)


def _by_columns(path: Path) -> Kind | None:
    """The summary of retraining attacks is a table with this column."""
    if path.suffix != ".csv":
        return None
    with path.open("rb") as stream:
        header = stream.readline(4096)
    return "rtt" if b"forget_acc_unlearn_rtt" in header else None
