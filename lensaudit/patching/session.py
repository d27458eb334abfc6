"""One session: the models of a run, opened once, with their caches and the scores kept of them."""

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.activations.fill import encoded_hash, fill, fingerprint_of_run, provenance_of
from lensaudit.activations.removal import remove
from lensaudit.activations.spec import KEPT_AS, Fingerprint
from lensaudit.activations.store import Activations, CacheStore
from lensaudit.data.facts import Fact
from lensaudit.data.spans import Encoded, Tokenizer, buckets, encoded_row, make_batch
from lensaudit.errors import TryAgainError
from lensaudit.models.bridge import (
    DTYPES,
    TransformerBridge,
    device_of,
    load,
    logits_of,
    n_bytes,
    opened_models,
    unembedded,
)
from lensaudit.models.checkpoint import Checkpoint, config_of, load_tokenizer
from lensaudit.models.conditions import Conditions, Padding, conditions_of
from lensaudit.models.large.placement import NoRoomError
from lensaudit.models.likeness import misfit, same_tokenizer
from lensaudit.models.sizes import context_of, sizes_on_disk
from lensaudit.patching.alignment import TokenMatch, token_match
from lensaudit.patching.budget import MemoryBudget
from lensaudit.patching.options import Engine, ResolvedSettings
from lensaudit.patching.preflight import check_component, check_model, usable_decoder
from lensaudit.patching.score_cache import (
    SCORE_ALGORITHM,
    KeptByContent,
    OwnAnswerCache,
    ScoreCache,
    example_hash,
    score_key,
)
from lensaudit.patching.sources import CachedSource
from lensaudit.patching.stages import Runner, Wanted, complete, ke_layers
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.scores.depth import label_hit, label_logprob, mean_per_example
from lensaudit.settings import Kept, Positions
from lensaudit.text import canonical_json, digest

ANSWER_BATCH = 16
HELD_PART = 8
"""Models beside `full` stay in memory while they are below this part of `memory`."""


AnyKept = TypeVar("AnyKept", bound=KeptByContent)


