"""What does a model think? Its residual streams or components, kept and found again by content."""

from pathlib import Path
from typing import Any

from rich.filesize import decimal as size

from lensaudit.activations.fill import cache_batch_that_fits
from lensaudit.activations.spec import parts_of
from lensaudit.activations.store import ActivationStore
from lensaudit.auditing.result import CacheResult
from lensaudit.auditing.settings import CacheSettings
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.large.placement import planned_text
from lensaudit.models.registry import default_data, load_registry, resolve
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.patching.options import ResolvedSettings, parse_memory
from lensaudit.patching.prepare import encode_all, examples_for
from lensaudit.patching.scoring import cache_bytes
from lensaudit.patching.session import Session
from lensaudit.progress import Notice, Plan, Tell, unheard
from lensaudit.settings import Caches, Machine, Names, Rows, shared


def plan_cache(model: str, settings: CacheSettings) -> Plan:
    """What `cache_into` would do, a line for each part; loads and writes nothing.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    session = prepare_model(model, settings)
    full, encoded, options = session.full, session.encoded, session.settings
    store, n_bytes, n_todo = ActivationStore(session.root), 0, 0
    lines: list[str] = []
    for part in parts_of(settings.component):
        found = session.fingerprint(full, settings.positions, part)
        done, own = store.open(found) is not None, cache_bytes(encoded, found)
        lines.append(
            f"{model}{'' if part == 'resid' else f' {part}'}: {len(encoded)} examples, "
            f"{full.n_layers} layers, {size(own)}; {'complete' if done else 'to be cached'}"
        )
        n_todo, n_bytes = n_todo + (not done), n_bytes + own
    if n_todo:
        spread = options.memory_bytes if options.spread else None
        how = {"dtype": options.dtype, "device": options.device}
        weights = planned_text(full, **how, spread=spread, n_passes=n_todo)
        lines += [weights] if weights else []
    return Plan(tuple(lines), n_todo * len(encoded), n_bytes=n_bytes, done=not n_todo)


def cache_into(
    model: str, settings: CacheSettings, *, progress: Tell = unheard, notice: Notice = unheard
) -> CacheResult:
    """Fill the caches of one model in `settings.activations`, or find them complete.

    Raises:
        InputError: before any work; or the bridge has no such component on this architecture.
        WorkError: an activation is not finite.
        TryAgainError: the disk is full; published shards are kept.
    """
    parts: dict[str, dict[str, Any]] = {}
    with prepare_model(model, settings, progress=progress, notice=notice) as session:
        encoded = session.encoded
        for part in parts_of(settings.component):
            cache = session.filled(session.full, encoded, settings.positions, part)
            with cache:
                found = cache.fingerprint
                parts[part] = {
                    "folder": str(cache.folder),
                    "key": found.key(),
                    "bytes": cache_bytes(encoded, found),
                }
    first = next(iter(parts.values()))
    summary = {
        **{name: first[name] for name in ("folder", "key")},
        "n": len(encoded),
        "unscored": {str(idx): why for idx, why in session.unscored.items()},
        "bytes": sum(one["bytes"] for one in parts.values()),
        **({} if [*parts] == ["resid"] else {"parts": parts}),
    }
    return CacheResult(model, Path(first["folder"]), summary)


def prepare_model(
    model: str, settings: CacheSettings, *, progress: Tell = unheard, notice: Notice = print
) -> Session:
    """A session of one model, which stands for `full` and `retain` too; nothing is loaded.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    parts_of(settings.component)  # refuses what is no part of a model
    device = resolve_device(settings.device)
    dtype, memory_bytes = resolve_dtype(settings.dtype, device), parse_memory(settings.memory)
    data = settings.data or default_data(model)
    spec = resolve(model, load_registry(settings.registry))
    examples = examples_for(data, exclude=settings.exclude, limit=settings.limit)
    checkpoint = open_checkpoint(spec, allow_packed=True)
    encoded, lost = encode_all(examples, checkpoint)
    fitting = cache_batch_that_fits(sizes_on_disk(checkpoint, dtype), encoded, memory_bytes)
    decided: dict[str, Any] = {
        "data": data,
        "dtype": dtype,
        "device": device,
        "memory_bytes": memory_bytes,
        "cache_batch": settings.batch_size or fitting,
        "spread": settings.device == "auto",
    }
    return Session(
        full=checkpoint,
        retain=checkpoint,
        sources={model: checkpoint},
        encoded=encoded,
        unscored=lost,
        examples=tuple(examples),
        notice=notice,
        progress=progress,
        settings=ResolvedSettings(**shared(settings, Caches, Machine, Rows, Names) | decided),
    )
