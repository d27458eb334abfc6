"""The one way files are written: complete or not there. And the one way names become paths."""

import csv
import errno
import gzip
import io
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from lensaudit.errors import InputError, TryAgainError, WorkError
from lensaudit.partials import partial_path, sweep_partials
from lensaudit.text import parse_json, utf8


def os_error(error: OSError, path: Path) -> InputError | TryAgainError | WorkError:
    """The user's line for an operating-system error on `path`."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return TryAgainError(f"{path}: no space left on the device; free some and run again")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return InputError(f"{path}: access refused ({error.strerror}); name another folder")
        case errno.ENOENT:
            return InputError(f"{path}: no file can be made or found there; name another place")
        case errno.EISDIR | errno.ENOTDIR | errno.ENAMETOOLONG | errno.ELOOP:
            return InputError(f"{path}: {error.strerror}; name another file")
        case errno.EAGAIN | errno.ENOLCK | errno.EMFILE | errno.ENFILE:
            return TryAgainError(f"{path}: {error.strerror}; run again later")
        case _:
            return WorkError(f"{path}: {error.strerror or error}")


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Work on `path`: an error of the system becomes the user's line, see `os_error`."""
    try:
        yield
    except OSError as error:
        raise os_error(error, path) from error


@contextmanager
def reading(path: Path, remedy: str = "") -> Iterator[None]:
    """Read an ordinary file; what is none is refused before it is opened.

    Args:
        path: of the file.
        remedy: what to do where there is none.

    Raises:
        InputError: there is no such file, or one of another kind.
        InputError | TryAgainError | WorkError: by cause.
    """
    check_plain(path)
    with os_errors(path):
        try:
            yield
        except FileNotFoundError as error:
            raise InputError("; ".join(filter(None, (f"{path}: no such file", remedy)))) from error


