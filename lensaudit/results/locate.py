"""Find the results in a folder; every other file or folder is left out with a reason."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.results.integrity import check_result, is_whole
from lensaudit.results.kinds.eval import read_eval
from lensaudit.results.kinds.patch import read_patch
from lensaudit.results.kinds.table import Kind, kinds, record_in
from lensaudit.results.manifest import BEGUN, MANIFEST, MANIFESTS, manifests_of
from lensaudit.results.reading import JsonObject, csv_rows, json_object, part

PASSES = "passes"
"""Folder of kept passes, in that of an evaluation."""
OF_RETAIN = "retain"
"""Folder of the retain model's evaluation, in that of a model that is compared with it."""
_TRACES = (
    "manifest.json",
    "results.jsonl",
    "layers.csv",
    PASSES,
    "jobs.jsonl",
    "judgements.jsonl",
    "interventions.jsonl",
    BEGUN,
)
"""What a run leaves before its summary; the first that is there is named."""
NO_RESULTS = (PASSES, MANIFESTS)
"""Folders of a result that hold none."""
COLLECTED = "collected.json"
"""At the top of what `sweep collect` wrote: tables of results that lie elsewhere."""
_MODEL = "a model, not a result; `lensaudit audit --source` with this folder scores it"
UNFINISHED = "unfinished: holds {} but no summary; run its command again to go on"
WANTED = (
    "wanted a folder that lensaudit patch, eval, meta, steer or rtt wrote, or one that holds such"
)

_WHOLE: Mapping[Kind, Callable[[Path], Any]] = {
    "patch": read_patch,
    "counterfactual": read_patch,
    "eval": read_eval,
}
"""Kinds whose record is of several files."""


@dataclass(frozen=True)
class Found:
    """A finished result: the file that marks it."""

    kind: Kind
    path: Path
    made: JsonObject | None = field(default=None, compare=False)
    """The manifest that says so; None where the file's name or content does."""

    @cached_property
    def record(self) -> Any:
        """What it says, read once, and as its run wrote it.

        Raises:
            InputError: a file is missing, was changed, or holds something else.
        """
        if whole := _WHOLE.get(self.kind):
            return whole(self.path)
        check_result(self.path)
        if self.path.suffix == ".csv":
            of_row = kinds()[self.kind].of_row
            rows = [of_row(one) if of_row else one for one in csv_rows(self.path)]
            return record_in(self.kind, rows, self.path)
        return record_in(self.kind, read_json(self.path), self.path)

    @cached_property
    def manifest(self) -> JsonObject | None:
        """How it was made; None of another tool's, which has none."""
        place = self.path.with_name(MANIFEST)
        return self.made or (json_object(place) if place.exists() else None)


@dataclass(frozen=True)
class LeftOut:
    """What was named or met and is not on the page, and why."""

    path: str
    reason: str
    unfinished: bool = False
    """A run was begun there, and what it would have said is not known."""


def locate(paths: Iterable[Path]) -> tuple[list[Found], list[LeftOut]]:
    """Finished results under the named files and folders, each once; and what was no result.

    Raises:
        InputError: a path does not exist.
    """
    found, left = dict[Path, Found](), list[LeftOut]()
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: no such file or folder; {WANTED}")
        here, missed = (
            _in_folder(path) if path.is_dir() else (_marked(path.parent, [path.name]), [])
        )
        if not here and not missed:
            missed = [
                LeftOut(str(path), "holds no result of lensaudit")
                if path.is_dir()
                else LeftOut(str(path), f"is no result of lensaudit; {WANTED}")
            ]
        left += missed
        for one in here:
            found.setdefault(one.path.resolve(), one)
    return list(found.values()), left


@cache
def kinds_by_name() -> Mapping[str, Kind]:
    """Name of a file -> its kind, where neither it nor a manifest says another."""
    return {name: kind for kind, one in kinds().items() if one.is_named for name in one.files}


def _in_folder(top: Path) -> tuple[list[Found], list[LeftOut]]:
    found, left = list[Found](), list[LeftOut]()
    for folder, names in folders_below(
        top,
        closed_by=[name for one in kinds().values() if one.is_closed for name in one.files],
        skipped=NO_RESULTS,
        links=True,
        unread=lambda error: left.append(
            LeftOut(str(error.filename), f"cannot be read ({error.strerror})")
        ),
    ):
        here = _marked(folder, names)
        found += here
        traces = [name for name in _TRACES if name in names]
        if here and BEGUN in names:
            left.append(
                LeftOut(
                    str(folder),
                    "a later run began here and is not finished; the result before it is read",
                    unfinished=True,
                )
            )
        elif traces and not here and COLLECTED not in names:
            is_model = any(name.endswith(".safetensors") for name in names)
            why = _MODEL if is_model else _other(folder, traces)
            left.append(
                LeftOut(str(folder), why or UNFINISHED.format(traces[0]), unfinished=not why)
            )
    return found, left


