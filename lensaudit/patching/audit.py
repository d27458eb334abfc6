"""One audit: which models, on which examples, under which conditions, and what comes out."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from lensaudit.activations.fill import encoded_hash, fill, fingerprint_of_run, provenance_of
from lensaudit.activations.spec import Fingerprint
from lensaudit.activations.store import Activations, ActivationStore
from lensaudit.data.facts import Fact
from lensaudit.data.spans import Encoded, SpanLost
from lensaudit.models.bridge import DTYPES, TransformerBridge, load
from lensaudit.models.checkpoint import Checkpoint, misfit
from lensaudit.models.conditions import Conditions, Padding, conditions_of
from lensaudit.patching.books import Books
from lensaudit.patching.options import Engine, PatchOptions
from lensaudit.patching.score_cache import BookKey, ByToken, ScoreBook
from lensaudit.patching.sources import CachedSource
from lensaudit.progress import Notice, Tick
from lensaudit.settings import Kept, Positions


@dataclass(frozen=True)
class Chosen:
    """Which rows of which forget set are asked."""

    data: str
    exclude: tuple[str, ...] = ()
    limit: int | None = None


@dataclass(frozen=True)
class Audit:
    """The models, the examples and the settings of a run; all opened, none loaded."""

    full: Checkpoint
    retain: Checkpoint
    sources: Mapping[str, Checkpoint]
    """By the name the user gave."""
    encoded: tuple[Encoded, ...]
    lost: tuple[SpanLost, ...]
    options: PatchOptions
    root: Path
    """The activations folder."""
    spread: bool = False
    """Models that do not fit the device are brought block by block: `--device auto`."""
    examples: tuple[Fact, ...] = ()
    """The texts behind `encoded` and `lost`."""
    fresh: bool = False
    notice: Notice = field(default=print)
    progress: Tick | None = None
    emptied: set[Path] = field(default_factory=set, compare=False, repr=False)
    """Books that were begun anew with `fresh`: once a run, however often they are opened."""
    chosen: Chosen | None = None
    """Which rows of which set the examples are; None: they came from elsewhere."""

    @property
    def examples_hash(self) -> str:
        """Content hash of tokens and spans."""
        return encoded_hash(self.encoded)

    def misfit(self, source: Checkpoint) -> str | None:
        """Why its stream cannot be patched in as it is, but only through a map; None: it can."""
        return misfit(source, self.full)

    def patched_in(self) -> dict[str, Checkpoint]:
        """Retain (S1), full (calibration) and every source that fits, each set of weights once."""
        unique: dict[str, Checkpoint] = {}
        for checkpoint in (self.retain, self.full, *self.sources.values()):
            if self.misfit(checkpoint) is None:
                unique.setdefault(checkpoint.weights, checkpoint)
        return unique

    def conditions(self, model: Checkpoint, padding: Padding = "right-padded") -> Conditions:
        """Under which a model of this audit runs; `full` is padded on the left to generate."""
        options = self.options
        return conditions_of(
            model,
            dtype=options.dtype,
            device=options.device,
            padding=padding,
            batch_size=options.batch_size,
        )

    def fingerprint(
        self, checkpoint: Checkpoint, positions: Positions, part: Kept = "resid"
    ) -> Fingerprint:
        """Of the cache of a model on these examples."""
        options = self.options
        return fingerprint_of_run(
            checkpoint,
            self.encoded,
            positions=positions,
            dtype=options.dtype,
            device=options.device,
            batch_size=options.cache_batch,
            part=part,
        )

    def there(
        self, checkpoint: Checkpoint, positions: Positions, part: Kept = "resid"
    ) -> Activations | None:
        """The complete cache that serves, if there is one.

        What a run left of all positions of `full` serves where its span is wanted, and so do all
        positions of a component.
        """
        store = ActivationStore(self.root)
        wanted: list[Positions] = [positions]
        if positions == "span" and (part != "resid" or checkpoint.weights == self.full.weights):
            wanted = ["all", "span"]
        found = (store.open(self.fingerprint(checkpoint, one, part)) for one in wanted)
        return next((one for one in found if one is not None), None)

    def book(self, source: Checkpoint, *, engine: Engine | None = None) -> ScoreBook:
        """The scores of one source patched into `full`, by the engine of the options or another."""
        options = self.options
        key = BookKey(
            **vars(self.conditions(self.full)),
            source=source.weights,
            scope=options.scope,
            component=options.component_name,
            last_layer=options.last_layer,
            engine=engine or options.engine,
            measure=options.measure,
        )
        return self.begun(ScoreBook(self.root, key, source.spec.name, self.told))

    def begun(self, book: ScoreBook) -> ScoreBook:
        """The book; with `fresh` without what was in it before this run."""
        if not self.fresh or book.path in self.emptied:
            return book
        self.emptied.add(book.path)
        return book.emptied()

    @property
    def told(self) -> Notice | None:
        """Told what a book lacks; with `fresh` nobody is."""
        return None if self.fresh else self.notice

    def books(self, engine: Engine) -> Books:
        """The books of every source, filled by `engine`."""
        return Books(
            engine,
            {
                weights: self.book(checkpoint, engine=engine)
                for weights, checkpoint in self.patched_in().items()
            },
            self.retain.weights,
            self.encoded,
            self.options,
        )


@dataclass(frozen=True)
class Deltas:
    """S1 and S2 of the scored examples, nats per token; columns are the layers asked for."""

    baseline: Float[Tensor, " batch"]
    s1: Float[Tensor, "batch layer"]
    s2: Mapping[str, Float[Tensor, "batch layer"]]
    """By source name; NaN at layers that were not computed, all of a stream that does not fit."""
    self_patch: Float[Tensor, "batch layer"]
    """`full` patched with itself: 0 where everything is right."""
    engine: Engine
    """What computed them: the one asked for, or the oracle where the sweep may not be used."""
    computed_by: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Source name -> versions -> how many of its scores, S1 and S2, they computed."""
    by_token: Mapping[str, Sequence[ByToken | None]] = field(default_factory=dict)
    """Source name -> what was read of it by example, layer and token, where streams were read."""


