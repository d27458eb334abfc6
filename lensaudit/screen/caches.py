"""Caches of activations: a line each, all about one, and what checks and repairs found."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.filesize import decimal as size

from lensaudit.activations.inventory import CacheInfo
from lensaudit.activations.spec import PARTS
from lensaudit.activations.verification import Repaired, Verified
from lensaudit.results.ledger import VerifiedLedger
from lensaudit.screen.cells import fields, name

COLUMNS = (
    "NAME",
    "KEY",
    "STATE",
    "EXAMPLES",
    "LAYERS",
    "COMPONENT",
    "POSITIONS",
    "TYPE",
    "SIZE",
    "USED",
)


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def columns(info: CacheInfo) -> tuple[str, ...]:
    """A line of `activations ls`."""
    identity = info.fingerprint or {}
    shards = f" {info.n_published}/{info.n_shards}" if info.state == "incomplete" else ""
    return (
        name(info.name or Path(info.folder).name),
        info.key[:8],
        info.state + shards,
        str(info.n_examples),
        str(identity.get("layers", "")),
        PARTS.get(identity.get("hook", ""), ""),
        identity.get("positions", ""),
        identity.get("dtype", ""),
        size(info.n_bytes),
        _when(info.last_used_s),
    )


def of_cache(info: CacheInfo) -> Iterator[str]:
    """Every field, one to a line."""
    rows = asdict(info)
    identity, provenance = rows.pop("fingerprint") or {}, rows.pop("provenance") or {}
    rows |= {"n_bytes": f"{info.n_bytes} ({size(info.n_bytes)})"}
    rows |= {"last_used_s": f"{_when(info.last_used_s)} UTC"}
    for title, values in (("", rows), ("identity", identity), ("provenance", provenance)):
        if title:
            yield f"{title}:"
        shown = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
        yield from fields(shown, indent="  " if title else "")


def of_check(verified: Verified) -> Iterator[str]:
    """What a check of all bytes found."""
    state = "damaged" if verified.problems else "whole" if verified.complete else "whole so far"
    checked = f"{verified.n_shards} shards, {size(verified.n_bytes)} checked"
    yield f"{verified.folder}: {state}, {checked}"
    for problem in verified.problems:
        yield f"  {problem.what}"


def of_books(books: Sequence[VerifiedLedger]) -> Iterator[str]:
    """What a check of all lines found."""
    n_lines = sum(book.n_lines for book in books)
    yield f"{len(books)} books, {n_lines} lines checked"
    for book in books:
        for problem in book.problems:
            yield f"  {problem}"
        if book.is_unsigned:
            yield f"  {book.file}: has no checksums; computed again when used"


def of_repair(repaired: Repaired) -> Iterator[str]:
    """What a repair did, and what is left to do."""
    if repaired.sealed and not repaired.quarantined:
        yield f"{repaired.folder}: whole, nothing to do"
        return
    yield (
        f"{repaired.folder}: {len(repaired.quarantined)} files set aside, "
        f"{len(repaired.recomputed)} shards made again, {len(repaired.missing)} missing"
    )
    if not repaired.sealed:
        yield f"  {repaired.how_to_fill}"
