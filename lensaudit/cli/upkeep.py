"""What `lensaudit activations` prints, and the loops over several caches."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from lensaudit.activations.archive import Imported
from lensaudit.activations.gc import collect
from lensaudit.activations.inventory import CacheInfo
from lensaudit.activations.lookup import cache_folders, find
from lensaudit.activations.verification import Repaired, Verified, verify
from lensaudit.errors import VerificationError
from lensaudit.files import printable


def size(n_bytes: int) -> str:
    """Bytes for people, in powers of 1000.

    >>> size(999), size(141_000_000)
    ('999 B', '141.0 MB')
    """
    value, units = float(n_bytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=1, allow_nan=False))


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def print_caches(infos: Sequence[CacheInfo], *, as_json: bool) -> None:
    """One row per cache."""
    if as_json:
        _print_json([asdict(info) for info in infos])
        return
    if not infos:
        click.echo("no caches; `lensaudit cache` makes one")
        return
    rows = [("NAME", "KEY", "STATE", "EXAMPLES", "LAYERS", "POSITIONS", "TYPE", "SIZE", "USED")]
    rows += [_row(info) for info in infos]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
    click.echo(f"{len(infos)} caches, {size(sum(info.n_bytes for info in infos))}")


def _row(info: CacheInfo) -> tuple[str, ...]:
    identity = info.fingerprint or {}
    shards = f" {info.n_published}/{info.n_shards}" if info.state == "incomplete" else ""
    return (
        printable(info.name or Path(info.folder).name), info.key[:8], info.state + shards,
        str(info.n_examples), str(identity.get("layers", "")), identity.get("positions", ""),
        identity.get("dtype", ""), size(info.n_bytes), _when(info.last_used_s),
    )  # fmt: skip


def print_info(info: CacheInfo, *, as_json: bool) -> None:
    """Every field, one to a line."""
    if as_json:
        _print_json(asdict(info))
        return
    rows = asdict(info)
    identity, provenance = rows.pop("fingerprint") or {}, rows.pop("provenance") or {}
    rows |= {"n_bytes": f"{info.n_bytes} ({size(info.n_bytes)})"}
    rows |= {"last_used_s": f"{_when(info.last_used_s)} UTC"}
    for title, fields in (("", rows), ("identity", identity), ("provenance", provenance)):
        if title:
            click.echo(f"{title}:")
        for name, value in fields.items():
            shown = value if isinstance(value, str) else json.dumps(value)
            click.echo(f"{'  ' if title else ''}{name}: {printable(shown)}")


def _folders(caches: Sequence[str], root: Path) -> list[Path]:
    return [find(cache, root=root) for cache in caches] or cache_folders(root)


def verify_caches(caches: Sequence[str], *, root: Path, as_json: bool) -> None:
    """Check caches one after the other and print each verdict as it comes.

    Raises:
        VerificationError: at least one file is not as it was written.
    """
    found: list[Verified] = []
    for folder in _folders(caches, root):
        found.append(verify(folder))
        if not as_json:
            _print_verified(found[-1])
    if as_json:
        _print_json([asdict(verified) for verified in found])
    elif not found:
        click.echo(f"{root}: no caches")
    bad = [verified for verified in found if verified.problems]
    if bad:
        n_files = sum(len(verified.problems) for verified in bad)
        raise VerificationError(
            f"{len(bad)} of {len(found)} caches are damaged ({n_files} files); "
            f"run `lensaudit activations repair --activations {shlex.quote(str(root))}`"
        )


def _print_verified(verified: Verified) -> None:
    state = "damaged" if verified.problems else "whole" if verified.complete else "whole so far"
    click.echo(
        f"{printable(verified.folder)}: {state}, "
        f"{verified.n_shards} shards, {size(verified.n_bytes)} checked"
    )
    for problem in verified.problems:
        click.echo(f"  {printable(problem.what)}")


def repair_caches(caches: Sequence[str], *, root: Path, as_json: bool) -> None:
    """Repair caches one after the other."""
    from lensaudit.activations.repair import repair  # imports torch; the other commands do not

    done = [repair(folder) for folder in _folders(caches, root)]
    if as_json:
        _print_json([asdict(repaired) for repaired in done])
        return
    for repaired in done:
        _print_repaired(repaired)


def _print_repaired(repaired: Repaired) -> None:
    if repaired.sealed and not repaired.quarantined:
        click.echo(f"{printable(repaired.folder)}: whole, nothing to do")
        return
    click.echo(
        f"{printable(repaired.folder)}: {len(repaired.quarantined)} files set aside, "
        f"{len(repaired.recomputed)} shards made again, {len(repaired.missing)} missing"
    )
    if not repaired.sealed:
        click.echo(f"  run `{repaired.command}` to fill it")


def collect_garbage(
    root: Path, max_bytes: int | None, keep: Sequence[str], *, dry_run: bool, as_json: bool
) -> None:
    """Collect and say what went, what stays, and why it is still too much."""
    done = collect(root, max_bytes=max_bytes, keep=keep, dry_run=dry_run)
    if as_json:
        _print_json({**asdict(done), "dry_run": dry_run})
        return
    verb = "would remove" if dry_run else "removed"
    for path in done.leftovers:
        click.echo(f"{verb} leftover {printable(path)}")
    for info in done.removed:
        click.echo(f"{verb} {printable(info.folder)} ({size(info.n_bytes)})")
    click.echo(f"{len(done.kept)} caches stay, {size(done.n_bytes_left)}")
    if done.n_bytes_over:
        click.echo(f"{size(done.n_bytes_over)} too much: the rest is named or in use")


def print_written(path: Path, *, as_json: bool) -> None:
    """The file that was written."""
    if as_json:
        _print_json({"archive": str(path), "n_bytes": path.stat().st_size})
    else:
        click.echo(path)


def print_imported(imported: Imported, *, as_json: bool) -> None:
    """The folder that a cache came to."""
    if as_json:
        _print_json(asdict(imported))
        return
    note = "" if imported.new else "  (was there already; nothing changed)"
    click.echo(f"{imported.folder}{note}")
