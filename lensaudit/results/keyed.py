"""What was made once is found again by its key: a folder with all that a run wrote into it.

A key is a hash of everything that determines what is written. Of a run `begin` marks a folder as
its own, `seal` writes the manifest last of all: the key and the hash of every file it speaks of. A
folder with a manifest is finished; one with a mark can go on; readers compare the hashes.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import digest, make_folder, write_bytes, write_json
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
from lensaudit.results.question import LOOKED_AT_BYTES
from lensaudit.results.reading import Record, document, json_object, part, read_as


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
    made = manifest(
        command, kind=command, options=options, inputs=inputs, device=device, started=started
    )
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
