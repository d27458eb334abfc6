"""The table of kinds: what each is on disk. A kind of a room above the core brings its own row."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from lensaudit.results.kinds.eval import LOGS
from lensaudit.results.kinds.know import KnowRecord
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.reading import SUMMARY, JsonObject, checked_as

Kind = str
"""Name of a kind of result."""
ROOM = "lensaudit.kinds"
"""Folder of the kinds that rooms above the core write."""


@dataclass(frozen=True, kw_only=True)
class ResultKind:
    """A row of the table."""

    record: Any
    """What the file that marks a result holds."""
    files: Sequence[str] = (SUMMARY,)
    """What that file may be called."""
    is_named: bool = False
    """A file of that name is of this kind where neither it nor a manifest says another."""
    said: Sequence[str] = ()
    """What it says of itself where no manifest says the kind, beside the kind's own name."""
    field: str | None = None
    """That no other kind has: it tells a file that says nothing of itself."""
    column: str | None = None
    """The same of another tool's table."""
    of_row: Callable[[Mapping[str, str]], Any] | None = None
    """A row of such a table as the record is written."""
    is_closed: bool = False
    """What lies below its folder is part of it, and no result."""


_OWN: Mapping[Kind, ResultKind] = {
    "patch": ResultKind(record=PatchSummary, is_named=True),
    # a log in another tool's layout: `kinds.eval` reads it
    "eval": ResultKind(record=JsonObject, files=LOGS, is_named=True),
    "know": ResultKind(record=KnowRecord),
    "counterfactual": ResultKind(record=PatchSummary),
}


@cache
def kinds() -> Mapping[Kind, ResultKind]:
    """Kind of a result -> what it is on disk."""
    return {**_OWN, **entered("KINDS")}


def entered(name: str) -> dict[Kind, Any]:
    """What the files of the room have under a name, `KINDS` or `VIEWS`: kind -> its own.

    Each ends with its `KINDS`: one that is not read to its end fails here.
    """
    places = import_module(ROOM).__path__
    files = [import_module(f"{ROOM}.{one.name}") for one in iter_modules(places)]
    tables = [getattr(file, name, {}) for file in files if file.KINDS]
    return {kind: own for table in tables for kind, own in table.items()}


def record_in(kind: Kind, content: Any, where: object) -> Any:
    """The record that a result holds as plain JSON.

    Raises:
        InputError: a field is missing or of another kind.
    """
    return checked_as(kinds()[kind].record, content, where)
