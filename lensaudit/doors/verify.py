"""Check everything below a folder against its checksums: results, models, passes, books, caches.

What a file is, its own name and content say: a folder may be called anything.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lensaudit.activations.inventory import verify as verify_cache
from lensaudit.activations.naming import is_cache
from lensaudit.errors import InputError, LensAuditError
from lensaudit.evaluation.store import read_pass
from lensaudit.files import os_error, read_bytes, read_json
from lensaudit.results.integrity import home_of, manifests_of, misfits
from lensaudit.results.kinds.table import record_in
from lensaudit.results.ledger_check import NAMED_FOR, is_ledger, verify_ledger
from lensaudit.results.locate import COLLECTED, kinds_by_name, locate
from lensaudit.results.manifest import BEGUN, MANIFEST, MANIFESTS, mark_of, signed
from lensaudit.results.reading import json_object, place_in
from lensaudit.results.run_log import PASS
from lensaudit.text import digest, parse_json

Kind = Literal["result", "pass", "book", "cache", "tensors", "document", "unread"]
_KINDS = ("patch", "eval", "steering", "traits", "curve")
_SEALED = {name for name, kind in kinds_by_name().items() if kind in _KINDS}
"""Files of a finished run: its manifest is written after them."""
_OF_META = {"faithfulness", "robustness", "meta_table", "aggregate"}
"""What tables of `meta` say that they are; each has a manifest of its own."""
_MAP = re.compile(r"[0-9a-f]{32}\.json")
_LARGEST_DOCUMENT = 64 << 20
_CHANGED = "was changed after it was written"
_CHECK_LENGTH = len(digest(None))


@dataclass(frozen=True)
class CheckedPlace:
    """A result, model, pass, book or cache that was checked against its own checksums."""

    place: str
    kind: Kind
    n_files: int
    """That were compared."""
    problems: tuple[str, ...]
    """A line each; none where nothing was changed."""


def verify(*places: str | Path) -> list[CheckedPlace]:
    """Compare all that lies in folders with what manifests, seals and checksums in them say.

    Nothing is changed, links to folders are not followed, and files that nothing answers for are
    passed over, but for the result of a finished run: its manifest is gone.

    Raises:
        InputError: a folder does not exist.
    """
    found: list[CheckedPlace] = []

    def unread(error: OSError) -> None:
        found.append(_failed(Path(error.filename), error))

    for place in [Path(place_in("verify", one)) for one in places]:
        if not place.is_dir():
            raise InputError(f"{place}: no such folder; wanted one that a command wrote")
        for at, inner, files in os.walk(place, onerror=unread):
            folder = Path(at)
            if is_cache(folder) and MANIFEST not in files:
                inner.clear()
                found.append(_cache(folder))
                continue
            inner.sort()
            checked = (_file(folder / name) for name in sorted(files))
            found += [one for one in checked if one is not None]
    return found


def _file(path: Path) -> CheckedPlace | None:
    """Result of checking a file against its own checksums; None where it holds none."""
    try:
        if path.name == MANIFEST or path.name.endswith(f"_{MANIFEST}"):
            return _result(path)
        if PASS.fullmatch(path.name):
            return _one(path, "pass", [read_pass(path)[1]])
        if path.suffix == ".jsonl":
            return _book(path)
        if _has_lost_its_manifest(path):
            gone = f"its {MANIFEST} is gone, so nobody can check whether it was changed"
            return CheckedPlace(str(path), "result", 1, (gone,))
        if path.suffix == ".json":
            return _document(path)
    except (LensAuditError, OSError) as error:
        return _failed(path, error)
    return None


def _failed(path: Path, error: Exception, kind: Kind = "document") -> CheckedPlace:
    """What could not be checked: it cannot be read, leads nowhere, or holds no such thing."""
    cause = error if isinstance(error, OSError) else error.__cause__
    is_unread = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
    said = os_error(error, path) if isinstance(error, OSError) else error
    line = str(said).removeprefix(f"{path}: ")
    return CheckedPlace(str(path), "unread" if is_unread else kind, 1, (line,))


def _has_lost_its_manifest(path: Path) -> bool:
    if path.name in _SEALED:
        return is_orphan(path) and _is_ours(path)
    if path.name == COLLECTED:
        return is_orphan(path)
    own = path.parent / MANIFESTS / path.stem / MANIFEST
    if path.suffix != ".json" or own.exists() or path.stat().st_size > _LARGEST_DOCUMENT:
        return False
    with suppress(LensAuditError):
        said = read_json(path)
        return isinstance(said, dict) and said.get("kind") in _OF_META and "schema" in said
    return False


def _is_ours(path: Path) -> bool:
    """Does it hold the record of a kind of result? Other tools write logs of evaluations alone."""
    with suppress(LensAuditError):
        for one in locate([path])[0]:
            record = record_in(one.kind, read_json(path), path)
            own = one.kind != "eval" or path.with_name("results.jsonl").exists()
            return bool(record) and own
    return False


def _one(path: Path, kind: Kind, said: Iterable[str | None]) -> CheckedPlace:
    return CheckedPlace(str(path), kind, 1, tuple(f"{path.name}: {line}" for line in said if line))


def _result(path: Path) -> CheckedPlace:
    """The files that a manifest answers for."""
    folder = home_of(path)
    problems = misfits(folder, name=path.relative_to(folder).as_posix())
    n_files = len(json_object(path).get("files") or {})
    return CheckedPlace(str(path), "result", n_files, tuple(problems))


def _cache(folder: Path) -> CheckedPlace:
    try:
        found = verify_cache(folder)
    except LensAuditError as error:
        return _failed(folder, error, "cache")
    problems = tuple(problem.what for problem in found.problems)
    return CheckedPlace(str(folder), "cache", 1 + found.n_shards, problems)


def _book(path: Path) -> CheckedPlace | None:
    """A ledger; for rows of other kinds a manifest answers."""
    if not NAMED_FOR.fullmatch(path.name) and not is_ledger(read_bytes(path)):
        return None
    return CheckedPlace(str(path), "book", 1, verify_ledger(path).problems)


def _document(path: Path) -> CheckedPlace | None:
    """A JSON object with a checksum of itself, or with the hash of the tensors beside it."""
    if path.stat().st_size > _LARGEST_DOCUMENT:
        return None
    tensors = path.with_suffix(".safetensors")
    try:
        content = parse_json(read_bytes(path))
    except ValueError:  # no JSON, or NaN in it: of another tool, unless tensors wait for it
        return _one(path, "document", ["is damaged"]) if tensors.is_file() else None
    if not isinstance(content, dict):
        return None
    is_signed = _is_signed(content)
    whole = not is_signed or signed(content)["check"] == content["check"]
    marks = {name: value for name, value in content.items() if name not in ("key", "check")}
    if marks.keys() == {"n_bytes", "blake2b"}:
        whole = whole and tensors.is_file() and mark_of(tensors) == marks
        return _one(tensors, "tensors", [None if whole else _CHANGED])
    if _MAP.fullmatch(path.name) and tensors.is_file():
        return _one(tensors, "tensors", [f"{path.name} does not speak of it"])
    return _one(path, "document", [None if whole else _CHANGED]) if is_signed else None


def _is_signed(content: Mapping[str, Any]) -> bool:
    """Whether a file ends as `signed` ends it; other documents may have a `check` of their own."""
    name, said = ([("", None), *content.items()])[-1]
    return name == "check" and isinstance(said, str) and len(said) == _CHECK_LENGTH


def is_orphan(path: Path) -> bool:
    """Whether a file lies where no manifest can answer for it, and no run has begun."""
    return not manifests_of(path) and not (path.parent / BEGUN).exists()