_KINDS = {
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def check_plain(path: Path) -> None:
    """Refuse what is there and is no ordinary file, before it is opened.

    A pipe would be waited for; a device would be written to, or replaced by a page.

    Raises:
        InputError: a device, a pipe or a socket, or a link to one.
    """
    try:
        kind = _KINDS.get(stat.S_IFMT(path.stat().st_mode))
    except (OSError, ValueError) as error:  # not there, or opening it will say what is wrong
        kind = "a link to itself" if getattr(error, "errno", None) == errno.ELOOP else None
    if kind is not None:
        raise InputError(f"{path}: is {kind}; name an ordinary file")


def check_size(path: Path, most: int) -> None:
    """Refuse a file that is larger than anything of its kind, before it is read.

    Raises:
        InputError: it has more than `most` bytes.
    """
    if path.is_file() and (size := path.stat().st_size) > most:
        raise InputError(f"{path}: has {size >> 20} MB; at most {most >> 20} MB are read")


def check_output(path: Path, *, ours: Callable[[bytes], bool], force: bool = False) -> None:
    """Refuse to write over anything but an earlier output of the same command.

    A slip of the keys must not cost a result, a forget set or a device.

    Args:
        path: that is to be written.
        ours: does a file with this content come from the command that asks?
        force: write over any ordinary file.

    Raises:
        InputError: no ordinary file, or one that somebody else wrote.
    """
    content = read_bytes(path)
    if content.strip() and not force and not ours(content):
        raise InputError(
            f"{path}: exists, and this command did not write it; name another file, or --force"
        )


def make_folder(folder: Path) -> Path:
    """Create `folder` and check that it can be written, before any work.

    What writers that were killed left in it is removed.

    Raises:
        InputError: the folder cannot be made or written.
    """
    probe = partial_path(folder / ".probe")
    with os_errors(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
        except (FileExistsError, NotADirectoryError) as error:
            raise InputError(f"{folder}: is a file; a folder is wanted here") from error
        probe.unlink()
        sweep_partials(folder)
    return folder


def write_bytes(path: Path, content: bytes) -> Path:
    """Write by temporary file, fsync and rename: a file that exists is complete.

    A symbolic link stays one: what it points to is replaced.

    Raises:
        InputError | TryAgainError | WorkError: by cause; the file is as it was before.
    """
    check_plain(path)
    real = Path(os.path.realpath(path)) if path.is_symlink() else path
    appear(real, lambda stream: stream.write(content))
    return path


def _keep_or_write(path: Path, content: bytes) -> Path:
    """Write as `write_bytes` does, but leave a file that holds this content already."""
    with suppress(OSError):
        if path.stat().st_size == len(content) and path.read_bytes() == content:
            return path
    return write_bytes(path, content)


def appear(
    path: Path,
    write: Callable[[BinaryIO], Any],
    place: Callable[[Path, Path], Any] | None = None,
) -> Any:
    """Write and fsync a temporary file, then give it the name `path`; what `place` says of that.

    Args:
        path: of the file.
        write: writes its content.
        place: gives the first file the second one's name; None: in the place of what is there.

    Raises:
        InputError | TryAgainError | WorkError: by cause; the file is as it was before.
    """
    partial = partial_path(path)
    with os_errors(path):
        try:
            with partial.open("xb") as stream:
                write(stream)
                stream.flush()
                os.fsync(stream.fileno())
            placed = (place or os.replace)(partial, path)
            sync_folder(path.absolute().parent)
        finally:
            partial.unlink(missing_ok=True)
    return placed


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)


def link_new(partial: Path, path: Path) -> bool:
    """Give `partial` the name `path` unless it is taken: atomic, and without locks.

    A rename would let a slow second writer replace a file that was sealed meanwhile.
    """
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            return False
        os.replace(partial, path)  # no hard links here (FAT, some network disks)
    return True


def files_below(folder: Path, ours: Callable[[Path], bool]) -> list[Path]:
    """Every file below a folder in which all files are ours: what may be deleted one by one.

    Raises:
        InputError: names files that are not, and links and devices, which nobody looks behind.
        TryAgainError | WorkError: a folder cannot be read.
    """

    def unreadable(error: OSError) -> None:
        raise os_error(error, Path(error.filename or folder)) from error

    found, others = list[Path](), list[str]()
    for at, inner, files in os.walk(folder, onerror=unreadable):
        links = [one for one in inner if os.path.islink(os.path.join(at, one))]
        for path in (Path(at, one) for one in sorted((*files, *links))):
            if not path.is_symlink() and path.is_file() and ours(path):
                found.append(path)
            else:
                others.append(path.relative_to(folder).as_posix())
    if others:
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        raise InputError(
            f"{folder}: holds {', '.join(others[:5])}{more}, which no record of its own names; "
            "the folder stays as it is: move them away, or delete it yourself"
        )
    return found


def remove_files(folder: Path, files: Iterable[Path]) -> None:
    """Remove files below a folder one by one, in order, then the folders that are empty.

    Raises:
        InputError | TryAgainError | WorkError: by cause, as where a folder got a new file.
    """
    try:
        for path in files:
            path.unlink(missing_ok=True)
        for at, _, _ in os.walk(folder, topdown=False):
            os.rmdir(at)
    except OSError as error:
        raise os_error(error, Path(error.filename or folder)) from error


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable; a no-op where folders cannot be synced."""
    with suppress(OSError):  # Windows and some network mounts refuse to open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: Path, value: Any) -> Path:
    """Strict JSON (no NaN), written atomically."""
    return _keep_or_write(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """The bytes that `write_json` writes."""
    return utf8(json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """One strict JSON object per line, written atomically."""
    return _keep_or_write(path, jsonl_bytes(rows))


def jsonl_bytes(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """The bytes that `write_jsonl` writes."""
    return b"".join(
        utf8(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n") for row in rows
    )


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Comma-separated, written atomically; text that a spreadsheet would run is quoted with '."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return _keep_or_write(path, utf8(buffer.getvalue()))


def _cell(value: Any) -> Any:
    dangerous = isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{value}" if dangerous else value


def _not_through_a_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append whole lines and fsync: after a kill every earlier line is still there.

    One system call, so that lines of two processes do not mix. If the disk is full, none of the
    rows stay.

    Raises:
        InputError | TryAgainError | WorkError: by cause, as a link; the file is as it was before.
    """
    content = jsonl_bytes(rows)
    check_plain(path)
    with os_errors(path), open(path, "ab+", buffering=0, opener=_not_through_a_link) as stream:
        end = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, end - 1))
        # a line cut by a kill gets its newline, so the next append does not extend it
        left = memoryview(content if stream.read(1) in (b"", b"\n") else b"\n" + content)
        try:
            while left:  # more than one call only if the disk fills up, or for gigabytes
                left = left[stream.write(left) :]
            os.fsync(stream.fileno())
        except OSError:
            stream.truncate(end)
            raise


