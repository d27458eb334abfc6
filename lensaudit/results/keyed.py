"""Was this very question answered before, finished and whole? One key, one manifest written last.

A run is told from others by its key, a hash of everything that determines what it writes. `begin`
marks a folder as a run's, `seal` writes the manifest: the key and the hash of every file it speaks
of. A folder with a manifest is finished; one with a mark can go on; readers compare the hashes.

Where models are named before they are opened the key is a hash of every option, of models and rows
by content, of the code and the libraries, and stands in the manifest as `asked`: whoever asks the
same again is given what the files say, and no model library is imported for it.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import digest, make_folder, write_bytes, write_json
from lensaudit.progress import Notice, unheard
from lensaudit.results.reading import json_object, part
from lensaudit.results.records import (
    BEGUN,
    MANIFEST,
    Manifest,
    manifest,
    mark_of,
    misfits,
    signed,
    signed_object,
)

LOOKED_AT_BYTES = 64 << 20
"""Larger files are weights: their hash is taken when they are opened, and not once more here."""


def begin(folder: Path, key: str) -> Path:
    """Mark `folder` as the run's of this key, and take away the verdict of an earlier one."""
    make_folder(folder)
    # first of all: on a full disk the folder stays the run's, begun or finished
    write_json(folder / BEGUN, {"inputs": {"key": key}})
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


def finished(folder: Path, key: str) -> bool:
    """Whether `folder` holds the finished work of this very run, each file as it was written."""
    with suppress(InputError):
        return check_own(folder, key)
    return False


def check_own(folder: Path, key: str) -> bool:
    """Whether `folder` holds this very run, finished; refuses one with anything else in it.

    Raises:
        InputError: another run's, nobody's, or this one's with files that were changed since.
    """
    mark = next((one for one in (MANIFEST, BEGUN) if (folder / one).exists()), None)
    if mark is not None:
        if part(json_object(folder / mark), "inputs").get("key") != key:
            raise InputError(f"{folder}: holds a run with other settings; name another --out")
        for line in misfits(folder, largest=LOOKED_AT_BYTES) if mark == MANIFEST else ():
            raise InputError(f"{folder}: {line}; name another --out")
    elif folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            f"{folder}: is not empty and holds no run of this command; name another --out"
        )
    return mark == MANIFEST


def in_folder(
    out: Path,
    identity: Mapping[str, Any],
    work: Callable[[], Mapping[str, Any]],
    *,
    options: Mapping[str, Any],
    inputs: Mapping[str, Any],
    device: str,
    files: Iterable[str],
    fresh: bool = False,
    notice: Notice = unheard,
) -> Mapping[str, Any]:
    """The `summary.json` of a run in its folder: read where it is finished, else made now.

    Args:
        out: the folder.
        identity: what tells the run from others, its `command` among it; hashed it is the key.
        work: writes all files but the summary, and returns that.
        options: of the run, for the manifest.
        inputs: what each name stood for, for the manifest.
        device: for the manifest.
        files: that the manifest answers for.
        fresh: make it again.
        notice: told that there is nothing to do.

    Raises:
        InputError: the folder holds something else.
    """
    started, key, path = time.monotonic(), digest(identity), out / "summary.json"
    if check_own(out, key) and not fresh:
        notice(f"{out} holds this run already; nothing to do")
        return json_object(path)
    begin(out, key)
    summary, command, inputs = work(), identity["command"], {**identity, **inputs}
    write_json(path, summary)
    made = manifest(command, options=options, inputs=inputs, device=device, started=started)
    seal(out, made, key=key, files=files)
    return summary


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
                if other or begun or misfits(path.parent, name=path.name):
                    return None
            return said.get("told")
        return None

    def settle(self, manifests: Iterable[Path]) -> None:
        """Say in the manifests of the finished run what it was asked, that it may answer again.

        Nothing is said where another run may find something else: a file changed meanwhile, or the
        run itself had something to remark, as scores of other versions, another engine than the
        one asked for, a damaged cache.
        """
        settled = self._asked is not None and self._opened == len(self._told)
        if settled and _known(self._key) == self._asked:
            for path in manifests:
                asked = {"hash": self._asked, "told": self._told}
                write_json(path, signed({**json_object(path), "asked": asked}))


def _known(key: Key) -> str | None:
    """None where something is wrong, which the run says itself."""
    with suppress(LensAuditError):
        return key()
    return None
