"""Results that somebody changed and sealed again: every kind of file, values of every other kind.

Checksums cannot tell such a change. What is left is that a reader parses what it reads: it says in
one line what is wrong, or goes on with values of the right kind.
"""

import copy
import csv
import io
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.files import write_bytes, write_json
from lensaudit.results.ledger import Header
from lensaudit.results.records import MANIFEST, mark_of, signed

NASTY = (None, True, -1, 10**30, 0.5, "x", "", "3", [], [None], {}, {"x": 1}, [[1, "a"]], "nan")
"""What stands where something else did."""
CELLS = ("", "x", "nan", "-1", "1e400", "[]")


def manifests(root: Path) -> list[Path]:
    """Every manifest below a folder."""
    return [*root.rglob(MANIFEST), *root.rglob(f"*_{MANIFEST}")]


def home_of(manifest: Path) -> Path:
    """The folder whose files a manifest names."""
    return manifest.parents[2] if manifest.parent.parent.name == "manifests" else manifest.parent


def reseal(root: Path, path: Path) -> None:
    """Let every manifest that names a file say that it is as it should be."""
    for one in manifests(root):
        if path in files_of(one):
            content = json.loads(one.read_text())
            content["files"][path.relative_to(home_of(one)).as_posix()] = vars(mark_of(path))
            write_json(one, signed(content))


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a JSON value; of a list the first three and the last."""
    yield at
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*at, key))
    elif isinstance(value, list):
        for index in sorted({*range(min(3, len(value))), len(value) - 1} - {-1}):
            yield from places(value[index], (*at, index))


def spoilt(value: Any, draw: random.Random) -> tuple[Any, str]:
    """The same JSON value with one value changed, gone, or added; and which."""
    found = copy.deepcopy(value)
    at = draw.choice([one for one in places(found) if one] or [()])
    inner = found
    for part in at[:-1]:
        inner = inner[part]
    if not at:
        return draw.choice(NASTY), "all of it"
    how = draw.choice(("other", "other", "other", "gone", "more"))
    if how == "gone":
        del inner[at[-1]]
    elif how == "more" and isinstance(inner, list):
        inner.insert(at[-1], draw.choice(NASTY))
    elif how == "more":
        inner[draw.choice(("x", "0", "-1", "nan"))] = draw.choice(NASTY)
    else:
        new = draw.choice(NASTY)
        inner[at[-1]] = new
        how = f"-> {new!r}"
    return found, f"{'.'.join(map(str, at))} {how}"


def of_ledger(content: bytes, draw: random.Random) -> tuple[bytes, str]:
    """A ledger with one line changed, under a checksum that fits."""
    first, *rest = [json.loads(line) for line in content.splitlines()]
    header = Header(first["ledger"], first["key"])
    at = draw.randrange(len(rest))
    row = {name: value for name, value in rest[at].items() if name != "check"}
    changed, what = spoilt(row, draw)
    rest[at] = header.signed(changed if isinstance(changed, dict) else {"x": changed})
    return b"".join(json.dumps(one).encode() + b"\n" for one in (first, *rest)), what


def of_lines(content: bytes, draw: random.Random) -> tuple[bytes, str]:
    """JSONL with one line changed."""
    rows = [json.loads(line) for line in content.splitlines()]
    at = draw.randrange(len(rows))
    rows[at], what = spoilt(rows[at], draw)
    return b"".join(json.dumps(one).encode() + b"\n" for one in rows), f"line {at + 1} {what}"


def of_table(content: bytes, draw: random.Random) -> tuple[bytes, str]:
    """CSV with a cell changed, or a column or row gone."""
    rows = list(csv.reader(io.StringIO(content.decode())))
    row, column = draw.randrange(len(rows)), draw.randrange(len(rows[0]))
    how = draw.choice(("cell", "cell", "column", "row"))
    if how == "cell":
        rows[row][column] = draw.choice(CELLS)
    elif how == "column":
        rows = [[one for at, one in enumerate(cells) if at != column] for cells in rows]
    else:
        del rows[row]
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode(), f"{how} {row},{column}"


def of_object(content: bytes, draw: random.Random) -> tuple[bytes, str]:
    """JSON with one value changed, under a checksum where there was one."""
    value = json.loads(content)
    changed, what = spoilt(value, draw)
    if isinstance(value, dict) and "check" in value and isinstance(changed, dict):
        changed = signed(changed)
    return json.dumps(changed, indent=1).encode(), what


@dataclass(frozen=True)
class Change:
    """A file that was changed and sealed again."""

    path: Path
    what: str


def change(root: Path, path: Path, draw: random.Random) -> Change:
    """Change a file below a folder, and seal it again."""
    content = path.read_bytes()
    if path.suffix == ".csv":
        ways = of_table
    elif path.suffix == ".jsonl":
        ways = of_ledger if content.startswith(b'{"ledger"') else of_lines
    else:
        ways = of_object
    new, what = ways(content, draw)
    write_bytes(path, new)
    reseal(root, path)
    return Change(path.relative_to(root), what)


def edit(path: Path, draw: random.Random) -> str:
    """Change a file and seal nothing: a digit, its end, a line, or all of it."""
    content = path.read_bytes()
    digits = [at for at, byte in enumerate(content) if 48 <= byte <= 57]
    lines = content.splitlines(keepends=True)
    how = draw.choice(("digit", "digit", "cut", "line", "gone"))
    if how == "digit" and digits:
        at = draw.choice(digits)
        path.write_bytes(content[:at] + b"%d" % ((content[at] - 47) % 10) + content[at + 1 :])
    elif how == "cut" and content:
        path.write_bytes(content[: draw.randrange(len(content))])
    elif how == "line" and len(lines) > 1:
        del lines[draw.randrange(len(lines))]
        path.write_bytes(b"".join(lines))
    else:
        path.unlink()
    return how


def files_of(manifest: Path) -> list[Path]:
    """The files that a manifest names."""
    content = json.loads(manifest.read_text())
    files = content.get("files") if isinstance(content, dict) else None
    return [home_of(manifest) / name for name in files] if isinstance(files, dict) else []


ATTACKS = ("retraining", "interventions", "worst", "samples")
UNREAD = tuple(f'{{"ledger": "{kind}"'.encode() for kind in ATTACKS)
"""Ledgers whose lines are believed once their checksum holds: nobody but their command reads."""


def sealed(root: Path) -> list[Path]:
    """Files below a folder that a checksum answers for, and that are text."""
    named = {path for one in manifests(root) for path in files_of(one)}
    found = []
    for path in sorted(root.rglob("*")):
        if path.suffix not in (".json", ".jsonl", ".csv") or not path.stat().st_size:
            continue
        start = path.read_bytes()
        if path.name == "audit.json" or start.startswith(UNREAD):
            continue
        ledger = path.suffix == ".jsonl" and start.startswith(b'{"ledger"')
        own = path.suffix == ".json" and b'"check"' in start
        if (path in named or ledger or own) and start.count(b"\n") > ledger:
            found.append(path)
    return found


def restored(root: Path, kept: Path) -> None:
    """A folder as it was."""
    shutil.rmtree(root)
    shutil.copytree(kept, root)
