"""What does a model think? Its residual streams or components, kept and found again by content."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.filesize import decimal as size

from lensaudit.activations.fill import cache_batch_that_fits
from lensaudit.activations.spec import parts_of
from lensaudit.activations.store import ActivationStore
from lensaudit.auditing.settings import CacheSettings
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.large.placement import planned_text
from lensaudit.models.registry import default_data, load_registry, resolve
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.patching.options import PatchOptions, parse_memory
from lensaudit.patching.prepare import encode_all, examples_for
from lensaudit.patching.scoring import cache_bytes
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.settings import Caches, Kept, Machine, Names, Rows, shared


@dataclass(frozen=True)
class PartPlan:
    """What caching one part of every layer would do."""

    part: Kept
    n_bytes: int
    done: bool
    """The cache is complete; no model is loaded."""


@dataclass(frozen=True)
class CachePlan:
    """What caching a model would do."""

    model: str
    n_examples: int
    n_layers: int
    parts: tuple[PartPlan, ...]
    weights: str = ""
    """Where they would lie, and what bringing them would cost; empty where no model is loaded."""

    @property
    def n_bytes(self) -> int:
        """Size of all parts, bytes."""
        return sum(one.n_bytes for one in self.parts)

    @property
    def done(self) -> bool:
        """Every cache is complete; no model is loaded."""
        return all(one.done for one in self.parts)

    @property
    def n_forward(self) -> int:
        """Examples to run through the model: once for each part."""
        return self.n_examples * sum(not one.done for one in self.parts)

    def text(self) -> str:
        """The plan, a line for each part."""
        lines = [
            f"{self.model}{'' if one.part == 'resid' else f' {one.part}'}: {self.n_examples} "
            f"examples, {self.n_layers} layers, {size(one.n_bytes)}; "
            f"{'complete' if one.done else 'to be cached'}"
            for one in self.parts
        ]
        return "\n".join([*lines, *([self.weights] if self.weights else [])])


@dataclass(frozen=True)
class PartResult:
    """The complete cache of one part."""

    folder: Path
    key: str
    """Hash of all that decides its numbers."""
    n_bytes: int


@dataclass(frozen=True)
class CacheResult:
    """Complete caches of one model."""

    source: str
    n: int
    """Examples."""
    unscored: dict[int, str]
    """idx -> why the tokenizer lost its span."""
    parts: Mapping[Kept, PartResult]
    """By part: `resid`, `attn` …; those that were asked for."""

    @property
    def folder(self) -> Path:
        """Folder of the first part."""
        return self._first.folder

    @property
    def key(self) -> str:
        """Of the first part: hash of all that decides its numbers."""
        return self._first.key

    @property
    def n_bytes(self) -> int:
        """Size of all parts, bytes."""
        return sum(one.n_bytes for one in self.parts.values())

    @property
    def _first(self) -> PartResult:
        return next(iter(self.parts.values()))

    @property
    def summary(self) -> dict[str, Any]:
        """As JSON; `parts` where more than the residual stream was asked for."""
        parts = {
            part: {"folder": str(one.folder), "key": one.key, "bytes": one.n_bytes}
            for part, one in self.parts.items()
        }
        return {
            "folder": str(self.folder),
            "key": self.key,
            "n": self.n,
            "unscored": {str(idx): why for idx, why in self.unscored.items()},
            "bytes": self.n_bytes,
            **({} if [*parts] == ["resid"] else {"parts": parts}),
        }


def plan_cache(model: str, settings: CacheSettings) -> CachePlan:
    """What `cache_into` would do; loads and writes nothing.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    session = prepare_model(model, settings)
    full, encoded, options = session.full, session.encoded, session.options
    prints = [session.fingerprint(full, settings.positions, part) for part in _parts(settings)]
    store = ActivationStore(session.root)
    parts = tuple(
        PartPlan(part, cache_bytes(encoded, one), store.open(one) is not None)
        for part, one in zip(_parts(settings), prints, strict=True)
    )
    n_todo = sum(not one.done for one in parts)
    weights = ""
    if n_todo:
        spread = options.memory_bytes if session.spread else None
        how = {"dtype": options.dtype, "device": options.device}
        weights = planned_text(full, **how, spread=spread, n_passes=n_todo)
    return CachePlan(model, len(encoded), full.n_layers, parts, weights)


def cache_into(
    model: str, settings: CacheSettings, *, progress: Tell = unheard, notice: Notice = unheard
) -> CacheResult:
    """Fill the caches of one model in `settings.activations`, or find them complete.

    Raises:
        InputError: before any work; or the bridge has no such component on this architecture.
        WorkError: an activation is not finite.
        TryAgainError: the disk is full; published shards are kept.
    """
    parts: dict[Kept, PartResult] = {}
    with prepare_model(model, settings, progress=progress, notice=notice) as session:
        encoded = session.encoded
        for part in _parts(settings):
            cache = session.filled(session.full, encoded, settings.positions, part)
            with cache:
                n_bytes = cache_bytes(encoded, cache.fingerprint)
                parts[part] = PartResult(cache.folder, cache.fingerprint.key(), n_bytes)
    return CacheResult(model, len(encoded), session.unscored, parts)


def _parts(settings: CacheSettings) -> Sequence[Kept]:
    return parts_of(settings.component)


def prepare_model(
    model: str, settings: CacheSettings, *, progress: Tell = unheard, notice: Notice = print
) -> Session:
    """A session of one model, which stands for `full` and `retain` too; nothing is loaded.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    _parts(settings)  # refuses what is no part of a model
    device = resolve_device(settings.device)
    dtype, memory_bytes = resolve_dtype(settings.dtype, device), parse_memory(settings.memory)
    data = settings.data or default_data(model)
    spec = resolve(model, load_registry(settings.registry))
    examples = examples_for(data, exclude=settings.exclude, limit=settings.limit)
    checkpoint = open_checkpoint(spec, allow_packed=True)
    encoded, lost = encode_all(examples, checkpoint)
    fitting = cache_batch_that_fits(sizes_on_disk(checkpoint, dtype), encoded, memory_bytes)
    return Session(
        full=checkpoint,
        retain=checkpoint,
        sources={model: checkpoint},
        encoded=encoded,
        unscored=lost,
        options=PatchOptions(
            layers=(),
            dtype=dtype,
            device=device,
            batch_size=settings.batch_size,
            memory_bytes=memory_bytes,
            cache_batch=settings.batch_size or fitting,
        ),
        root=Path(settings.activations),
        spread=settings.device == "auto",
        examples=tuple(examples),
        notice=notice,
        progress=progress,
        settings=PatchSettings(**shared(settings, Caches, Machine, Rows, Names, data=data)),
    )
