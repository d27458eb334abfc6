"""`cache` behind the options."""

from collections.abc import Sequence
from pathlib import Path

import click

from lensaudit.activations.fill import (
    Positions,
    Progress,
    cache_batch_that_fits,
    fill,
    fingerprint_of_run,
)
from lensaudit.activations.store import ActivationStore
from lensaudit.files import canonical_json
from lensaudit.models.bridge import DTYPES, load
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.registry import load_registry, resolve
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.patching.options import parse_memory
from lensaudit.patching.plan import cache_bytes
from lensaudit.patching.prepare import default_data, encode_all, examples_for


def cache_model(
    name: str,
    *,
    root: Path,
    positions: Positions,
    data: str | None,
    exclude: Sequence[str],
    limit: int | None,
    registry: Path | None,
    dtype: str,
    device: str,
    attn: str,
    batch_size: int | None,
    memory: str,
    as_json: bool,
    dry_run: bool,
    progress: Progress,
) -> None:
    """Fill the cache of one model, or find it complete."""
    device = resolve_device(device)
    dtype = resolve_dtype(dtype, device)
    data = data or default_data(name)
    spec = resolve(name, load_registry(registry))
    examples = examples_for(data, exclude=exclude, limit=limit)
    checkpoint = open_checkpoint(spec)
    encoded, lost = encode_all(examples, checkpoint)
    fitting = cache_batch_that_fits(sizes_on_disk(checkpoint, dtype), encoded, parse_memory(memory))
    size = batch_size or fitting
    fingerprint = fingerprint_of_run(
        checkpoint, encoded, positions=positions, dtype=dtype, device=device, attention=attn,
        batch_size=size,
    )  # fmt: skip
    n_bytes = cache_bytes(encoded, positions, checkpoint.n_layers, checkpoint.d_model, dtype)
    store = ActivationStore(root)
    if dry_run:
        there = store.open(fingerprint) is not None
        click.echo(
            f"{name}: {len(encoded)} examples, {checkpoint.n_layers} layers, "
            f"{n_bytes / 1e6:.1f} MB; " + ("complete" if there else "to be cached")
        )
        return
    provenance = {
        "model": name, "repo": checkpoint.spec.repo, "revision": checkpoint.spec.revision,
        "data": data, "exclude": list(exclude), "limit": limit, "batch_size": size,
    }  # fmt: skip
    with fill(
        store, fingerprint, encoded, name=name, batch_size=size, provenance=provenance,
        progress=progress,
        load=lambda: load(checkpoint, dtype=DTYPES[dtype], device=device, attn=attn),
    ) as activations:  # fmt: skip
        result = {
            "folder": str(activations.folder), "key": fingerprint.key(), "n": len(encoded),
            "unscored": {str(item.idx): item.reason for item in lost}, "bytes": n_bytes,
        }  # fmt: skip
    click.echo(canonical_json(result) if as_json else result["folder"])
