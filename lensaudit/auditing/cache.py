"""What does a model think? Its residual streams, kept and found again by content."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.activations.fill import (
    cache_batch_that_fits,
    fill,
    fingerprint_of_run,
    provenance_of,
)
from lensaudit.activations.fingerprint import Fingerprint
from lensaudit.activations.store import ActivationStore
from lensaudit.auditing.progress import Progress, Tell, unheard
from lensaudit.auditing.settings import CacheSettings
from lensaudit.data.spans import Encoded, SpanLost
from lensaudit.models.bridge import DTYPES, load
from lensaudit.models.checkpoint import Checkpoint, open_checkpoint
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.registry import default_data, load_registry, resolve
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.patching.options import parse_memory
from lensaudit.patching.plan import cache_bytes
from lensaudit.patching.prepare import encode_all, examples_for


@dataclass(frozen=True)
class CachePlan:
    """What caching a model would do."""

    model: str
    n_examples: int
    n_layers: int
    n_bytes: int
    done: bool
    """The cache is complete; no model is loaded."""

    @property
    def n_forward(self) -> int:
        """Examples to run through the model."""
        return 0 if self.done else self.n_examples

    def text(self) -> str:
        """The plan in a line."""
        return (
            f"{self.model}: {self.n_examples} examples, {self.n_layers} layers, "
            f"{self.n_bytes / 1e6:.1f} MB; {'complete' if self.done else 'to be cached'}"
        )


@dataclass(frozen=True)
class CacheResult:
    """A complete cache."""

    source: str
    folder: Path
    key: str
    """Hash of all that decides its numbers."""
    n: int
    """Examples."""
    unscored: dict[int, str]
    """idx -> why the tokenizer lost its span."""
    n_bytes: int

    @property
    def summary(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "folder": str(self.folder),
            "key": self.key,
            "n": self.n,
            "unscored": {str(idx): why for idx, why in self.unscored.items()},
            "bytes": self.n_bytes,
        }


@dataclass(frozen=True)
class _Opened:
    checkpoint: Checkpoint
    encoded: tuple[Encoded, ...]
    lost: tuple[SpanLost, ...]
    data: str
    dtype: str
    device: str
    batch_size: int
    fingerprint: Fingerprint
    n_bytes: int


def plan_cache(model: str, settings: CacheSettings) -> CachePlan:
    """What `cache_into` would do; loads and writes nothing.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    opened = _open(model, settings)
    there = ActivationStore(Path(settings.activations)).open(opened.fingerprint) is not None
    n_layers = opened.checkpoint.n_layers
    return CachePlan(model, len(opened.encoded), n_layers, opened.n_bytes, there)


def cache_into(model: str, settings: CacheSettings, *, progress: Tell = unheard) -> CacheResult:
    """Fill the cache of one model in `settings.activations`, or find it complete.

    Raises:
        InputError: before any work.
        WorkError: an activation is not finite.
        TryAgainError: the disk is full; published shards are kept.
    """
    opened = _open(model, settings)
    checkpoint = opened.checkpoint
    provenance = provenance_of(
        checkpoint.spec,
        opened.data,
        exclude=settings.exclude,
        limit=settings.limit,
        batch_size=opened.batch_size,
        memory_bytes=parse_memory(settings.memory),
    )
    with fill(
        ActivationStore(Path(settings.activations)),
        opened.fingerprint,
        opened.encoded,
        name=model,
        batch_size=opened.batch_size,
        provenance=provenance,
        progress=lambda stage, done, of: progress(Progress(stage, done, of)),
        load=lambda: load(checkpoint, dtype=DTYPES[opened.dtype], device=opened.device),
    ) as activations:
        return CacheResult(
            source=model,
            folder=activations.folder,
            key=opened.fingerprint.key(),
            n=len(opened.encoded),
            unscored={item.idx: item.reason for item in opened.lost},
            n_bytes=opened.n_bytes,
        )


def _open(model: str, settings: CacheSettings) -> _Opened:
    device = resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    data = settings.data or default_data(model)
    spec = resolve(model, load_registry(settings.registry))
    examples = examples_for(data, exclude=settings.exclude, limit=settings.limit)
    checkpoint = open_checkpoint(spec)
    encoded, lost = encode_all(examples, checkpoint)
    sizes = sizes_on_disk(checkpoint, dtype)
    fitting = cache_batch_that_fits(sizes, encoded, parse_memory(settings.memory))
    batch_size = settings.batch_size or fitting
    fingerprint = fingerprint_of_run(
        checkpoint,
        encoded,
        positions=settings.positions,
        dtype=dtype,
        device=device,
        batch_size=batch_size,
    )
    n_bytes = cache_bytes(
        encoded, settings.positions, checkpoint.n_layers, checkpoint.d_model, dtype
    )
    return _Opened(checkpoint, encoded, lost, data, dtype, device, batch_size, fingerprint, n_bytes)
