"""One audit: which models, in which order, and what comes out. Models are loaded in turn."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.activations.fill import (
    Progress,
    encoded_hash,
    fill,
    fingerprint_of_run,
    provenance_of,
)
from lensaudit.activations.fingerprint import Fingerprint
from lensaudit.activations.store import Activations, ActivationStore
from lensaudit.data.examples import Example
from lensaudit.data.spans import Encoded, SpanLost
from lensaudit.models.bridge import DTYPES, TransformerBridge, load
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.conditions import Conditions, Padding, conditions_of
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.patching.books import Books
from lensaudit.patching.budget import Room
from lensaudit.patching.donors import CachedDonor, Donor, LiveDonor
from lensaudit.patching.options import Engine, PatchOptions
from lensaudit.patching.preflight import (
    agrees_with_oracle,
    check_model,
    planned_engine,
    usable_decoder,
)
from lensaudit.patching.scorebook import BookKey, ScoreBook
from lensaudit.patching.stages import Runner, baselines, complete, deltas
from lensaudit.settings import Positions

Notice = Callable[[str], None]


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
    examples: tuple[Example, ...] = ()
    """The texts behind `encoded` and `lost`."""
    fresh: bool = False
    notice: Notice = field(default=print)
    progress: Progress | None = None
    chosen: Chosen | None = None
    """Which rows of which set the examples are; None: they came from elsewhere."""

    @property
    def examples_hash(self) -> str:
        """Content hash of tokens and spans."""
        return encoded_hash(self.encoded)

    def donors(self) -> dict[str, Checkpoint]:
        """Retain (S1), full (calibration) and every source, each set of weights once."""
        unique: dict[str, Checkpoint] = {}
        for checkpoint in (self.retain, self.full, *self.sources.values()):
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

    def fingerprint(self, checkpoint: Checkpoint, positions: Positions) -> Fingerprint:
        """Of the cache of a model on these examples."""
        options = self.options
        return fingerprint_of_run(
            checkpoint,
            self.encoded,
            positions=positions,
            dtype=options.dtype,
            device=options.device,
            batch_size=options.cache_batch,
        )

    def there(self, checkpoint: Checkpoint, positions: Positions) -> Activations | None:
        """The complete cache that serves, if there is one.

        What a run left of all positions of `full` serves where its span is wanted.
        """
        store = ActivationStore(self.root)
        wanted: list[Positions] = [positions]
        if positions == "span" and checkpoint.weights == self.full.weights:
            wanted = ["all", "span"]
        found = (store.open(self.fingerprint(checkpoint, one)) for one in wanted)
        return next((one for one in found if one is not None), None)

    def book(self, donor: Checkpoint, *, engine: Engine | None = None) -> ScoreBook:
        """The scores of one donor patched into `full`, by the engine of the options or another."""
        options = self.options
        key = BookKey(
            **vars(self.conditions(self.full)),
            donor=donor.weights,
            scope=options.scope,
            component=options.component_name,
            last_layer=options.last_layer,
            engine=engine or options.engine,
            measure=options.measure,
        )
        book = ScoreBook(self.root, key, donor.spec.name, None if self.fresh else self.notice)
        return book.emptied() if self.fresh else book

    def books(self, engine: Engine) -> Books:
        """The books of every donor, filled by `engine`."""
        return Books(
            engine,
            {
                weights: self.book(checkpoint, engine=engine)
                for weights, checkpoint in self.donors().items()
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
    """By source name; NaN at layers that were not computed."""
    self_patch: Float[Tensor, "batch layer"]
    """`full` patched with itself: 0 where everything is right."""
    engine: Engine
    """What computed them: the one asked for, or the oracle where the sweep may not be used."""


def run(audit: Audit) -> Deltas:
    """Compute what no book holds yet, and read the rest.

    Raises:
        VerificationError: the preflight failed.
        WorkError: an activation or a score is not finite.
    """
    books = audit.books(planned_engine(audit.full.architecture, audit.options, audit.notice))
    if books.incomplete():
        books = _compute(audit, books)
    layers, encoded = audit.options.layers, audit.encoded
    s1 = deltas(books.by_weights[audit.retain.weights], encoded, layers)

    def s2(donor: Checkpoint) -> Float[Tensor, "batch layer"]:
        found = deltas(books.by_weights[donor.weights], encoded, layers)
        # rows that another run left in the book are not part of this one
        return found if audit.options.profile == "full" else found.where(s1 > tau, torch.nan)

    tau = audit.options.tau
    return Deltas(
        baseline=baselines(books.by_weights[audit.retain.weights], encoded),
        s1=s1,
        s2={name: s2(checkpoint) for name, checkpoint in audit.sources.items()},
        self_patch=s2(audit.full),
        engine=books.engine,
    )


def _compute(audit: Audit, books: Books) -> Books:
    """Fill the books; those of the oracle, if the sweep turns out not to be usable."""
    options = audit.options
    room = Room(sizes_on_disk(audit.full, options.dtype), options, books.engine == "sweep")
    room.check(audit.encoded, n_donors=len(books.incomplete()))
    with ExitStack() as opened:
        caches = cached_sources(audit, books, opened)
        full = loaded(audit, audit.full)
        check_model(full, audit.encoded[0], options.dtype)
        decoder = usable_decoder(full, options, audit.notice) if room.sweeps else None
        clean = None
        engine: Engine = "oracle" if decoder is None else "sweep"
        if positions := replace(options, engine=engine).positions_needed(of_full=True):
            activations = opened.enter_context(cached(audit, audit.full, positions, lambda: full))
            clean = CachedDonor(activations, "resid_post")
            caches[audit.full.weights] = CachedDonor(activations, options.last_layer)
        runner = Runner(full, clean, decoder, options, replace(room, sweeps=decoder is not None))
        runner = agrees_with_oracle(
            runner, audit.encoded, _self_donor(audit, caches, full), audit.notice
        )
        if runner.engine != books.engine:
            books = audit.books(runner.engine)
            runner.room.check(audit.encoded, n_donors=len(books.incomplete()))
            caches |= cached_sources(audit, books, opened, there=caches)
        if options.component == "resid":
            _fill_books(audit, runner, caches, books)
        else:
            _fill_live(audit, runner, books)
    return books


def _self_donor(audit: Audit, caches: Mapping[str, CachedDonor], full: TransformerBridge) -> Donor:
    if audit.options.component != "resid":
        return LiveDonor(full, audit.options.component, audit.full.spec.name)
    return caches[audit.full.weights]


def _fill_live(audit: Audit, runner: Runner, books: Books) -> None:
    """Components are not cached: one source at a time runs beside `full`."""
    donors = audit.donors()
    for weights in books.incomplete():
        checkpoint = donors[weights]
        model = runner.full if weights == audit.full.weights else loaded(audit, checkpoint)
        donor = LiveDonor(model, audit.options.component, checkpoint.spec.name)
        _fill_books(audit, runner, {weights: donor}, books)


def _fill_books(audit: Audit, runner: Runner, donors: Mapping[str, Donor], books: Books) -> None:
    """S1 first where S2 is wanted at KE layers only; else everything in one sweep."""

    def fill_them(names: Sequence[str], what: str) -> None:
        chosen = {name: donors[name] for name in names if name in donors}
        if chosen:
            complete(
                runner,
                audit.encoded,
                chosen,
                books.by_weights,
                books.wanted(names[0]),
                what=what,
                progress=audit.progress,
            )

    if audit.options.profile == "full":
        fill_them(list(donors), "patching")
        return
    fill_them([books.s1], "patching S1")
    fill_them([name for name in donors if name != books.s1], "patching S2")


def cached_sources(
    audit: Audit, books: Books, opened: ExitStack, *, there: Collection[str] = ()
) -> dict[str, CachedDonor]:
    """Caches of the donors that still have rows to score; one model in memory at a time."""
    options, donors = audit.options, audit.donors()
    positions = options.positions_needed(of_full=False)
    if positions is None:
        return {}
    caches = {}
    for weights in books.incomplete():
        if weights == audit.full.weights or weights in there:
            continue
        checkpoint = donors[weights]
        activations = cached(audit, checkpoint, positions, lambda c=checkpoint: loaded(audit, c))
        caches[weights] = CachedDonor(opened.enter_context(activations), options.last_layer)
    return caches


def cached(
    audit: Audit, checkpoint: Checkpoint, positions: Positions, model: Callable
) -> Activations:
    """A checkpoint's complete cache; `model` is called only if something is missing."""
    found = audit.there(checkpoint, positions)
    if found is not None:
        return found
    return fill(
        ActivationStore(audit.root),
        audit.fingerprint(checkpoint, positions),
        audit.encoded,
        name=checkpoint.spec.name,
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
    return load(checkpoint, dtype=DTYPES[options.dtype], device=options.device)
