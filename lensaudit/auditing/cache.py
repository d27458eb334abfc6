"""What does a model think? Its residual streams or components, kept and found again by content."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rich.filesize import decimal as size

from lensaudit.activations.fill import (
    cache_batch_that_fits,
    fill,
    fingerprint_of_run,
    provenance_of,
)
from lensaudit.activations.spec import Fingerprint, parts_of
from lensaudit.activations.store import Activations, ActivationStore
from lensaudit.auditing.settings import CacheSettings
from lensaudit.data.spans import Encoded, SpanLost
from lensaudit.models.bridge import DTYPES, load
from lensaudit.models.checkpoint import Checkpoint, open_checkpoint
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.large.placement import planned_text
from lensaudit.models.registry import default_data, load_registry, resolve
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.patching.options import parse_memory
from lensaudit.patching.plan import cache_bytes
from lensaudit.patching.prepare import encode_all, examples_for
from lensaudit.progress import Progress, Tell, unheard
from lensaudit.settings import Kept


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


@dataclass(frozen=True)
class Opened:
    """Everything but the model itself: names resolved, rows encoded."""

    checkpoint: Checkpoint
    encoded: tuple[Encoded, ...]
    lost: tuple[SpanLost, ...]
    data: str
    dtype: str
    device: str
    batch_size: int
    fingerprints: Mapping[Kept, Fingerprint]

    @property
    def unscored(self) -> dict[int, str]:
        """Why the tokenizer lost the span of an example, by idx."""
        return {item.idx: item.reason for item in self.lost}


def plan_cache(model: str, settings: CacheSettings) -> CachePlan:
    """What `cache_into` would do; loads and writes nothing.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    opened = opened_for(model, settings)
    store = ActivationStore(Path(settings.activations))
    parts = tuple(
        PartPlan(part, cache_bytes(opened.encoded, one), store.open(one) is not None)
        for part, one in opened.fingerprints.items()
    )
    n_todo = sum(not one.done for one in parts)
    weights = _weights(opened, settings, n_todo) if n_todo else ""
    return CachePlan(model, len(opened.encoded), opened.checkpoint.n_layers, parts, weights)


def _weights(opened: Opened, settings: CacheSettings, n_parts: int) -> str:
    return planned_text(
        opened.checkpoint,
        dtype=opened.dtype,
        device=opened.device,
        spread=_spread(settings),
        n_passes=n_parts,
    )


def _spread(settings: CacheSettings) -> int | None:
    """Bytes to be left where a model's blocks are brought; None: it is loaded whole."""
    return parse_memory(settings.memory) if settings.device == "auto" else None


def cache_into(model: str, settings: CacheSettings, *, progress: Tell = unheard) -> CacheResult:
    """Fill the caches of one model in `settings.activations`, or find them complete.

    Raises:
        InputError: before any work; or the bridge has no such component on this architecture.
        WorkError: an activation is not finite.
        TryAgainError: the disk is full; published shards are kept.
    """
    opened = opened_for(model, settings)
    parts: dict[Kept, PartResult] = {}
    for activations in filled(model, settings, opened, progress):
        with activations:
            fingerprint = activations.fingerprint
            n_bytes = cache_bytes(opened.encoded, fingerprint)
            parts[activations.part] = PartResult(activations.folder, fingerprint.key(), n_bytes)
    return CacheResult(model, len(opened.encoded), opened.unscored, parts)


def filled(
    model: str, settings: CacheSettings, opened: Opened, progress: Tell
) -> Iterator[Activations]:
    """A complete cache for each part, one after the other; the model is loaded at most once."""
    checkpoint = opened.checkpoint
    provenance = provenance_of(
        checkpoint.spec,
        opened.data,
        exclude=settings.exclude,
        limit=settings.limit,
        batch_size=opened.batch_size,
        memory_bytes=parse_memory(settings.memory),
    )
    loaded = cache(
        lambda: load(
            checkpoint, dtype=DTYPES[opened.dtype], device=opened.device, spread=_spread(settings)
        )
    )
    for fingerprint in opened.fingerprints.values():
        yield fill(
            ActivationStore(Path(settings.activations)),
            fingerprint,
            opened.encoded,
            name=model,
            batch_size=opened.batch_size,
            provenance=provenance,
            progress=lambda stage, done, of: progress(Progress(stage, done, of)),
            load=loaded,
        )


def opened_for(model: str, settings: CacheSettings) -> Opened:
    """What is cached, and under which fingerprints; loads nothing.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    parts = parts_of(settings.component)
    device = resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    data = settings.data or default_data(model)
    spec = resolve(model, load_registry(settings.registry))
    examples = examples_for(data, exclude=settings.exclude, limit=settings.limit)
    checkpoint = open_checkpoint(spec, allow_packed=True)
    encoded, lost = encode_all(examples, checkpoint)
    sizes = sizes_on_disk(checkpoint, dtype)
    fitting = cache_batch_that_fits(sizes, encoded, parse_memory(settings.memory))
    batch_size = settings.batch_size or fitting
    fingerprints: dict[Kept, Fingerprint] = {
        part: fingerprint_of_run(
            checkpoint,
            encoded,
            positions=settings.positions,
            dtype=dtype,
            device=device,
            batch_size=batch_size,
            part=part,
        )
        for part in parts
    }
    return Opened(checkpoint, encoded, lost, data, dtype, device, batch_size, fingerprints)
