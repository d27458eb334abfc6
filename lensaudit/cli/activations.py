"""`lensaudit activations`: look after the caches."""

import re
from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import shared

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


class ByteSize(click.ParamType):
    """A size such as `200GB` (10^9) or `64GiB` (2^30), in bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Bytes."""
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size; wanted like 200GB or 64GiB", param, ctx)
        power = " kmgt".index(match[2].lower() or " ")
        return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


@click.group()
def activations() -> None:
    """List, check, repair, prune and move activation caches."""


CACHE = click.argument("cache", metavar="CACHE")
CACHES = click.argument("caches", metavar="[CACHE]...", nargs=-1)


@activations.command("ls")
@shared("activations", "json")
def list_(activations: Path, as_json: bool) -> None:
    """List the caches: name, key, state, size, last use."""
    from lensaudit.activations.inventory import describe
    from lensaudit.activations.lookup import cache_folders
    from lensaudit.cli.upkeep import print_caches

    print_caches([describe(folder) for folder in cache_folders(activations)], as_json=as_json)


@activations.command()
@CACHE
@shared("activations", "json")
def info(cache: str, activations: Path, as_json: bool) -> None:
    """Tell all about one CACHE: a name, a key or its beginning, or a folder."""
    from lensaudit.activations.inventory import describe
    from lensaudit.activations.lookup import find
    from lensaudit.cli.upkeep import print_info

    print_info(describe(find(cache, root=activations)), as_json=as_json)


@activations.command()
@CACHES
@shared("activations", "json")
def verify(caches: tuple[str, ...], activations: Path, as_json: bool) -> None:
    """Check every byte of the CACHEs, or of all; exit 4 if one is not as it was written."""
    from lensaudit.cli.upkeep import verify_caches

    verify_caches(caches, root=activations, as_json=as_json)


@activations.command()
@CACHES
@shared("activations", "json")
def repair(caches: tuple[str, ...], activations: Path, as_json: bool) -> None:
    """Set damaged files of the CACHEs, or of all, aside; whole ones stay.

    The next `lensaudit cache` of the model computes what is missing, and only that.
    """
    from lensaudit.cli.upkeep import repair_caches

    repair_caches(caches, root=activations, as_json=as_json)


@activations.command()
@click.option("--max-size", type=ByteSize(), help="Remove caches until this much is left.")
@click.option("--keep", multiple=True, metavar="CACHE[,CACHE]", help="Never remove. Repeatable.")
@shared("dry_run", "activations", "json")
def gc(
    max_size: int | None, keep: tuple[str, ...], dry_run: bool, activations: Path, as_json: bool
) -> None:
    """Remove leftovers of killed jobs and, above --max-size, the caches unused for longest.

    Caches that are named with --keep, and those in use, stay.
    """
    from lensaudit.cli.upkeep import collect_garbage

    names = [name for names in keep for name in names.split(",") if name]
    collect_garbage(activations, max_size, names, dry_run=dry_run, as_json=as_json)


@activations.command()
@CACHE
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False))
@shared("activations", "json")
def export(cache: str, output: Path, activations: Path, as_json: bool) -> None:
    """Write a complete CACHE to one tar file, after checking it."""
    from lensaudit.activations import archive
    from lensaudit.activations.lookup import find
    from lensaudit.cli.upkeep import print_written

    print_written(archive.export(find(cache, root=activations), output), as_json=as_json)


@activations.command("import")
@click.argument("archive", type=click.Path(path_type=Path, dir_okay=False))
@shared("activations", "json")
def import_(archive: Path, activations: Path, as_json: bool) -> None:
    """Take in a cache that `export` wrote elsewhere; it is treated as hostile."""
    from lensaudit.activations.archive import import_archive
    from lensaudit.cli.upkeep import print_imported

    print_imported(import_archive(archive, activations), as_json=as_json)
