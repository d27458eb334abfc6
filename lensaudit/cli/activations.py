"""`lensaudit activations`: look after the caches."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.filesize import decimal as size

from lensaudit.cli import library
from lensaudit.cli.options import ByteSize, PlaceName, SettingOption, shared
from lensaudit.cli.terminal import answer, emit, listing, say, tell
from lensaudit.errors import VerificationError

CACHE = click.argument("cache", metavar="CACHE")
CACHES = click.argument("caches", metavar="[CACHE]...", nargs=-1)


@click.group()
def activations() -> None:
    """List, check, repair, prune and move activation caches."""


@activations.command("ls")
@shared("activations", "json")
def list_(activations: Path, as_json: bool) -> None:
    """List the caches: name, key, state, component, size, last use."""
    infos = [
        library.activations_inventory.describe(folder)
        for folder in library.activations_naming.cache_folders(activations)
    ]
    if as_json:
        emit([asdict(one) for one in infos], pretty=True)
    elif not infos:
        say("no caches; `lensaudit cache` makes one")
    else:
        listing(
            [
                library.screen_listings.CACHE_COLUMNS,
                *map(library.screen_listings.cache_columns, infos),
            ]
        )
        say(f"{len(infos)} caches, {size(sum(one.n_bytes for one in infos))}")


@activations.command()
@CACHE
@shared("activations", "json")
def info(cache: str, activations: Path, as_json: bool) -> None:
    """Show all about one CACHE: a name, a key or its beginning, or a folder."""
    found = library.activations_inventory.describe(
        library.activations_lookup.find(cache, root=activations)
    )
    answer(asdict(found), library.screen_listings.of_cache(found), as_json=as_json, pretty=True)


@activations.command()
@CACHES
@shared("activations", "json")
def verify(caches: tuple[str, ...], activations: Path, as_json: bool) -> None:
    """Check every byte of the CACHEs; exit 4 if one is not as it was written.

    Without CACHE all are checked, and every line of the books beside them.
    """
    found: list[library.activations_inventory.VerifiedCache] = []
    for folder in _folders(caches, activations):
        found.append(library.activations_inventory.verify(folder))
        if not as_json:
            tell(library.screen_listings.of_check(found[-1]))
    books = [] if caches else library.activations_upkeep.verify_books(activations)
    if as_json:
        emit([asdict(one) for one in [*found, *books]], pretty=True)
    elif not found:
        say(f"{activations}: no caches")
    if books and not as_json:
        tell(library.screen_listings.of_books(books))
    if said := "; ".join(_damage(found, books, activations)):
        raise VerificationError(said)


@activations.command()
@CACHES
@shared("activations", "json")
def repair(caches: tuple[str, ...], activations: Path, as_json: bool) -> None:
    """Set damaged files of the CACHEs, or of all caches, aside; whole ones stay.

    The next `lensaudit cache` of the model computes what is missing, and only that.
    """
    done = [library.activations_upkeep.repair(folder) for folder in _folders(caches, activations)]
    lines = (line for one in done for line in library.screen_listings.of_repair(one))
    answer([asdict(one) for one in done], lines, as_json=as_json, pretty=True)


@activations.command()
@click.option(
    "--max-size",
    cls=SettingOption,
    typed=True,
    type=ByteSize(),
    help="Size that may stay, e.g. 200GB; what exceeds it is removed.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="CACHE[,CACHE]",
    help="Cache that is never removed. Repeatable.",
)
@shared("dry_run", "activations", "json")
def gc(
    max_size: int | None, keep: tuple[str, ...], dry_run: bool, activations: Path, as_json: bool
) -> None:
    """Remove leftovers of killed jobs and, above --max-size, maps, unused caches, then books.

    What was used longest ago goes first. Maps of aligned depth are fitted again when
    needed; books hold scores, texts and Fisher information. Caches named with --keep,
    and those in use, stay.
    """
    kept = [one for names in keep for one in names.split(",") if one]
    done = library.activations_upkeep.collect(
        activations, max_bytes=max_size, keep=kept, dry_run=dry_run
    )
    document = {**asdict(done), "dry_run": dry_run}
    answer(
        document,
        library.screen_listings.of_removal(done, dry_run=dry_run),
        as_json=as_json,
        pretty=True,
    )


@activations.command()
@CACHE
@click.option(
    "-o",
    "--out",
    "output",
    cls=SettingOption,
    required=True,
    type=PlaceName(dir_okay=False),
)
@shared("activations", "json")
def export(cache: str, output: Path, activations: Path, as_json: bool) -> None:
    """Write a complete CACHE to one tar file, after checking it."""
    path = library.activations_archive.export(
        library.activations_lookup.find(cache, root=activations), output
    )
    answer(
        {"archive": str(path), "n_bytes": path.stat().st_size},
        [str(path)],
        as_json=as_json,
        pretty=True,
    )


@activations.command("import")
@click.argument("file", metavar="ARCHIVE", type=PlaceName(dir_okay=False))
@shared("activations", "json")
def import_(file: Path, activations: Path, as_json: bool) -> None:
    """Take in a cache that `export` wrote elsewhere, once every byte of it is checked."""
    imported = library.activations_archive.import_archive(file, activations)
    note = "" if imported["new"] else "  (was there already; nothing changed)"
    answer(imported, [f"{imported['folder']}{note}"], as_json=as_json, pretty=True)


def _folders(caches: Sequence[str], root: Path) -> list[Path]:
    return [
        library.activations_lookup.find(one, root=root) for one in caches
    ] or library.activations_naming.cache_folders(root)


def _damage(
    found: "Sequence[library.activations_inventory.VerifiedCache]",
    books: "Sequence[library.results_ledger_check.VerifiedLedger]",
    root: Path,
) -> Iterator[str]:
    """Damaged caches and books, and what to do about them."""
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