def _other(folder: Path, traces: Sequence[str]) -> str:
    """The finished result of a kind that is not read here, in words; empty where there is none.

    Its manifest fits its files and answers for all `traces`: otherwise a run may have been cut.
    """
    if not is_whole(folder) or (folder / BEGUN).exists():
        return ""
    made = json_object(folder / MANIFEST)
    files, command, kind = part(made, "files"), made.get("command"), made.get("kind")
    is_other = files and command and kind not in (None, "", *kinds())
    answers = is_other and {MANIFEST, *files}.issuperset(traces)
    return f"a result of `{command}`; no verdict is made from it" if answers else ""


def folders_below(
    top: Path,
    depth: float | int = inf,
    *,
    closed_by: Collection[str] = (),
    skipped: Collection[str] = (PASSES,),
    links: bool = False,
    unread: Callable[[OSError], None] | None = None,
) -> Iterator[tuple[Path, list[str]]]:
    """Folders from `top` down, with the names in them; what starts with a dot is not entered.

    Args:
        top: the first.
        depth: of those that are looked into; without it all are.
        closed_by: files whose folder is not entered further.
        skipped: names of folders that are not entered.
        links: whether a link to a folder elsewhere is entered; a folder is met once.
        unread: told of a folder that cannot be read; without it that is passed over.
    """
    base, seen = len(top.parts), set[Path]()
    for folder, inner, files in os.walk(top, onerror=unread, followlinks=links):
        here = Path(folder).resolve()
        names = [] if here in seen else [*files, *inner]
        is_last = len(Path(folder).parts) - base >= depth
        closed = is_last or not names or not {*closed_by}.isdisjoint(names)
        seen.add(here)
        inner[:] = sorted(n for n in inner if not closed and n[:1] != "." and n not in skipped)
        yield Path(folder), names


def _marked(folder: Path, names: Iterable[str]) -> list[Found]:
    """The results that files of a folder mark: by its manifests, else by name or content."""
    told = _told(folder)
    found = (told[n] if n in told else _guessed(folder / n) for n in sorted(names))
    return [one for one in found if one is not None]


def _told(folder: Path) -> dict[str, Found | None]:
    """Name of a file -> the result that a manifest says it marks; None: it marks none."""
    found: dict[str, Found | None] = {}
    for name in manifests_of(folder):
        with suppress(InputError):  # of a damaged one: whoever reads the result is told
            made = json_object(folder / name)
            kind: Any = str(made.get("kind") or "")
            marks = kinds()[kind].files if kind in kinds() else ()
            for file in part(made, "files") if kind else ():
                found.setdefault(file, Found(kind, folder / file, made) if file in marks else None)
    return found


def _guessed(path: Path) -> Found | None:
    """The result that a file marks of which no manifest says the kind."""
    read = {".json": _json_kind, ".csv": _csv_kind}.get(path.suffix)
    is_file = path.is_file() and not path.name.endswith(MANIFEST)
    kind = read(path) if read and is_file else None
    return Found(kind, path) if kind else None


def _json_kind(path: Path) -> Kind | None:
    """Kind of a JSON file, by its name unless the file states it."""
    named = kinds_by_name().get(path.name)
    start = _start_of(path)
    says_something = any(word in start for word in (b'"schema"', b'"kind"', b'"judge"'))
    if named == "eval" or (named is None and not says_something):
        return named
    try:
        content = read_json(path)
    except InputError:
        return named  # reading it again says what is wrong with it
    first = content[0] if isinstance(content, list) and content else content
    if not isinstance(first, dict):
        return named
    fields = ("kind", "schema") if first is content else ()
    told = [str(first.get(field, "")).partition("/")[0] for field in fields]
    said = (kind for word in told for kind, one in kinds().items() if word in (kind, *one.said))
    by_field = (kind for kind, one in kinds().items() if one.field in first)
    return next(chain(said, by_field), named)


def _csv_kind(path: Path) -> Kind | None:
    """Another tool's table is known by a column; one beside its JSON is not needed."""
    if path.with_suffix(".json").exists():
        return None
    columns = _start_of(path).partition(b"\n")[0].decode(errors="replace")
    return next(
        (kind for kind, one in kinds().items() if one.column and one.column in columns), None
    )


def _start_of(path: Path) -> bytes:
    """First bytes of a file; none of one that cannot be read, as its reader will say."""
    with suppress(OSError), path.open("rb") as stream:
        return stream.read(4096)
    return b""
