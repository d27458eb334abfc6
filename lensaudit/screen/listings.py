"""What lies on disk: runs and caches, a line each, all about one, and why two runs differ."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal as size

from lensaudit.screen.cells import brief, fields, name
from lensaudit.settings import results_folder

if TYPE_CHECKING:
    from lensaudit.activations.inventory import CacheInfo, VerifiedCache
    from lensaudit.activations.upkeep import Collected, Repaired
    from lensaudit.results.ledger_check import VerifiedLedger
    from lensaudit.results.run_log import Comparison, Run

COLUMNS = ("RUN", "COMMAND", "MODEL", "DATA", "SCORE", "FINISHED")


def columns(run: "Run") -> tuple[str, ...]:
    """A line of `runs ls`."""
    base = results_folder()
    shown = run.folder.relative_to(base) if run.folder.is_relative_to(base) else run.folder
    score = "–" if run.score is None else f"{run.score} {brief(run.value)}"
    if run.score is None and run.values:
        score = f"{len(run.values)} values"
    when = run.made.finished[:16].replace("T", " ")
    return str(shown), run.made.command, run.model, run.data or "–", score, when


def of_run(run: "Run") -> Iterator[str]:
    """All that is recorded, one thing to a line."""
    yield from fields(
        {
            "run": run.folder,
            "command": run.made.command,
            **run.models,
            "data": run.data or "–",
            "finished": run.made.finished,
            "seconds": brief(run.made.seconds),
        }
    )
    for title, part in (("values", run.values), ("options", run.made.options)):
        if part:
            yield f"{title}:"
            given = {key: one for key, one in dict(part).items() if one is not None}
            yield from fields(given, indent="  ")


def of_comparison(found: "Comparison") -> Iterator[str]:
    """Values of both, and what explains that they differ."""
    for key, (one, other) in found.values.items():
        yield f"{name(key)}: {brief(one)} -> {brief(other)}"
    for weight in ("explains", "may explain", "does not matter"):
        if rows := found.of(weight):
            yield f"{weight}:"
            for row in rows:
                yield f"  {name(row)}"
    yield name(found.sentence())


CACHE_COLUMNS = (
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


def cache_columns(info: "CacheInfo") -> tuple[str, ...]:
    """A line of `activations ls`."""
    from lensaudit.activations.spec import PARTS  # `runs` reads no activations

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


def of_cache(info: "CacheInfo") -> Iterator[str]:
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


def of_check(verified: "VerifiedCache") -> Iterator[str]:
    """What a check of all bytes found."""
    state = "damaged" if verified.problems else "whole" if verified.complete else "whole so far"
    checked = f"{verified.n_shards} shards, {size(verified.n_bytes)} checked"
    yield f"{verified.folder}: {state}, {checked}"
    for problem in verified.problems:
        yield f"  {problem.what}"


def of_books(books: "Sequence[VerifiedLedger]") -> Iterator[str]:
    """What a check of all lines found."""
    n_lines = sum(book.n_lines for book in books)
    yield f"{len(books)} books, {n_lines} lines checked"
    for book in books:
        for problem in book.problems:
            yield f"  {problem}"


def of_removal(done: "Collected", *, dry_run: bool) -> Iterator[str]:
    """What went, what is not ours, and what stays."""
    verb = "would remove" if dry_run else "removed"
    gone = {"leftover": done.leftovers, "map": done.maps, "book": done.books}
    for kind, paths in gone.items():
        yield from (f"{verb} {kind} {path}" for path in paths)
    yield from (f"{verb} {one.folder} ({size(one.n_bytes)})" for one in done.removed)
    yield from done.strange
    yield f"{len(done.kept)} caches stay, {size(done.n_bytes_left)}"
    if done.n_bytes_over:
        yield f"{size(done.n_bytes_over)} too much: the rest is named, in use or not ours"


def of_repair(repaired: "Repaired") -> Iterator[str]:
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
