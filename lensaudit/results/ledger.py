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
from contextlib import suppress
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

LedgerLine = dict[str, Any]
CHECK = "check"
"""Field of a line: its checksum."""
_LEDGER = "ledger"
"""Field of a header: the kind."""
_NAMED_FOR = re.compile(r".*--([0-9a-f]{32})\.jsonl")
"""A ledger file that is named for its key."""


def _bond(kind: Any, key: Any) -> str:
    """What ties a line to its ledger: the content hash of the header."""
    return digest([kind, key])


def _object(line: bytes) -> LedgerLine:
    """The object in a line; an empty one where there is none."""
    with suppress(ValueError):
        row = parse_json(line)
        return row if isinstance(row, dict) else {}
    return {}


class Ledger:
    """A ledger file under one header; every line that was added survives a kill."""

    def __init__(
        self,
        path: Path,
        kind: str,
        key: Mapping[str, Any],
        *,
        notice: Notice | None = None,
    ):
        """Read what is there; nothing is written before the first line is added.

        Args:
            path: of the file.
            kind: of the ledger.
            key: what all its lines depend on.
            notice: told in one line what does not count.
        """
        self.path, self.kind = path, kind
        # as it comes back from a file: tuples are lists there
        self.key: Mapping[str, Any] = json.loads(canonical_json(dict(key)))
        self._bond = _bond(kind, self.key)
        found = [_object(line) for line in read_bytes(path).splitlines()]
        lines = [row for row in found if row != self.header]
        self.rows: list[LedgerLine] = list(filter(None, map(self._read, lines)))
        self._n_lines, self._n_dropped = len(lines), len(lines) - len(self.rows)
        self._is_sound = found[:1] == [self.header] and not self._n_dropped
        if notice is not None and self.problem is not None:
            notice(self.problem)

    @property
    def header(self) -> LedgerLine:
        """What all lines have in common, as the first line of the file."""
        return {_LEDGER: self.kind, "key": dict(self.key), CHECK: self._bond}

    def signed(self, row: Mapping[str, Any]) -> LedgerLine:
        """A line with its checksum, of its values under the header: 64 bits, 16 hex digits."""
        return {**row, CHECK: digest([self._bond, row])[:16]}

    def _read(self, row: LedgerLine) -> LedgerLine | None:
        """The values of a line; None if it was not written under this header, with these."""
        values = {name: value for name, value in row.items() if name != CHECK}
        with suppress(ValueError, RecursionError):  # NaN, or a nesting that nobody wrote
            return values if self.signed(values) == row else None
        return None

    @property
    def problem(self) -> str | None:
        """What did not count when the file was read, in one line; None where all did."""
        dropped = f"{self._n_dropped} of {self._n_lines} lines are damaged or of another run"
        after = "they are left out, and computed again where they are wanted"
        return f"{self.path}: {dropped}; {after}" if self._n_dropped else None

    def check(self, remedy: str) -> None:
        """Refuse a ledger from which numbers are read and nothing is computed again.

        Args:
            remedy: what to do, as a command.

        Raises:
            InputError: a line of it, or its header, is not as it was written.
        """
        if not self._is_sound and self.path.exists():
            lost = self._n_dropped
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
        lines = list(map(self.signed, added))
        if not self.path.exists():
            lines = [self.header, *lines]
        elif not self._is_sound:
            # leave out what does not count, unless another process has done so
            now = Ledger(self.path, self.kind, self.key)
            if not now._is_sound:
                self._write(now.rows)
        append_jsonl(self.path, lines)
        self._is_sound = True
        self.rows += added

    def rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Put these lines in place of all there are."""
        self.rows = [dict(row) for row in rows]
        self._write(self.rows)
        self._is_sound = True

    def _write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        write_jsonl(self.path, [self.header, *map(self.signed, rows)])

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
    row = _object(read_bytes(path).partition(b"\n")[0])
    kind, key, named = row.get(_LEDGER), row.get("key"), _NAMED_FOR.fullmatch(path.name)
    if not isinstance(kind, str) or not isinstance(key, dict):
        why = "its first line is not a header; it is written again when used"
    elif row.get(CHECK) != _bond(kind, key):
        why = "its header is damaged; it is written again when used"
    elif named and named[1] != digest(key):
        own = f"its header says {digest(key)[:8]}…; what it holds is computed again when used"
        why = f"is named for key {named[1][:8]}…, {own}"
    else:
        found = Ledger(path, kind, key)
        return VerifiedLedger(
            str(path), kind, len(found.rows), tuple(filter(None, (found.problem,)))
        )
    return VerifiedLedger(str(path), None, 0, (f"{path}: {why}",))