def cached_sources(
    audit: Audit,
    books: Books,
    opened: ExitStack,
    model: Callable[[Checkpoint], TransformerBridge],
    *,
    there: Collection[str] = (),
) -> dict[str, CachedSource]:
    """Caches of the sources that still have rows to score; `model` loads one, if it must run."""
    options, patched_in = audit.options, audit.patched_in()
    positions = options.positions_needed(of_full=False)
    if positions is None:
        return {}
    caches = {}
    for weights in books.incomplete():
        if weights == audit.full.weights or weights in there:
            continue
        checkpoint = patched_in[weights]
        activations = cached(audit, checkpoint, positions, lambda c=checkpoint: model(c))
        caches[weights] = CachedSource(opened.enter_context(activations), options.last_layer)
    return caches


def cached(
    audit: Audit,
    checkpoint: Checkpoint,
    positions: Positions,
    model: Callable,
    *,
    name: str | None = None,
) -> Activations:
    """A checkpoint's complete cache; `model` is called only if something is missing.

    `name` is what a new cache is listed as; None: the model's.
    """
    found = audit.there(checkpoint, positions)
    if found is not None:
        return found
    return fill(
        ActivationStore(audit.root),
        audit.fingerprint(checkpoint, positions),
        audit.encoded,
        name=name or checkpoint.spec.name,
        load=model,
        batch_size=audit.options.cache_batch,
        provenance=_provenance(audit, checkpoint),
        progress=audit.progress,
    )


def _provenance(audit: Audit, checkpoint: Checkpoint) -> dict[str, Any]:
    if audit.chosen is None:
        return {"model": checkpoint.spec.name}
    return provenance_of(
        checkpoint.spec,
        **vars(audit.chosen),
        batch_size=audit.options.cache_batch,
        memory_bytes=audit.options.memory_bytes,
    )


def loaded(audit: Audit, checkpoint: Checkpoint) -> TransformerBridge:
    """The model of a checkpoint, as the audit's options say."""
    options = audit.options
    spread = options.memory_bytes if audit.spread else None
    return load(checkpoint, dtype=DTYPES[options.dtype], device=options.device, spread=spread)
