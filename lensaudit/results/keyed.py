"""What was made once is found again by its key: folders, files, and lines of a ledger.

A key is a hash of everything that determines what is written. Of a run `begin` marks a folder as
its own, `seal` writes the manifest last of all: the key and the hash of every file it speaks of. A
folder with a manifest is finished; one with a mark can go on; readers compare the hashes.

Where models are named before they are opened the key is a hash of every option, of models and rows
by content, of the code and the libraries, and stands in the manifest as `asked`: whoever asks the
same again is given what the files say, and no model library is imported for it.

A ledger is appended to, never changed, and checked on every reading. Its first line is the header:
which kind of ledger this is, and the key of everything that its lines depend on together. Each
further line carries a checksum of the header and of its own values, so a line counts only where it
was written and as it was written. One rule for torn, damaged, edited and foreign lines alike: they
are left out, the reader is told how many, and they are computed again. The first line that is added
after that writes the ledger anew without them.
"""

import glob
import json
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import (
    append_jsonl,
    canonical_json,
    digest,
    in_turn,
    make_folder,
    parse_json,
    read_bytes,
    read_once,
    slug,
    write_bytes,
    write_json,
    write_jsonl,
)
from lensaudit.progress import Notice, unheard
from lensaudit.results.integrity import misfits
from lensaudit.results.manifest import (
    BEGUN,
    MANIFEST,
    Manifest,
    manifest,
    mark_of,
    signed,
    signed_object,
)
from lensaudit.results.owner import check_free
from lensaudit.results.reading import Record, document, json_object, part, read_as

LOOKED_AT_BYTES = 64 << 20
"""Larger files are weights: their hash is taken when they are opened, and not once more here."""


def begin(folder: Path, key: str, command: str) -> Path:
    """Mark `folder` as the run's of this key, and take away the verdict of an earlier one."""
    make_folder(folder)
    # first of all: on a full disk the folder stays the run's, begun or finished
    write_json(folder / BEGUN, {"command": command, "inputs": {"key": key}})
    (folder / MANIFEST).unlink(missing_ok=True)
    return folder


def seal(folder: Path, made: Manifest, *, key: str, files: Iterable[str]) -> Path:
    """Write the manifest, last of all: with it the folder is finished.

    Args:
        folder: of the run.
        made: how it was made.
        key: of the run.
        files: names below `folder` that the manifest answers for.
    """
    return replace(made, inputs={**made.inputs, "key": key}).write(folder, files)


def held(folder: Path) -> str:
    """What is said where a run is asked again."""
    return f"{folder} holds this run already"


def finished(folder: Path, key: str, command: str, name: str = MANIFEST) -> bool:
    """Whether `folder` holds the finished work of this very run, each file as it was written.

    Args:
        folder: may hold anything, or be missing.
        key: of the run.
        command: as its manifest calls it.
        name: of the manifest.
    """
    with suppress(InputError):
        return check_own(folder, key, command, name)
    return False


def check_own(folder: Path, key: str, command: str, name: str = MANIFEST) -> bool:
    """Whether `folder` holds this very run, finished; refuses one with anything else in it.

    Arguments are those of `finished`.

    Raises:
        InputError: another command's, another run's, nobody's, or this one's with files that were
            changed since.
    """
    check_free(folder, command)
    mark = next((one for one in (name, BEGUN) if (folder / one).exists()), None)
    if mark is not None:
        if part(json_object(folder / mark), "inputs").get("key") != key:
            raise InputError(f"{folder}: holds a run with other settings; name another --out")
        for line in misfits(folder, name=name, largest=LOOKED_AT_BYTES) if mark == name else ():
            raise InputError(f"{folder}: {line}; name another --out")
    elif folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            f"{folder}: is not empty and holds no run of this command; name another --out"
        )
    return mark == name


def in_folder(
    out: Path,
    identity: Mapping[str, Any],
    record: type[Record],
    work: Callable[[], Record],
    *,
    options: Mapping[str, Any],
    inputs: Mapping[str, Any],
    device: str,
    files: Iterable[str],
    fresh: bool = False,
    computed: Callable[[], object] = lambda: None,
    notice: Notice = unheard,
) -> Record:
    """The record of a run in its folder: read where it is finished, else made now.

    Args:
        out: the folder.
        identity: what tells the run from others, its `command` among it; hashed it is the key.
        record: of its kind, as `summary.json` holds it.
        work: writes all other files, and returns the record.
        options: of the run, for the manifest.
        inputs: what each name stood for, for the manifest.
        device: for the manifest.
        files: that the manifest answers for.
        fresh: make it again.
        computed: what `work` writes; a finished run stays as it is until that is there.
        notice: told that there is nothing to do.

    Raises:
        InputError: the folder holds something else.
    """
    started, key, path = time.monotonic(), digest(identity), out / "summary.json"
    command = identity["command"]
    if check_own(out, key, command):
        if not fresh:
            notice(f"{held(out)}; nothing to do")
            return read_as(record, path)
        computed()
    begin(out, key, command)
    found, inputs = work(), {**identity, **inputs}
    write_json(path, document(found))
    made = manifest(command, options=options, inputs=inputs, device=device, started=started)
    seal(out, made, key=key, files=files)
    return found


