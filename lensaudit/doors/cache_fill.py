"""Caches of the residual streams or components of models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.filesize import decimal as size

from lensaudit.activations.chosen import parts_of
from lensaudit.activations.store import CacheStore
from lensaudit.data.tofu import forget_set
from lensaudit.doors.cache import CacheResult
from lensaudit.doors.settings import CacheSettings
from lensaudit.models.checkpoint import open_model
from lensaudit.patching.prepare import resolved_settings, session_of
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.plans.depth import cache_bytes
from lensaudit.plans.plan import Plan
from lensaudit.plans.weights import planned_text
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.settings import Caches, Machine, Names, Rows, shared


def prepare_model(
    model: str, settings: CacheSettings, *, progress: Tell = unheard, notice: Notice = print
) -> Session:
    """A session of one model, which stands for `full` and `retain` too; nothing is loaded.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    parts_of(settings.component)  # refuses what is no part of a model
    asked = PatchSettings(**shared(settings, Caches, Machine, Rows, Names))
    resolved = resolved_settings(asked, [model])
    examples = forget_set(str(resolved.data), exclude=settings.exclude, limit=settings.limit)
    checkpoint = open_model(model, settings.registry, allow_packed=True)
    opened = dict.fromkeys(("full", "retain", f"source {model}"), checkpoint)
    session = session_of(resolved, opened, examples, notice, progress)
    return session.under(cache_batch=settings.batch_size or session.settings.cache_batch)


def plan_cache(model: str, settings: CacheSettings) -> Plan:
    """What `cache_into` would do, a line for each part; loads and writes nothing.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    session = prepare_model(model, settings)
    full, encoded, options = session.full, session.encoded, session.settings
    store, lines, sizes, n_todo = CacheStore(session.root), list[str](), list[int](), 0
    for part in parts_of(settings.component):
        found = session.fingerprint(full, session.encoded, settings.positions, part)
        done = store.open(found) is not None
        n_todo += not done
        sizes.append(cache_bytes(encoded, found))
        lines.append(
            f"{model}{'' if part == 'resid' else f' {part}'}: {len(encoded)} examples, "
            f"{full.n_layers} layers, {size(sizes[-1])}; {'complete' if done else 'to be cached'}"
        )
    if n_todo:
        spread = options.memory_bytes if options.spread else None
        how = {"dtype": options.dtype, "device": options.device}
        weights = planned_text(full, **how, spread=spread, n_passes=n_todo)
        lines += [weights] if weights else []
    return Plan(tuple(lines), n_todo * len(encoded), n_bytes=sum(sizes), done=not n_todo)


def cache_into(
    model: str,
    settings: CacheSettings,
    *,
    progress: Tell = unheard,
    notice: Notice = unheard,
    opened: Callable[[Session], None] = unheard,
) -> CacheResult:
    """Fill the caches of one model in `settings.activations`, or find them complete.

    Raises:
        InputError: before any work; or the bridge has no such component on this architecture.
        WorkError: an activation is not finite.
        TryAgainError: the disk is full; published shards are kept.
    """
    parts: dict[str, dict[str, Any]] = {}
    with prepare_model(model, settings, progress=progress, notice=notice) as session:
        opened(session)
        encoded = session.encoded
        for part in parts_of(settings.component):
            with session.filled(session.full, encoded, settings.positions, part) as cache:
                parts[part] = {
                    "folder": str(cache.folder),
                    "key": cache.fingerprint.key(),
                    "bytes": cache_bytes(encoded, cache.fingerprint),
                }
    first = next(iter(parts.values()))
    summary = {
        "folder": first["folder"],
        "key": first["key"],
        "n": len(encoded),
        "unscored": {str(idx): why for idx, why in session.unscored.items()},
        "bytes": sum(one["bytes"] for one in parts.values()),
        **({} if [*parts] == ["resid"] else {"parts": parts}),
    }
    return CacheResult(model, Path(first["folder"]), summary)
