"""`lensaudit activations`: look after the caches."""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lensaudit.cli.options import ByteSize, Renamed, shared
from lensaudit.cli.terminal import emit, fields, listing, name, say, size
from lensaudit.errors import VerificationError

if TYPE_CHECKING:
    from lensaudit.activations.inventory import CacheInfo
    from lensaudit.activations.verification import Repaired, Verified
    from lensaudit.results.ledger import VerifiedLedger

CACHE = click.argument("cache", metavar="CACHE")
CACHES = click.argument("caches", metavar="[CACHE]...", nargs=-1)
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


@click.group()
def activations() -> None:
    """List, check, repair, prune and move activation caches."""


@activations.command("ls")
@shared("activations", "json")
def list_(activations: Path, as_json: bool) -> None:
    """List the caches: name, key, state, component, size, last use."""
    from lensaudit.activations.inventory import describe
    from lensaudit.activations.lookup import cache_folders

    infos = [describe(folder) for folder in cache_folders(activations)]
    if as_json:
        emit([asdict(one) for one in infos], pretty=True)
    elif not infos:
        say("no caches; `lensaudit cache` makes one")
    else:
        listing([COLUMNS, *map(_columns, infos)])
        say(f"{len(infos)} caches, {size(sum(one.n_bytes for one in infos))}")


@activations.command()
@CACHE
@shared("activations", "json")
def info(cache: str, activations: Path, as_json: bool) -> None:
    """Tell all about one CACHE: a name, a key or its beginning, or a folder."""
    from lensaudit.activations.inventory import describe
    from lensaudit.activations.lookup import find

    found = describe(find(cache, root=activations))
    if as_json:
        emit(asdict(found), pretty=True)
    else:
        print_info(found)


@activations.command()
@CACHES
@shared("activations", "json")
def verify(caches: tuple[str, ...], activations: Path, as_json: bool) -> None:
    """Check every byte of the CACHEs; exit 4 if one is not as it was written.

    Without CACHE all are checked, and every line of the books beside them.
    """
    from lensaudit.activations import verification

    found: list[Verified] = []
    for folder in _folders(caches, activations):
        found.append(verification.verify(folder))
        if not as_json:
            _print_verified(found[-1])
    books = [] if caches else verification.verify_books(activations)
    if as_json:
        emit([asdict(one) for one in [*found, *books]], pretty=True)
    elif not found:
        say(f"{activations}: no caches")
    if books and not as_json:
        _print_books(books)
    if said := "; ".join(_damage(found, books, activations)):
        raise VerificationError(said)


@activations.command()
@CACHES
@shared("activations", "json")
def repair(caches: tuple[str, ...], activations: Path, as_json: bool) -> None:
    """Set damaged files of the CACHEs, or of all, aside; whole ones stay.

    The next `lensaudit cache` of the model computes what is missing, and only that.
    """
    from lensaudit.activations.repair import repair as mend

    done = [mend(folder) for folder in _folders(caches, activations)]
    if as_json:
        emit([asdict(one) for one in done], pretty=True)
    for one in [] if as_json else done:
        _print_repaired(one)


@activations.command()
@click.option("--max-size", type=ByteSize(), help="Remove caches until this much is left.")
@click.option("--keep", multiple=True, metavar="CACHE[,CACHE]", help="Never remove. Repeatable.")
@shared("dry_run", "activations", "json")
def gc(
    max_size: int | None, keep: tuple[str, ...], dry_run: bool, activations: Path, as_json: bool
) -> None:
    """Remove leftovers of killed jobs and, above --max-size, maps, then the caches unused longest.

    Maps are those of aligned depth: they are fitted again where they are wanted. Caches that are
    named with --keep, and those in use, stay.
    """
    from lensaudit.activations.gc import collect

    kept = [one for names in keep for one in names.split(",") if one]
    done = collect(activations, max_bytes=max_size, keep=kept, dry_run=dry_run)
    if as_json:
        emit({**asdict(done), "dry_run": dry_run}, pretty=True)
        return
    verb = "would remove" if dry_run else "removed"
    for path in done.leftovers:
        say(f"{verb} leftover {path}")
    for path in done.maps:
        say(f"{verb} map {path}")
    for one in done.removed:
        say(f"{verb} {one.folder} ({size(one.n_bytes)})")
    say(f"{len(done.kept)} caches stay, {size(done.n_bytes_left)}")
    if done.n_bytes_over:
        say(f"{size(done.n_bytes_over)} too much: the rest is named or in use")


