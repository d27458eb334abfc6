"""Check whether a result was changed: its files are compared with its manifest.

Whoever reads a result compares first: a file that was cut, edited, or copied over from another run
is told from one that is as it was written.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, shortened
from lensaudit.results.manifest import (
    AGAIN,
    MANIFEST,
    MANIFESTS,
    Manifest,
    is_signed,
    manifests_of,
    mark_of,
    signed_object,
)
from lensaudit.results.reading import json_object, part


def check_result(path: Path) -> None:
    """Check a file as `check_whole` does, but accept one without a manifest of ours.

    For what other tools write too, as a log in open-unlearning's layout.

    Raises:
        InputError: names the first file that does not fit.
    """
    for name in manifests_of(path):
        # a damaged one counts as ours
        with suppress(InputError):
            if {"files", "check"}.isdisjoint(json_object(path.parent / name)):
                return
        check_whole(path)


def check_whole(place: Path, *, largest: int | None = None, beside: bool = True) -> None:
    """Refuse a result that is not, file by file, what its run wrote: for whoever believes it.

    All files of a run are compared, not only the one that is read: what is said of it is joined
    from them. A change that was sealed again by its maker cannot be told.

    Args:
        place: a file of a run (`OUT/summary.json`), or its folder; of a folder that several runs
            wrote into, all of them. A folder of folders (`OUT/patch/*/`) has no manifest of its
            own: name each file that is read.
        largest: of files with more bytes, as weights, only the size is compared.
        beside: False compares the named file alone: for what the others are made from.

    Raises:
        InputError: one line. The place or its manifest is missing, the manifest was edited, holds
            no hashes or tells of another file than this one; a file is missing, cut or edited.
    """
    if not place.exists():
        raise InputError(f"{place}: is gone, or was never written; wanted a result; {AGAIN}")
    folder, file = (place, None) if place.is_dir() else (place.parent, place.name)
    names = manifests_of(place)
    if not names:
        raise InputError(
            f"{place}: no {MANIFEST} to compare it with, so nobody can check whether it was "
            f"changed; {AGAIN}"
        )
    for name in names:
        try:
            lines = misfits(folder, name=name, largest=largest, only=None if beside else file)
            files = json_object(folder / name).get("files") or {}
        except InputError as error:
            raise InputError(f"{error}; {AGAIN}") from error
        if not files and not lines:
            lines = [f"{name}: holds no hashes of files"]
        if file is not None and not lines and file not in files:
            lines = [f"{file}: belongs to another run than {name}"]
        if lines:
            raise InputError(f"{folder}: {shortened(lines)}; {AGAIN}")


def misfits(
    folder: Path, *, name: str = MANIFEST, largest: int | None = None, only: str | None = None
) -> list[str]:
    """Files that are not what the manifest says, one line each; empty where all is as written.

    Args:
        folder: with a manifest.
        name: of the manifest, below `folder`.
        largest: of files with more bytes only the size is compared.
        only: the one file that is compared; None: all.

    Raises:
        InputError: the manifest is missing or damaged.
    """
    content = json_object(folder / name)
    said = content.get("files")
    if not isinstance(said, Mapping) or not is_signed(content):
        return [f"{name}: was changed after the run wrote it"]
    found = {
        one: _misfit(folder, one, mark, largest)
        for one, mark in said.items()
        if only in (None, one)
    }
    return [f"{one}: {what}" for one, what in found.items() if what]


def _misfit(folder: Path, name: str, mark: Any, largest: int | None) -> str | None:
    path = folder / name
    if not isinstance(mark, Mapping) or _is_away(name):
        return "the manifest does not say what it was"
    if not path.is_file():
        return "is gone"
    n_bytes = path.stat().st_size
    if n_bytes != mark.get("n_bytes"):
        return f"has {n_bytes} bytes, the manifest says {mark.get('n_bytes')}"
    same = (largest is not None and n_bytes > largest) or mark_of(path) == mark
    return None if same else "was changed after the run wrote it"


def answered_for(path: Path) -> list[Path]:
    """The files of which a manifest says how a run of ours wrote them, there or not.

    Raises:
        InputError: it was edited, is another program's, or names a file elsewhere.
    """
    content, home = signed_object(path), home_of(path)
    files, wanted = content.get("files"), {one.name for one in fields(Manifest)} - {"kind"}
    if not isinstance(files, Mapping) or not wanted <= content.keys():
        raise InputError(f"{path}: is not the manifest of a run of lensaudit")
    if away := [one for one in files if _is_away(one) or _is_linked(home, one)]:
        raise InputError(f"{path}: names {away[0][:80]!r}, which is not below its folder")
    return [home / name for name in files]


def home_of(manifest: Path) -> Path:
    """The folder whose files a manifest tells of: its own, or the one above `manifests/<name>/`.

    Raises:
        InputError: it is damaged.
    """
    own = manifest.parent
    above = own.parent.name == MANIFESTS and not any(
        (own / name).is_file() for name in part(json_object(manifest), "files")
    )
    return own.parent.parent if above else own


def _is_away(name: str) -> bool:
    """Whether a name means no file below its folder: the folder itself, one elsewhere, or none."""
    place = Path(name)
    return not place.parts or "\0" in name or place.is_absolute() or ".." in place.parts


def _is_linked(home: Path, name: str) -> bool:
    """Whether a file below `home` is elsewhere, as a folder on the way to it is a link."""
    return not (home / name).parent.resolve().is_relative_to(home.resolve())


def is_whole(folder: Path) -> bool:
    """Whether a folder has its manifest, and no file was changed."""
    with suppress(InputError):
        return not misfits(folder)
    return False