def planned(
    out: Path, identity: Mapping[str, Any], plan: Callable[[], str], *, fresh: bool = False
) -> str:
    """What `in_folder` would do, in words: nothing where the run is there.

    Args:
        out: the folder.
        identity: what tells the run from others, its `command` among it.
        plan: of a run that is to be made.
        fresh: it is made again.

    Raises:
        InputError: the folder holds something else.
    """
    if check_own(out, digest(identity), identity["command"]) and not fresh:
        return f"nothing to do: {held(out)}"
    return plan()


def write_keyed(path: Path, document: Mapping[str, Any]) -> Path:
    """Write a JSON object that holds its `key`, with a checksum."""
    return write_json(path, signed(document))


def write_marked(path: Path, content: bytes, key: str) -> None:
    """Write a file, and last of all a JSON beside it that says of which key and content it is."""
    write_bytes(path, content)
    write_keyed(path.with_suffix(".json"), {"key": key, **mark_of(path)})


def read_marked(path: Path, key: str) -> bytes | None:
    """The content of a file, if it was made under `key` and is as it was written; else None."""
    said = keyed_document(path.with_suffix(".json"), key)
    whole = said is not None and path.is_file() and said == {"key": key, **mark_of(path)}
    return path.read_bytes() if whole else None


def keyed_document(path: Path, key: str) -> dict[str, Any] | None:
    """The JSON object in a file, if it was made under `key` and is as it was written; else None."""
    with suppress(InputError):
        found = signed_object(path)
        return found if found.get("key") == key else None
    return None


Key = Callable[[], str]
"""The key of a question, by what its models and files hold now."""


class Question:
    """What a run asks: its key, before the first file is read and again when all is written."""

    def __init__(self, key: Key, notice: Notice = unheard):
        self._key = key
        self._asked = _known(key)
        self._notice = notice
        self._told: list[str] = []
        self._opened: int | None = None

    def tell(self, line: str) -> None:
        """Pass a remark on."""
        self._told.append(line)
        self._notice(line)

    def opened(self, _: object = None) -> None:
        """All names stand for something now: what was told so far is said of any such run."""
        self._opened = len(self._told)

    def where(self, usual: Path, name: str = MANIFEST, *, named: bool = False) -> Path:
        """The folder whose manifest says that this was asked: the usual one, or one beside it.

        Args:
            usual: where results go, unless another run's are there.
            name: of the manifest.
            named: the user chose the folder: it is not exchanged.
        """
        own = f"{glob.escape(usual.name)}-{'[0-9a-f]' * 8}"
        beside = () if named else sorted(usual.parent.glob(own))
        return next((one for one in (usual, *beside) if self.is_of(one / name)), usual)

    def is_of(self, manifest: Path) -> bool:
        """Whether a manifest says that this was asked."""
        with suppress(LensAuditError):
            return part(json_object(manifest), "asked").get("hash") == self._asked
        return False

    def answered(self, manifests: Iterable[Path]) -> list[str] | None:
        """What a finished run told that asked the same; None where there is none, or any doubt.

        Args:
            manifests: every one that the run wrote.
        """
        said: dict[str, Any] = {}
        with suppress(LensAuditError, OSError):
            for path in manifests:
                said = part(json_object(path), "asked")
                begun = (path.parent / BEGUN).exists()
                other = self._asked is None or said.get("hash") != self._asked
                if other or begun or misfits(path.parent, name=path.name, largest=LOOKED_AT_BYTES):
                    return None
            return said.get("told")
        return None

    def settle(self, manifests: Iterable[Path]) -> None:
        """Say in the manifests of the finished run what it was asked, that it may answer again.

        Nothing is said where another run may find something else: a file changed meanwhile, or the
        run itself had something to remark, as scores of other versions, another engine than the
        one asked for, a damaged cache; nor where another process has begun the run again.
        """
        settled = self._asked is not None and self._opened == len(self._told)
        if settled and _known(self._key) == self._asked:
            asked = {"hash": self._asked, "told": self._told}
            for path in manifests:
                # where nobody may write the answer is there, and is only not found as fast
                with suppress(LensAuditError), in_turn(path.parent):
                    made = json_object(path) if path.exists() else {"asked": asked}
                    if made.get("asked") != asked:
                        write_json(path, signed({**made, "asked": asked}))


def _known(key: Key) -> str | None:
    """None where something is wrong, which the run says itself."""
    with suppress(LensAuditError), read_once():
        return key()
    return None


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
        with self._in_turn():
            now = self if self._is_sound else Ledger(self.path, self.kind, self.key)
            if not self.path.exists():
                append_jsonl(self.path, [self.header, *lines])
            elif now._is_sound:
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
        """One at a time adds lines or puts another file in the place of this one."""
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
    """Where the lines of a key are kept: `<name>--<key>.jsonl`, or under any other name's."""
    own = folder / f"{slug(name)}--{digest(key)}.jsonl"
    others = () if own.exists() else sorted(folder.glob(f"*--{digest(key)}.jsonl"))
    return next(iter(others), own)