@dataclass(eq=False)
class Session(AbstractContextManager):
    """The models, the rows and the settings of a run; nothing is loaded before it is needed.

    As a context manager it lets go of models and caches at the end, and can be used again.
    """

    full: Checkpoint
    retain: Checkpoint
    sources: Mapping[str, Checkpoint]
    """By the name the user gave."""
    encoded: tuple[Encoded, ...]
    unscored: dict[int, str]
    """Why the tokenizer lost the span of an example, by idx."""
    settings: ResolvedSettings
    """`data` is named where the examples are those of a set."""
    examples: tuple[Fact, ...] = ()
    """The facts behind `encoded` and `unscored`."""
    retains: Mapping[str, Checkpoint] = field(default_factory=dict)
    """Further models that never saw the facts, by name."""
    notice: Notice = print
    progress: Tell = unheard

    def __post_init__(self) -> None:
        # shared with the same session under other settings
        self._files = ExitStack()
        self._models: dict[str, TransformerBridge] = {}
        self._runners: dict[str, Runner] = {}
        self._caches: dict[tuple[str, str, str, tuple[Encoded, ...]], Activations] = {}
        self._kept: dict[tuple[str, str, bool], Any] = {}
        self._matches: dict[tuple[str, tuple[Encoded, ...]], TokenMatch] = {}
        self._earlier: dict[Path, int] = {}
        """Lines of a score cache that a fresh run does not read."""
        facts = {one.idx: one for one in self.examples}
        self._texts = {e: facts[e.idx] for e in self.encoded if e.idx in facts}

    def __exit__(self, *error: object) -> None:
        self._files.close()
        for (*_, fresh), one in self._kept.items():
            if fresh and error[0] is None:  # what a run that broke did not compute again stays
                self._earlier[one.path] = one.supersede(self._earlier[one.path])
        for held in (self._models, self._runners, self._caches, self._kept):
            held.clear()

    @property
    def never(self) -> tuple[Checkpoint, ...]:
        """The models that never saw the facts; none where no such model was named."""
        return () if self.settings.without_retain else (self.retain, *self.retains.values())

    @property
    def root(self) -> Path:
        """The activations folder."""
        return Path(self.settings.activations)

    @property
    def examples_hash(self) -> str:
        """Content hash of tokens and spans."""
        return encoded_hash(self.encoded)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of `full`."""
        return load_tokenizer(self.full)

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
        """Under which a model of this session runs; `full` is padded on the left to generate."""
        return conditions_of(
            model,
            dtype=self.settings.dtype,
            device=self.settings.device,
            padding=padding,
            batch_size=self.settings.batch_size,
        )

    def under(self, **settings: Any) -> "Session":
        """The same session with other settings: models, caches and scores are shared."""
        other = copy(self)
        other.settings = replace(self.settings, **settings)
        return other

    def apart(self, **settings: Any) -> "Session":
        """A session with other settings, and with models and caches of its own, soon let go."""
        other = self.under(**settings)
        other._models, other._caches = {}, {}
        return other

    def use(self, engine: Engine) -> None:
        """Switch the engine, e.g. to the oracle where the sweep is not verified."""
        self.settings = replace(self.settings, engine=engine)

    @property
    def _how(self) -> str:
        """What decides a runner: no path and no list of a caller's is in it."""
        return canonical_json(self.settings.document())

    def model(self, checkpoint: Checkpoint) -> TransformerBridge:
        """A model in memory: `full` stays; the others as long as they are small beside `memory`.

        Raises:
            TryAgainError: what ran before left too little for it.
        """
        if checkpoint.weights not in self._models:
            is_first = not (self._models or opened_models())
            self._make_room(checkpoint)
            try:
                self._models[checkpoint.weights] = load(
                    checkpoint,
                    dtype=DTYPES[self.settings.dtype],
                    device=self.settings.device,
                    spread=self.settings.memory_bytes if self.settings.spread else None,
                )
            except NoRoomError as error:
                if is_first:
                    raise
                raise TryAgainError(
                    f"{error}; models that ran before left less: what was computed is kept, run it "
                    "again"
                ) from error
        return self._models[checkpoint.weights]

    def _make_room(self, checkpoint: Checkpoint) -> None:
        """Let all models go but `full` and this one, unless they are small beside `memory`."""
        opened = opened_models()
        sizes = {key: n_bytes(one) for (key, *_), one in opened.items()}
        sizes |= {key: n_bytes(one) for key, one in self._models.items()}
        others = sizes.keys() - {self.full.weights, checkpoint.weights}
        if sum(sizes[key] for key in others) <= self.settings.memory_bytes // HELD_PART:
            return
        for key in others:
            self._models.pop(key, None)
        for key in [one for one in opened if one[0] in others]:
            del opened[key]
        gc.collect()  # a bridge holds itself until then

    def budget(self, *, sweeps: bool) -> MemoryBudget:
        """Bytes that batches of `full` take, by the sweep or by one pass per layer."""
        return MemoryBudget(sizes_on_disk(self.full, self.settings.dtype), self.settings, sweeps)

    def runner(self, rows: Sequence[Encoded]) -> Runner:
        """What computes scores of these rows; `full` is loaded and checked once."""
        settings, how, reads = self.settings, self._how, self.settings.score == "lens"
        if how not in self._runners:
            full = self.model(self.full)
            check_model(full, rows[0], settings.dtype)
            check_component(full, rows[0], settings)
            decoder = None if reads else usable_decoder(full, settings, self.notice)
            budget = self.budget(sweeps=reads or decoder is not None)
            self._runners[how] = Runner(full, None, decoder, settings, budget)
        runner = self._runners[how]
        if not runner.budget.sweeps:
            return runner
        return replace(
            runner, clean=CachedSource(self.cache(self.full, rows, "span" if reads else "all"))
        )

    def encode(self, rows: Sequence[Fact]) -> tuple[Encoded, ...]:
        """Tokens and spans; rows of which nothing can be scored are dropped, and counted."""
        # a source of another tokenizer has rows of its own: `token_match`
        least = min(
            (
                context_of(config_of(one))
                for one in (self.full, *self.never, *self.sources.values())
                if same_tokenizer(one, self.full)
            ),
            key=lambda one: one.n_pos or float("inf"),
        )
        told = [(row, encoded_row(row, self.tokenizer, least.too_long)) for row in rows]
        if lost := [why for _, why in told if isinstance(why, str)]:
            self.notice(f"{len(lost)} of {len(rows)} neutral rows left out: {lost[0]} …")
        found = {e: row for row, e in told if isinstance(e, Encoded)}
        self._texts |= found
        return tuple(found)

    def token_match(self, source: Checkpoint, rows: Sequence[Encoded]) -> TokenMatch:
        """Rows in the tokens of a source."""
        if same_tokenizer(source, self.full):
            return TokenMatch(tuple(rows), None, {})
        key, matches = (source.weights, tuple(rows)), self._matches
        if key not in matches:
            own, texts = load_tokenizer(source), self._texts.__getitem__
            matches[key] = token_match(
                *(rows, texts, self.tokenizer, own, self.settings.scope),
                context_of(config_of(source)).too_long,
            )
        return matches[key]

    def fingerprint(
        self,
        checkpoint: Checkpoint,
        rows: Sequence[Encoded],
        positions: Positions,
        part: Kept = "resid",
    ) -> Fingerprint:
        """Fingerprint of a model's cache on these rows."""
        return fingerprint_of_run(
            checkpoint,
            rows,
            positions=positions,
            dtype=self.settings.dtype,
            device=self.settings.device,
            batch_size=self.settings.cache_batch,
            part=part,
        )

    def there(
        self,
        checkpoint: Checkpoint,
        rows: Sequence[Encoded],
        positions: Positions,
        part: Kept = "resid",
    ) -> Activations | None:
        """The complete cache that serves, if there is one.

        What a run left of all positions of `full` serves where its span is wanted, and so do all
        positions of a component.
        """
        store = CacheStore(self.root)
        wanted: list[Positions] = [positions]
        if positions == "span" and (part != "resid" or checkpoint.weights == self.full.weights):
            wanted = ["all", "span"]
        found = (store.open(self.fingerprint(checkpoint, rows, one, part)) for one in wanted)
        return next((one for one in found if one is not None), None)

    def cache(
        self,
        checkpoint: Checkpoint,
        rows: Sequence[Encoded],
        positions: Positions,
        part: Kept = "resid",
    ) -> Activations:
        """Cached activations of these rows; the model is loaded only if some are missing.

        A cache of other rows than the session's is listed as neutral: the model's name means the
        session's. It stays open as long as the session.
        """
        key, caches = (checkpoint.weights, positions, part, tuple(rows)), self._caches
        if key not in caches:
            there = self.there(checkpoint, rows, positions, part)
            found = self.filled(checkpoint, rows, positions, part) if there is None else there
            caches[key] = self._files.enter_context(found)
        return caches[key]

    @contextmanager
    def passing(self, checkpoint: Checkpoint, rows: Sequence[Encoded]) -> Iterator[Activations]:
        """All positions of rows that are read once: the cache is gone afterwards, but `full`'s."""
        if checkpoint.weights == self.full.weights:
            yield self.cache(checkpoint, rows, "all")
            return
        with self.filled(checkpoint, rows, "all") as found:
            yield found
        remove(found.folder)

    def filled(
        self,
        checkpoint: Checkpoint,
        rows: Sequence[Encoded],
        positions: Positions,
        part: Kept = "resid",
    ) -> Activations:
        """The complete cache of these very positions; the model is loaded only if it must run."""
        name, provenance = checkpoint.spec.name, {"model": checkpoint.spec.name}
        if tuple(rows) != self.encoded:
            name = f"{name} neutral"
        elif self.settings.data is not None:
            provenance = provenance_of(
                checkpoint.spec,
                str(self.settings.data),
                exclude=self.settings.exclude,
                limit=self.settings.limit,
                batch_size=self.settings.cache_batch,
                memory_bytes=self.settings.memory_bytes,
            )
        return fill(
            CacheStore(self.root),
            self.fingerprint(checkpoint, rows, positions, part),
            rows,
            name=name,
            load=lambda: self.model(checkpoint),
            batch_size=self.settings.cache_batch,
            provenance=provenance,
            progress=self.progress,
            notice=self.notice,
        )

    def streams(self, checkpoint: Checkpoint, rows: Sequence[Encoded]) -> CachedSource:
        """A model as a source on these rows; one of other tokens at all positions of its own."""
        match, positions = self.read_of(checkpoint, rows)
        return CachedSource(self.cache(checkpoint, match.rows, positions), self.settings.last_layer)

    def read_of(
        self, checkpoint: Checkpoint, rows: Sequence[Encoded]
    ) -> tuple[TokenMatch, Positions]:
        """Rows in the tokens of a source, and the positions of its stream that are read."""
        match, of_full = self.token_match(checkpoint, rows), checkpoint.weights == self.full.weights
        own = self.settings.positions_needed(of_full=of_full) or "span"
        return match, own if match.places is None else "all"

    def source(self, checkpoint: Checkpoint) -> CachedSource:
        """The donor's streams, or a component, on the session's rows."""
        settings = self.settings
        if settings.part == "resid":
            return self.streams(checkpoint, self.encoded)
        part, sizes = KEPT_AS[settings.part], sizes_on_disk(self.full, settings.dtype)
        kept = self.cache(checkpoint, self.encoded, settings.positions_replaced, part)
        return CachedSource(kept, n_heads=sizes.n_heads if part == "heads" else 0)

    def kept(self, kind: type[AnyKept], key: Mapping[str, Any], name: str) -> AnyKept:
        """What is kept under this key, read once; with `fresh` without what earlier runs left.

        That stays on disk until what replaces it is there.
        """
        fresh = self.settings.fresh
        place = kind.kind, digest(key), fresh
        if place not in self._kept:
            found = self._kept[place] = kind(self.root, key, name, None if fresh else self.notice)
            if fresh:
                found.forget(self._earlier.setdefault(found.path, len(found.ledger.rows)))
        return self._kept[place]

    def scores(self, source: str) -> ScoreCache:
        """Scores of `full` with a source patched in, by the engine of the settings.

        Args:
            source: key of the donor: its weights' hash, with a map or other rows where it has any.
        """
        settings, named = self.settings, self.patched_in().get(source)
        key = score_key(self.conditions(self.full), source, settings)
        return self.kept(ScoreCache, key, named.spec.name if named else "control")

    def wanted(self) -> Wanted:
        """The layers whose score is wanted of a source: KE layers only, where S1 is known."""
        settings, s1 = self.settings, self.scores(self.retain.weights)
        layers, retain, tau = settings.at_layers, self.retain.weights, settings.tau
        if settings.profile == "full" or any(s1.lacks(e, layers) for e in self.encoded):
            return lambda e, source: layers
        return lambda e, source: layers if source == retain else ke_layers(s1, e, layers, tau)

    def incomplete(self) -> list[str]:
        """Weights of the sources with rows still to be scored."""
        wanted = self.wanted()
        return [
            one
            for one in self.patched_in()
            if any(self.scores(one).lacks(e, wanted(e, one)) for e in self.encoded)
        ]

    def fill(
        self,
        rows: Sequence[Encoded],
        streams: Mapping[str, CachedSource],
        layers: Sequence[int] | Wanted,
        *,
        only: Mapping[str, Collection[int]] | None = None,
        what: str = "patching rows for controls",
    ) -> None:
        """Compute what is not known of some sources, all in one sweep.

        Args:
            rows: of which `full` is cached.
            streams: by what decides what they hand over; as of `scores`.
            layers: patched one at a time; those of each row and source where they differ.
            only: source -> idx of the rows wanted of it; None: all.
            what: is going on, for whoever is told.
        """
        caches = {name: self.scores(name) for name in streams}

        def wanted(e: Encoded, name: str) -> Sequence[int]:
            if only is not None and e.idx not in only[name]:
                return ()
            return layers(e, name) if callable(layers) else layers

        pairs = [(e, n) for n in streams for e in rows if only is None or e.idx in only[n]]
        if any(caches[name].lacks(e, wanted(e, name)) for e, name in pairs):
            complete(
                self.runner(rows), rows, streams, caches, wanted, what=what, progress=self.progress
            )

    def read(
        self, source: str, rows: Sequence[Encoded], layers: Sequence[int]
    ) -> Float[Tensor, "batch layer"]:
        """Drop of the span's log-prob of `full`, nats per token; NaN where nothing was filled."""
        return self.scores(source).deltas(rows, layers)

    def answers(
        self, checkpoint: Checkpoint, rows: Sequence[Encoded]
    ) -> tuple[Float[Tensor, " batch"], Bool[Tensor, " batch"]]:
        """What a model says of its own accord, teacher-forced; kept by content.

        Log-prob of each span, nats per token, and whether all of its tokens are the model's first
        choice. Where the model's cache of these rows is there, they are read out of its last
        stream; elsewhere it runs.
        """
        conditions = replace(self.conditions(self.full), weights=checkpoint.weights).document()
        key = {**conditions, "algorithm": SCORE_ALGORITHM}
        kept = self.kept(OwnAnswerCache, key, checkpoint.spec.name)
        if todo := [e for e in rows if example_hash(e) not in kept.known]:
            with ExitStack() as opened:
                cache = self._cache_there(checkpoint, rows, opened)
                for bucket in buckets(todo, ANSWER_BATCH):
                    kept.add(bucket, *own_answers(self.model(checkpoint), bucket, cache))
        own = [kept.known[example_hash(e)] for e in rows]
        return (
            torch.tensor([logprob for logprob, _ in own], dtype=torch.float32),
            torch.tensor([exact for _, exact in own], dtype=torch.bool),
        )

    def _cache_there(
        self, checkpoint: Checkpoint, rows: Sequence[Encoded], opened: ExitStack
    ) -> Activations | None:
        """The model's cache of these rows, if there is one: it stays as it is."""
        held = (
            self._caches.get((checkpoint.weights, p, "resid", tuple(rows))) for p in ("span", "all")
        )
        if (cache := next(filter(None, held), None)) is not None:
            return cache
        found = self.there(checkpoint, rows, "span")
        return None if found is None else opened.enter_context(found)


def own_answers(
    model: TransformerBridge, bucket: Sequence[Encoded], cache: Activations | None = None
) -> tuple[list[float], list[float]]:
    """Log-prob of the spans, nats per token, and the share of their tokens that come first.

    Read of what the model's last layer wrote when it ran, where its cache is given; else it runs.
    """
    batch = make_batch(bucket).to(device_of(model))
    example, position = batch.predict_at.nonzero(as_tuple=True)
    if cache is None:
        logits = logits_of(model, batch.tokens)[example, position]
    else:
        at = [(e.idx, torch.arange(e.start, e.end)) for e in bucket]
        streams = torch.cat([cache.example(idx).at(places).resid[-1] for idx, places in at])
        logits = unembedded(model, streams.unsqueeze(0).to(example.device))[0]
    labels = batch.tokens[example, position + 1]
    scores = (score(logits, labels) for score in (label_logprob, label_hit))
    logprob, hits = (mean_per_example(one, example, len(bucket)).tolist() for one in scores)
    return logprob, hits
