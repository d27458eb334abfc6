"""What was computed once, line by line: appended, never changed, and checked on every reading.

The first line is the header: which kind of ledger this is, and the key of everything that its lines
depend on together. Each further line carries a checksum of the header and of its own values, so a
line counts only where it was written and as it was written. One rule for torn, damaged, edited and
foreign lines alike: they are left out, the reader is told how many, and they are computed again.
The first line that is added after that writes the ledger anew without them.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import (
    append_jsonl,
    canonical_json,
    digest,
    make_folder,
    parse_json,
    read_bytes,
    slug,
    write_jsonl,
)
from lensaudit.progress import Notice
from lensaudit.results.reading import fits

LedgerLine = dict[str, Any]
CHECK = "check"
"""Field of a line: its checksum."""
_LEDGER = "ledger"
"""Field of a header: the kind."""
_NAMED_FOR = re.compile(r".*--([0-9a-f]{32})\.jsonl")
"""A ledger file that is named for its key."""


@dataclass(frozen=True)
class Header:
    """What all lines of a ledger have in common."""

    kind: str
    """`scores`, `texts`, `judgements` …"""
    key: Mapping[str, Any]
    """Everything the lines depend on beside what they say themselves; plain JSON values."""

    @property
    def bond(self) -> str:
        """What ties a line to its ledger: the content hash of the header."""
        return digest([self.kind, self.key])

    def line(self) -> LedgerLine:
        """Header as a line of the file."""
        return {_LEDGER: self.kind, "key": dict(self.key), CHECK: self.bond}

    def signed(self, row: Mapping[str, Any]) -> LedgerLine:
        """A line with its checksum."""
        return {**row, CHECK: checksum(self.bond, row)}

    def accepts(self, row: LedgerLine) -> bool:
        """Was this line written under this header, with these very values?"""
        values = {name: value for name, value in row.items() if name != CHECK}
        try:
            return row.get(CHECK) == checksum(self.bond, values)
        except (ValueError, RecursionError):  # NaN, or a nesting that nobody wrote
            return False


def checksum(bond: str, row: Mapping[str, Any]) -> str:
    """Of a line's values under the bond of its header: 64 bits, 16 hex digits."""
    return digest([bond, row])[:16]


@dataclass(frozen=True)
class Scan:
    """What lies in a ledger file."""

    rows: tuple[LedgerLine, ...]
    """The lines that count, without their checksums."""
    n_lines: int
    """Of the file, beside its header."""
    is_ours: bool
    """It begins with the wanted header."""

    @property
    def n_dropped(self) -> int:
        """Number of lines that do not count."""
        return self.n_lines - len(self.rows)

    @property
    def is_sound(self) -> bool:
        """Whether every line counts, under the wanted header."""
        return self.is_ours and not self.n_dropped


def scan(path: Path, header: Header, *, record: Any = None) -> Scan:
    """Read a ledger file that should have this header.

    Args:
        path: of the file; none is an empty ledger.
        header: what its lines must have been written under.
        record: dataclass that a line must fit to count; None: any does.

    Raises:
        WorkError: the file exists but cannot be read.
    """
    found = [_object(line) for line in read_bytes(path).splitlines()]
    lines = [row for row in found if row != header.line()]
    rows = (
        {name: value for name, value in row.items() if name != CHECK}
        for row in lines
        if row and header.accepts(row)
    )
    is_ours = bool(found) and found[0] == header.line()
    fitting = (row for row in rows if record is None or fits(record, row))
    return Scan(tuple(fitting), len(lines), is_ours=is_ours)


