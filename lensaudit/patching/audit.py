"""One audit: which models, in which order, and what comes out. Models are loaded in turn."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.activations.fill import (
    Positions,
    Progress,
    device_class,
    encoded_hash,
    fill,
    fingerprint_of_run,
)
from lensaudit.activations.store import Activations, ActivationStore
from lensaudit.data.examples import Example
from lensaudit.data.spans import Encoded, SpanLost
from lensaudit.models.bridge import DTYPES, TransformerBridge, load
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.patching.budget import batch_size_for, logit_rows_for
from lensaudit.patching.donors import CachedDonor, Donor, LiveDonor
from lensaudit.patching.options import PatchOptions
from lensaudit.patching.preflight import agrees_with_oracle, check_model, usable_decoder
from lensaudit.patching.scorebook import BookKey, ScoreBook
from lensaudit.patching.stages import Runner, all_layers, complete, deltas, ke_layers

Notice = Callable[[str], None]


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
    provenance: Mapping[str, object] = field(default_factory=dict)

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

    def book(self, donor: Checkpoint) -> ScoreBook:
        """The scores of one donor patched into `full`."""
        options = self.options
        key = BookKey(
            full=self.full.weights,
            donor=donor.weights,
            tokenizer=self.full.tokenizer,
            dtype=options.dtype,
            device_class=device_class(options.device),
            attention=options.attn,
            batch_policy=(
                "right-padded"
                if options.dtype == "float32"
                else f"right-padded-{options.batch_size or 'auto'}"
            ),
            scope=options.scope,
            component=options.component_name,
            last_layer=options.last_layer,
            engine=options.engine,
            measure=options.measure,
        )
        book = ScoreBook(self.root, key, donor.spec.name)
        return book.emptied() if self.fresh else book


@dataclass(frozen=True)
class Deltas:
    """S1 and S2 of the scored examples, nats per token; columns are the layers asked for."""

    baseline: Float[Tensor, " batch"]
    s1: Float[Tensor, "batch layer"]
    s2: Mapping[str, Float[Tensor, "batch layer"]]
    """By source name; NaN at layers that were not computed."""
    self_patch: Float[Tensor, "batch layer"]
    """`full` patched with itself: 0 where everything is right."""
    engine: str


def run(audit: Audit) -> Deltas:
    """Compute what no book holds yet, and read the rest.

    Raises:
        VerificationError: the preflight failed.
        WorkError: an activation or a score is not finite.
    """
    donors = audit.donors()
    books = {weights: audit.book(checkpoint) for weights, checkpoint in donors.items()}
    layers, encoded = audit.options.layers, audit.encoded
    s1_book = books[audit.retain.weights]
    if any(_incomplete(audit, books, weights) for weights in donors):
        _compute(audit, donors, books)
    return Deltas(
        baseline=torch.tensor([_baseline(s1_book, e) for e in encoded]),
        s1=deltas(s1_book, encoded, layers),
        s2={
            name: deltas(books[checkpoint.weights], encoded, layers)
            for name, checkpoint in audit.sources.items()
        },
        self_patch=deltas(books[audit.full.weights], encoded, layers),
        engine=audit.options.engine,
    )


def _baseline(book: ScoreBook, encoded: Encoded) -> float:
    entry = book.entry(encoded)
    assert entry is not None
    return entry.baseline


def _incomplete(audit: Audit, books: Mapping[str, ScoreBook], weights: str) -> bool:
    """Are rows of this donor still to be scored?"""
    s1, book = audit.retain.weights, books[weights]
    wanted = all_layers(audit.options.layers)
    if audit.options.profile == "ke" and weights != s1 and not _incomplete(audit, books, s1):
        wanted = ke_layers(books[s1], audit.options.layers, audit.options.tau)
    return any(book.entry(e) is None or book.missing(e, wanted(e, "")) for e in audit.encoded)


def _compute(
    audit: Audit, donors: Mapping[str, Checkpoint], books: Mapping[str, ScoreBook]
) -> None:
    options = audit.options
    with ExitStack() as opened:
        caches = _cached_sources(audit, donors, books, opened)
        full = loaded(audit, audit.full)
        check_model(full, audit.encoded[0], options.dtype)
        decoder = usable_decoder(full, options, audit.notice)
        clean = None
        if decoder is not None or options.component == "resid":
            activations = opened.enter_context(cached(audit, audit.full, "all", lambda: full))
            clean = CachedDonor(activations, "resid_post")
            caches[audit.full.weights] = CachedDonor(activations, options.last_layer)
        runner = Runner(full, clean, decoder, options, logit_rows_for(audit.full, options))
        runner = agrees_with_oracle(
            runner, audit.encoded[0], _self_donor(audit, caches, full), audit.notice
        )
        if options.component == "resid":
            _fill_books(audit, runner, caches, books)
            return
        for weights, checkpoint in donors.items():
            if _incomplete(audit, books, weights):
                model = full if weights == audit.full.weights else loaded(audit, checkpoint)
                donor = LiveDonor(model, options.component, checkpoint.spec.name)
                _fill_books(audit, runner, {weights: donor}, books)


def _self_donor(audit: Audit, caches: Mapping[str, CachedDonor], full: TransformerBridge):
    if audit.options.component != "resid":
        return LiveDonor(full, audit.options.component, audit.full.spec.name)
    return caches[audit.full.weights]


def _fill_books(
    audit: Audit, runner: Runner, donors: Mapping[str, Donor], books: Mapping[str, ScoreBook]
) -> None:
    """S1 first where S2 is wanted at KE layers only; else everything in one sweep."""
    options = audit.options
    n_sources = len(donors)
    size = options.batch_size or batch_size_for(audit.full, options, audit.encoded, n_sources)

    def fill_them(names: Sequence[str], wanted, what: str) -> None:
        chosen = {name: donors[name] for name in names if name in donors}
        complete(
            runner, audit.encoded, chosen, books, wanted,
            batch_size=size, what=what, progress=audit.progress,
        )  # fmt: skip

    every = all_layers(options.layers)
    if options.profile == "full" or options.component != "resid":
        fill_them(list(donors), every, "patching")
        return
    s1 = audit.retain.weights
    fill_them([s1], every, "patching S1")
    rest = [name for name in donors if name != s1]
    fill_them(rest, ke_layers(books[s1], options.layers, options.tau), "patching S2")


def _cached_sources(audit: Audit, donors, books, opened: ExitStack) -> dict[str, CachedDonor]:
    """Caches of the donors that still have rows to score; one model in memory at a time."""
    options = audit.options
    if options.component != "resid":
        return {}
    positions: Positions = "all" if options.scope == "prefix" else "span"
    caches = {}
    for weights, checkpoint in donors.items():
        if weights == audit.full.weights or not _incomplete(audit, books, weights):
            continue
        activations = cached(audit, checkpoint, positions, lambda c=checkpoint: loaded(audit, c))
        caches[weights] = CachedDonor(opened.enter_context(activations), options.last_layer)
    return caches


def cached(
    audit: Audit, checkpoint: Checkpoint, positions: Positions, model: Callable
) -> Activations:
    """A checkpoint's complete cache; `model` is called only if something is missing."""
    options = audit.options
    fingerprint = fingerprint_of_run(
        checkpoint, audit.encoded, positions=positions, dtype=options.dtype,
        device=options.device, attention=options.attn, batch_size=options.cache_batch,
    )  # fmt: skip
    return fill(
        ActivationStore(audit.root), fingerprint, audit.encoded, name=checkpoint.spec.name,
        load=model, batch_size=options.cache_batch, provenance=audit.provenance,
        progress=audit.progress,
    )  # fmt: skip


def loaded(audit: Audit, checkpoint: Checkpoint) -> TransformerBridge:
    """The model of a checkpoint, as the audit's options say."""
    options = audit.options
    return load(checkpoint, dtype=DTYPES[options.dtype], device=options.device, attn=options.attn)
