"""Finished passes on disk, named by a hash of everything that determines them."""

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lensaudit.files import make_folder, write_bytes
from lensaudit.text import slug

_UNREADABLE = (
    *(OSError, ValueError, KeyError, EOFError, RuntimeError, AttributeError, IndexError),
    *(MemoryError, zipfile.BadZipFile, zlib.error, struct.error),
)
"""What readers of archives and arrays raise over bytes that nobody wrote."""

Arrays = Mapping[str, NDArray]
"""The numbers of one text."""


def kept(
    folders: Sequence[Path],
    label: str,
    key: str,
    make: Callable[[], Sequence[Arrays]],
    *,
    fresh: bool = False,
) -> tuple[Sequence[Arrays], bool]:
    """The pass `key`, made now or read back, and whether it was read back.

    Args:
        folders: where it may lie, as a pass is the same whoever made it; in the first it is kept.
            None: it is made.
        label: what it is called there.
        key: hash of everything that determines it. A broken file is made again.
        make: gives the numbers.
        fresh: make it, whatever is there; that stays until the numbers are.
    """
    if not folders:
        return make(), False
    places = [folder / f"{slug(label)}-{key[:16]}.npz" for folder in folders]
    read = () if fresh else places
    known = ((place, found) for place in read if (found := _found(place, key)) is not None)
    place, items = next(known, (None, None))
    made = make() if items is None else items
    if place != places[0]:
        # all texts' arrays end to end, with their lengths
        names = list(made[0]) if made else []
        columns: dict[str, Any] = {n: np.concatenate([one[n] for one in made]) for n in names}
        columns |= {f"n_{n}": np.array([len(one[n]) for one in made]) for n in names}
        columns |= {"key": np.array(key), "n_items": np.array(len(made))}
        buffer = io.BytesIO()
        np.savez(buffer, **columns)
        make_folder(folders[0])
        write_bytes(places[0], buffer.getvalue())
    return made, items is not None


def read_pass(path: Path) -> tuple[dict[str, NDArray], str | None]:
    """The arrays of a file, each read to its checksum, and what is wrong with it: None if whole."""
    if not path.is_file():
        return {}, "is no file"
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        key = str(arrays["key"])
    except _UNREADABLE:
        return {}, "is damaged"
    named = path.stem.rpartition("-")[2]
    fits = key.startswith(named)
    return arrays, None if fits else f"is named for key {named}, and holds {key[:16]}"


def _found(path: Path, key: str) -> list[dict[str, NDArray]] | None:
    """The pass in a file, or None where there is none that is whole and belongs to `key`."""
    arrays, damage = read_pass(path)
    if damage is not None or str(arrays["key"]) != key:
        return None
    columns = {
        name: np.split(values, np.cumsum(arrays[f"n_{name}"])[:-1])
        for name, values in arrays.items()
        if f"n_{name}" in arrays
    }
    return [
        {name: texts[place] for name, texts in columns.items()}
        for place in range(int(arrays["n_items"]))
    ]