def read_bytes(path: Path) -> bytes:
    """An ordinary file; nothing where there is none.

    Raises:
        InputError | TryAgainError | WorkError: it exists but cannot be read.
    """
    check_plain(path)
    with os_errors(path), suppress(FileNotFoundError):
        return path.read_bytes()
    return b""


MOST_UNPACKED = 1 << 30
"""Bytes that a file packed by gzip may have: a small one must not fill the memory."""


def read_text(path: Path, *, most: int = MOST_UNPACKED) -> str:
    """A text file in UTF-8, or in UTF-16 that shows itself; unpacked where it is packed by gzip.

    Raises:
        InputError: missing, no ordinary file, unreadable or in another encoding, or with more than
            `most` bytes once unpacked.
    """
    with reading(path):
        content = path.read_bytes()
        try:
            text = _unpacked(path, content, most) if content[:2] == b"\x1f\x8b" else content
            encoding = next((one for mark, one in _MARKS.items() if text[:2] in mark), "utf-8-sig")
            return text.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
        except (UnicodeDecodeError, EOFError, zlib.error) as error:
            todo = _REMEDIES.get(content[:3], _REMEDIES[b""]).format(path)
            raise InputError(f"{path}: not UTF-8 text; {todo}") from error


def _unpacked(path: Path, content: bytes, most: int) -> bytes:
    """What gzip packed, read until it is more than `most` bytes."""
    stream = gzip.GzipFile(fileobj=io.BytesIO(content))
    text = b"".join(islice(iter(lambda: stream.read(1 << 20), b""), (most >> 20) + 1))
    if len(text) > most:
        raise InputError(f"{path}: unpacked it has more than {most >> 20} MB; unpack it yourself")
    return text


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file.

    Raises:
        InputError: as `read_text`, packed with more than 1 MB, or it is no TOML.
    """
    import tomllib  # help reads no file

    try:
        return tomllib.loads(read_text(path, most=1 << 20))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not TOML: {error}") from error


_MARKS = {
    (b"\xff\xfe", b"\xfe\xff"): "utf-16",
    tuple(bytes((n, 0)) for n in range(9, 128)): "utf-16-le",
    tuple(bytes((0, n)) for n in range(9, 128)): "utf-16-be",
}
"""First bytes of a text in UTF-16: a mark, or a letter and nothing."""
_REMEDIES = {
    b"PAR": 'for rows of it run: python -c "import datasets; '
    "datasets.Dataset.from_parquet('{0}').to_json('rows.jsonl')\"",
    b"ARR": 'for rows of it run: python -c "import pandas; '
    "pandas.read_feather('{0}').to_json('rows.jsonl', orient='records', lines=True)\"",
    b"\xff\xff\xff": 'for rows of it run: python -c "import datasets; '
    "datasets.Dataset.from_file('{0}').to_json('rows.jsonl')\"",
    b"PK\x03": "a packed file: unpack it, or save a sheet as CSV in UTF-8",
    b"\x1f\x8b\x08": "packed by gzip and damaged, or no text in UTF-8: unpack it",
    b"": "of Western Windows text make UTF-8 by: "
    "iconv -f WINDOWS-1252 -t UTF-8 '{0}' > utf8{0.suffix}",
}
"""First bytes of a file -> what makes text of it."""


def read_json(path: Path, *, unique: bool = False) -> Any:
    """A JSON file.

    Raises:
        InputError: missing, unreadable or malformed; names the line. With `unique`, an object has
            one key twice.
    """
    text = read_text(path)
    try:
        return parse_json(text, unique=unique)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno} is not JSON ({error.msg})") from error
    except ValueError as error:  # a number or a nesting beyond limits
        raise InputError(f"{path}: not usable JSON ({error})") from error