@activations.command()
@CACHE
@click.option(
    "-o",
    "--out",
    "output",
    cls=Renamed,
    was=("--output",),
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
)
@shared("activations", "json")
def export(cache: str, output: Path, activations: Path, as_json: bool) -> None:
    """Write a complete CACHE to one tar file, after checking it."""
    from lensaudit.activations import archive
    from lensaudit.activations.lookup import find

    path = archive.export(find(cache, root=activations), output)
    if as_json:
        emit({"archive": str(path), "n_bytes": path.stat().st_size}, pretty=True)
    else:
        say(path)


@activations.command("import")
@click.argument("archive", type=click.Path(path_type=Path, dir_okay=False))
@shared("activations", "json")
def import_(archive: Path, activations: Path, as_json: bool) -> None:
    """Take in a cache that `export` wrote elsewhere; it is treated as hostile."""
    from lensaudit.activations.archive import import_archive

    imported = import_archive(archive, activations)
    if as_json:
        emit(asdict(imported), pretty=True)
    else:
        note = "" if imported.new else "  (was there already; nothing changed)"
        say(f"{imported.folder}{note}")


def _folders(caches: Sequence[str], root: Path) -> list[Path]:
    from lensaudit.activations.lookup import cache_folders, find

    return [find(cache, root=root) for cache in caches] or cache_folders(root)


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _columns(info: "CacheInfo") -> tuple[str, ...]:
    from lensaudit.activations.parts import PARTS

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


def print_info(info: "CacheInfo") -> None:
    """Every field, one to a line."""
    rows = asdict(info)
    identity, provenance = rows.pop("fingerprint") or {}, rows.pop("provenance") or {}
    rows |= {"n_bytes": f"{info.n_bytes} ({size(info.n_bytes)})"}
    rows |= {"last_used_s": f"{_when(info.last_used_s)} UTC"}
    for title, values in (("", rows), ("identity", identity), ("provenance", provenance)):
        if title:
            say(f"{title}:")
        shown = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
        fields(shown, indent="  " if title else "")


def _print_verified(verified: "Verified") -> None:
    state = "damaged" if verified.problems else "whole" if verified.complete else "whole so far"
    say(f"{verified.folder}: {state}, {verified.n_shards} shards, {size(verified.n_bytes)} checked")
    for problem in verified.problems:
        say(f"  {problem.what}")


def _print_books(books: "Sequence[VerifiedLedger]") -> None:
    n_lines = sum(book.n_lines for book in books)
    say(f"{len(books)} books, {n_lines} lines checked")
    for book in books:
        for problem in book.problems:
            say(f"  {problem}")
        if book.is_unsigned:
            say(f"  {book.file}: has no checksums; computed again when used")


def _damage(
    found: "Sequence[Verified]", books: "Sequence[VerifiedLedger]", root: Path
) -> Iterator[str]:
    """What is not as it was written, and what to do about it."""
    if bad := [verified for verified in found if verified.problems]:
        n_files = sum(len(verified.problems) for verified in bad)
        yield (
            f"{len(bad)} of {len(found)} caches are damaged ({n_files} files); "
            f"run `lensaudit activations repair --activations {shlex.quote(str(root))}`"
        )
    if spoilt := [book for book in books if book.problems]:
        yield (
            f"{len(spoilt)} of {len(books)} books are damaged; what does not count is computed "
            "again by the command that wrote it"
        )


def _print_repaired(repaired: "Repaired") -> None:
    if repaired.sealed and not repaired.quarantined:
        say(f"{repaired.folder}: whole, nothing to do")
        return
    say(
        f"{repaired.folder}: {len(repaired.quarantined)} files set aside, "
        f"{len(repaired.recomputed)} shards made again, {len(repaired.missing)} missing"
    )
    if not repaired.sealed:
        say(f"  {repaired.how_to_fill}")
