"""A file of lines that is appended to, never changed, and checked on every reading.

Its first line is the header: which kind of ledger this is, and the key of everything that its lines
depend on together. Each further line carries a checksum of the header and of its own values, so a
line counts only where it was written and as it was written. One rule for torn, damaged, edited and
foreign lines alike: they are left out, the reader is told how many, and they are computed again.
The first line that is added after that writes the ledger anew without them.
"""

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import (
    appear,
    append_jsonl,
    jsonl_bytes,
    link_new,
    make_folder,
    read_bytes,
    write_jsonl,
)
from lensaudit.progress import Notice
from lensaudit.text import canonical_json, digest, parse_json, slug
from lensaudit.turns import in_turn

LedgerLine = dict[str, Any]
CHECK = "check"
"""Field of a line: its checksum."""
LEDGER = "ledger"
"""Field of a header: the kind."""


def bond(kind: Any, key: Any) -> str:
    """What ties a line to its ledger: the content hash of the header."""
    return digest([kind, key])


def object_in(line: bytes) -> LedgerLine:
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
        self._bond = bond(kind, self.key)
        found = [object_in(line) for line in read_bytes(path).splitlines()]
        lines = [row for row in found if row != self.header]
        self.rows: list[LedgerLine] = list(filter(None, map(self._read, lines)))
        self._n_lines, self._n_dropped = len(lines), len(lines) - len(self.rows)
        self._is_sound = found[:1] == [self.header] and not self._n_dropped
        if notice is not None and self.problem is not None:
            notice(self.problem)

    @property
    def header(self) -> LedgerLine:
        """What all lines have in common, as the first line of the file."""
        return {LEDGER: self.kind, "key": dict(self.key), CHECK: self._bond}

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
        # no lock where there is no file: the first writer's appears whole, others add to it
        if self.path.exists() or not appear(
            self.path, lambda stream: stream.write(jsonl_bytes([self.header, *lines])), link_new
        ):
            with self._in_turn():
                now = self if self._is_sound else Ledger(self.path, self.kind, self.key)
                if now._is_sound:
                    append_jsonl(self.path, lines)
                else:  # what does not count is left out, unless another process has done so
                    self._write([*now.rows, *added])
        self._is_sound = True
        self.rows += added

    def rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Put these lines in place of all there are."""
        new = [dict(row) for row in rows]
        self.exchange(lambda _: new)

    def keep_last(self, of: Callable[[LedgerLine], Hashable]) -> None:
        """Leave out every line in whose place, by `of`, a later one stands."""
        self.exchange(lambda rows: list({of(row): row for row in rows}.values()))

    def exchange(self, new: Callable[[list[LedgerLine]], list[LedgerLine]]) -> None:
        """Put other lines in place of those that are there now; who adds lines meanwhile waits.

        Args:
            new: from the lines that are there to those that are to be.
        """
        with self._in_turn():
            now = Ledger(self.path, self.kind, self.key)
            self.rows = new(now.rows)
            if self.rows != now.rows or (self.path.exists() and not now._is_sound):
                self._write(self.rows)
        self._is_sound = True

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Hold the ledger's lock: one process at a time adds lines or replaces the file."""
        while True:
            file = _number(self.path)
            with in_turn(self.path):
                # while this one waited, another file may have come in its place
                if file == _number(self.path):
                    yield
                    return

    def _write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        write_jsonl(self.path, [self.header, *map(self.signed, rows)])


def _number(path: Path) -> tuple[int, int] | None:
    """What tells a file from another of its name; None where there is none."""
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None


def ledger_path(folder: Path, name: str, key: Mapping[str, Any]) -> Path:
    """Path of a key's lines: `<name>--<key>.jsonl`, or an existing file of any other name."""
    own = folder / f"{slug(name)}--{digest(key)}.jsonl"
    others = () if own.exists() else sorted(folder.glob(f"*--{digest(key)}.jsonl"))
    return next(iter(others), own)
