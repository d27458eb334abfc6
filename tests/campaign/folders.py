"""What a folder holds, and where two folders or two texts differ."""

import csv
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from math import isnan
from pathlib import Path
from typing import Any

from support.command_golden import normal

KEPT = {"activations", ".locks", "attempts", "claims"}
"""Folders of caches, and of who did what when."""
NUMBERED = (".json", ".jsonl", ".csv")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
OF_A_RUN = {
    *("seconds", "started", "finished", "time", "host", "pid", "check", "asked", "versions"),
    *("files", "submitted", "eta_s", "seconds_per_unit", "last_used_s", "git_commit", "n_bytes"),
    "page",  # hash of the manifests of the results that an audit's page was made of
}
"""Keys of a document that no two runs share."""
OF_A_CHOICE = {"options", "conditions", "settings", "given"}
"""Keys of a document that repeat what was asked."""


def state(folder: Path, *, unseen: Collection[str] = KEPT) -> dict[str, bytes]:
    """Path -> bytes of every file, but for those of caches; a link -> where it points."""
    found = {}
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        if set(unseen) & set(place.parts):
            continue
        if path.is_symlink():
            found[str(place)] = b"-> " + os.fsencode(os.readlink(path))
        elif path.is_file():
            found[str(place)] = path.read_bytes()
    return found


def times(folder: Path) -> dict[str, int]:
    """Path -> when the file was last written, in nanoseconds."""
    return {
        str(path.relative_to(folder)): path.lstat().st_mtime_ns
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> str | None:
    """The first files that came, went or changed; None if none did."""
    came = sorted(set(after) - set(before))
    went = sorted(set(before) - set(after))
    other = sorted(path for path in set(before) & set(after) if before[path] != after[path])
    said = [("came", came), ("went", went), ("changed", other)]
    words = [f"{what}: {', '.join(paths[:3])}" for what, paths in said if paths]
    return "; ".join(words) or None


def written(files: Mapping[str, bytes], folder: Path, *, asked: bool = True) -> dict[str, object]:
    """Path -> what a file says, without times, places and versions.

    Args:
        files: as `state` reads them.
        folder: where they lie, which they may name.
        asked: whether what was asked is kept.
    """
    return {path: said(path, data, folder, asked=asked) for path, data in files.items()}


def said(path: str, data: bytes, folder: Path, *, asked: bool = True) -> object:
    """What a file says, without times, places and versions."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    if path.endswith(".json"):
        try:
            return plain(json.loads(text), folder, asked=asked)
        except ValueError:
            return text
    if path.endswith(".jsonl"):
        return [plain(one, folder, asked=asked) for one in _lines(text)]
    if path.endswith(".csv"):
        text = _untimed(text)
    return screen(text, folder)


def _untimed(text: str) -> str:
    """A table without its column of seconds."""
    rows = list(csv.reader(text.splitlines()))
    if not rows or "seconds" not in rows[0]:
        return text
    at = rows[0].index("seconds")
    return "\n".join(",".join(row[:at] + row[at + 1 :]) for row in rows)


def screen(text: str, folder: Path) -> list[str]:
    """Lines of a screen or a text without times, places and widths."""
    lines = [re.sub(r" {2,}", " ", line.strip()) for line in normal(text, folder)]
    return [re.sub(r"(\d+(\.\d+)? ?(s|ms|min|kB|MB|GB)\b)", "…", line) for line in lines]


def _lines(text: str) -> Iterator[Any]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            yield line


def plain(value: Any, folder: Path, *, asked: bool = True) -> Any:
    """A document without times, places, versions and hashes of files that hold them."""
    if isinstance(value, dict):
        left_out = OF_A_RUN if asked else OF_A_RUN | OF_A_CHOICE
        kept = {key: one for key, one in value.items() if key not in left_out}
        return {key: plain(one, folder, asked=asked) for key, one in kept.items()}
    if isinstance(value, list):
        return [plain(one, folder, asked=asked) for one in value]
    if isinstance(value, str):
        return "\n".join(normal(value.replace(str(folder.resolve()), "$HERE"), folder))
    return value


def apart(a: Any, b: Any, tolerance: float = 0.0, where: str = "") -> str | None:
    """The first place where two documents differ; numbers may by an absolute tolerance."""
    if isinstance(a, int | float) and isinstance(b, int | float):
        return _numbers(a, b, tolerance, where)
    if isinstance(a, str) and isinstance(b, str):
        return _texts(a, b, tolerance, where)
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return f"{where}: only in one: {sorted(map(str, a.keys() ^ b.keys()))[:4]}"
        pairs = [(f"{where}/{key}", a[key], b[key]) for key in a]
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return f"{where}: {len(a)} and {len(b)} entries"
        pairs = [(f"{where}/{at}", one, b[at]) for at, one in enumerate(a)]
    else:
        return None if a == b else f"{where}: {_short(a)} and {_short(b)}"
    return next((said for at, x, y in pairs if (said := apart(x, y, tolerance, at))), None)


def _numbers(a: float, b: float, tolerance: float, where: str) -> str | None:
    same = a == b or abs(a - b) <= tolerance or (isnan(a) and isnan(b))
    return None if same else f"{where}: {a!r} and {b!r}"


def _texts(a: str, b: str, tolerance: float, where: str) -> str | None:
    if a == b:
        return None
    if tolerance and NUMBER.sub("#", a) == NUMBER.sub("#", b):
        pairs = zip(NUMBER.findall(a), NUMBER.findall(b), strict=True)
        if all(abs(float(x) - float(y)) <= tolerance for x, y in pairs):
            return None
    return f"{where}: {_short(a)} and {_short(b)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def copied(source: Path, target: Path) -> Path:
    """A copy of a folder, links as links."""
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    return target
