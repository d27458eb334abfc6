"""The one way files are written: complete or not there. And the one way names become paths."""

import csv
import errno
import hashlib
import io
import json
import os
import platform
import re
import secrets
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, TryAgainError, WorkError

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def os_error(error: OSError, path: Path) -> InputError | TryAgainError | WorkError:
    """The user's line for an operating-system error on `path`."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return TryAgainError(f"{path}: no space left on the device; free some and run again")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return InputError(f"{path}: cannot be written ({error.strerror}); name another folder")
        case _:
            return WorkError(f"{path}: {error.strerror or error}")


def make_folder(folder: Path) -> Path:
    """Create `folder` and check that it can be written, before any work.

    Raises:
        InputError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-probe-{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        if isinstance(error, FileExistsError | NotADirectoryError):
            raise InputError(f"{folder}: is a file; a folder is wanted here") from error
        raise os_error(error, folder) from error
    return folder


def write_bytes(path: Path, content: bytes) -> Path:
    """Write by temporary file, fsync and rename: a file that exists is complete.

    Raises:
        InputError | TryAgainError | WorkError: by cause; the file is as it was before.
    """
    partial = partial_path(path)
    try:
        try:
            with partial.open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, path)
            sync_folder(path.parent)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise os_error(error, path) from error
    return path


def process_name(pid: int | None = None) -> str:
    """`<machine>-<pid>` of a process here: who made a temporary file, and is it still alive?

    The machine is a hash of the host's name, its boot and its process namespace, so a container
    that shares the name but not the processes counts as another machine.
    """
    try:
        space = f"{_BOOT.read_text()}{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux
        space = ""
    machine = hashlib.blake2b(f"{platform.node()}{space}".encode(), digest_size=4).hexdigest()
    return f"{machine}-{os.getpid() if pid is None else pid}"


_BOOT = Path("/proc/sys/kernel/random/boot_id")


def is_running(process: str) -> bool | None:
    """Is the process of that name alive? None where it is of another machine."""
    pid = int(process.rpartition("-")[2])
    if process != process_name(pid):
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def partial_path(path: Path) -> Path:
    """Where `path` is written before it gets its name: tells who writes it, never ends in `.h5`."""
    stem = path.name[:_LONGEST_STEM]
    return path.with_name(f"{stem}.{process_name()}-{secrets.token_hex(4)}.partial")


_LONGEST_STEM = 200  # of 255 bytes that file systems allow
_PARTIAL = re.compile(r".*\.([0-9a-f]{8}-\d+)-[0-9a-f]{8}\.partial")
PARTIAL_AGE_S = 6 * 3600.0
"""A temporary file of another machine is taken for dead after this: none takes hours to write."""


def sweep_partials(folder: Path) -> list[Path]:
    """Remove what killed writers left in `folder`; files of living writers stay."""
    swept = []
    for path in folder.glob("*.partial"):
        match = _PARTIAL.fullmatch(path.name)
        if match is None:
            continue
        try:
            running = is_running(match[1])
            if running is None:
                running = time.time() - path.stat().st_mtime < PARTIAL_AGE_S
            if not running:
                path.unlink()
                swept.append(path)
        except OSError:  # another process swept it first, or may and we may not
            continue
    return swept


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable; a no-op where folders cannot be synced."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows and some network mounts refuse to open a folder
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def canonical_json(value: Any) -> str:
    """One spelling per value: sorted keys, no blanks, no NaN. What hashes are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """128-bit content hash of a JSON value, 32 hex digits."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=16).hexdigest()


def write_json(path: Path, value: Any) -> Path:
    """Strict JSON (no NaN), written atomically."""
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    return write_bytes(path, (text + "\n").encode())


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """One strict JSON object per line, written atomically."""
    lines = (json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
    return write_bytes(path, "".join(lines).encode())


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Comma-separated, written atomically; text that a spreadsheet would run is quoted with '."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return write_bytes(path, buffer.getvalue().encode())


def _cell(value: Any) -> Any:
    dangerous = isinstance(value, str) and value[:1] in ("=", "+", "-", "@")
    return f"'{value}" if dangerous else value


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append whole lines and fsync: after a kill every earlier line is still there."""
    text = "".join(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
    try:
        with path.open("ab+") as stream:
            _end_torn_line(stream)
            stream.write(text.encode())
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise os_error(error, path) from error


def _end_torn_line(stream: io.BufferedRandom) -> None:
    """A line cut by a kill gets its newline, so the next append does not extend it."""
    if stream.seek(0, os.SEEK_END) == 0:
        return
    stream.seek(-1, os.SEEK_END)
    if stream.read(1) != b"\n":
        stream.write(b"\n")


def read_appended(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of an append-only log; lines torn by a kill are passed over.

    Raises:
        WorkError: the file exists but cannot be read.
    """
    if not path.exists():
        return
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise os_error(error, path) from error
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def read_text(path: Path) -> str:
    """A UTF-8 text file, with or without a byte-order mark.

    Raises:
        InputError: missing, a folder, unreadable or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def read_json(path: Path) -> Any:
    """A JSON file.

    Raises:
        InputError: missing, unreadable or malformed; names the line.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno} is not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:  # a number or a nesting beyond Python's limits
        raise InputError(f"{path}: not usable JSON ({error})") from error


def slug(name: str, limit: int = 40) -> str:
    """A name as a file name: no separators, no leading dot or dash, at most `limit` characters.

    Cosmetic only; identity is carried by hashes.

    >>> slug("../models/idk nll"), slug("-rf"), slug("…")
    ('models-idk-nll', 'rf', 'model')
    """
    text = unicodedata.normalize("NFKC", name)
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", text).lower()
    text = re.sub(r"\.{2,}", "-", text)
    return text.strip(".-_")[:limit].strip(".-_") or "model"


def printable(text: str) -> str:
    r"""Text from a model or a data set, without terminal escapes or direction overrides.

    >>> printable("a\x1b[31mb")
    'a[31mb'
    """
    return _CONTROL.sub("", text)