def _object(line: bytes) -> LedgerLine:
    """The object in a line; an empty one where there is none."""
    try:
        row = parse_json(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


class Ledger:
    """A ledger file under one header; every line that was added survives a kill."""

    def __init__(
        self,
        path: Path,
        kind: str,
        key: Mapping[str, Any],
        *,
        record: Any = None,
        notice: Notice | None = None,
    ):
        """Read what is there; nothing is written before the first line is added.

        Args:
            path: of the file.
            kind: of the ledger.
            key: what all its lines depend on.
            record: dataclass that a line must fit to count; None: any does.
            notice: told in one line what does not count.
        """
        self.path = path
        # as it comes back from a file: tuples are lists there
        self.header = Header(kind, json.loads(canonical_json(dict(key))))
        self._record = record
        found = scan(path, self.header, record=record)
        self.rows: list[LedgerLine] = list(found.rows)
        self._is_sound = found.is_sound
        self._n_lines = found.n_lines
        if notice is not None and (said := problem_of(path, found)):
            notice(said)

    def check(self, remedy: str) -> None:
        """Refuse a ledger from which numbers are read and nothing is computed again.

        Args:
            remedy: what to do, as a command.

        Raises:
            InputError: a line of it, or its header, is not as it was written.
        """
        if not self._is_sound and self.path.exists():
            lost = self._n_lines - len(self.rows)
            what = f"{lost} of {self._n_lines} lines are" if lost else "its header is"
            raise InputError(f"{self.path}: {what} damaged, edited or of another run; {remedy}")

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add lines, in one piece: all of them are on disk afterwards, or none.

        Raises:
            InputError | TryAgainError | WorkError: by cause; the ledger is as it was before.
        """
        added = [dict(row) for row in rows]
        if not added:
            return
        make_folder(self.path.parent)
        lines = [self.header.signed(row) for row in added]
        if not self.path.exists():
            lines = [self.header.line(), *lines]
        elif not self._is_sound:
            self._clean()
        append_jsonl(self.path, lines)
        self._is_sound = True
        self.rows += added

    def _clean(self) -> None:
        """Leave out what does not count, unless another process has done so."""
        found = scan(self.path, self.header, record=self._record)
        if not found.is_sound:
            self._write(found.rows)

    def rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Put these lines in place of all there are."""
        self.rows = [dict(row) for row in rows]
        self._write(self.rows)
        self._is_sound = True

    def _write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        signed = (self.header.signed(row) for row in rows)
        write_jsonl(self.path, [self.header.line(), *signed])

    def clear(self) -> None:
        """Forget everything, on disk too."""
        self.path.unlink(missing_ok=True)
        self.rows.clear()


def ledger_path(folder: Path, name: str, key: Mapping[str, Any]) -> Path:
    """Where the lines of a key are kept: `<name>--<key>.jsonl`, or under any other name's."""
    own = folder / f"{slug(name)}--{digest(key)}.jsonl"
    others = () if own.exists() else sorted(folder.glob(f"*--{digest(key)}.jsonl"))
    return next(iter(others), own)


def is_ledger(content: bytes) -> bool:
    """Does it begin with a header, as far as a glance tells?"""
    return f'"{_LEDGER}"'.encode() in content.partition(b"\n")[0]


def problem_of(path: Path, found: Scan) -> str | None:
    """What does not count in a ledger, in one line; None where all does."""
    if not found.n_dropped:
        return None
    return (
        f"{path}: {found.n_dropped} of {found.n_lines} lines are damaged or of another run; they "
        "are left out, and computed again where they are wanted"
    )


def lines_of(path: Path) -> list[LedgerLine]:
    """The lines of any ledger that count under its own header.

    Raises:
        InputError: its first line is no header.
    """
    return list(scan(path, _header_of(_first_line(path), path)).rows)


def _first_line(path: Path) -> LedgerLine:
    return _object(read_bytes(path).partition(b"\n")[0])


@dataclass(frozen=True)
class VerifiedLedger:
    """What checking every line of a ledger found."""

    file: str
    kind: str | None
    n_lines: int
    """That are whole."""
    problems: tuple[str, ...]


def verify_ledger(path: Path) -> VerifiedLedger:
    """Check every line of a ledger against the header that it begins with.

    Raises:
        WorkError: the file cannot be read.
    """
    first = _first_line(path)
    try:
        header = _header_of(first, path)
    except InputError as error:
        return VerifiedLedger(str(path), None, 0, (str(error),))
    found = scan(path, header)
    said = problem_of(path, found)
    return VerifiedLedger(str(path), header.kind, len(found.rows), (said,) if said else ())


def _header_of(row: LedgerLine, path: Path) -> Header:
    """The header in a file's first line.

    Raises:
        InputError: it is none, or not the one that the file is named for.
    """
    kind, key = row.get(_LEDGER), row.get("key")
    if not isinstance(kind, str) or not isinstance(key, dict):
        raise InputError(f"{path}: its first line is not a header; it is written again when used")
    header = Header(kind, key)
    if row != header.line():
        raise InputError(f"{path}: its header is damaged; it is written again when used")
    named = _NAMED_FOR.fullmatch(path.name)
    if named and named[1] != digest(key):
        raise InputError(
            f"{path}: is named for key {named[1][:8]}…, its header says {digest(key)[:8]}…; what "
            "it holds is computed again when used"
        )
    return header
