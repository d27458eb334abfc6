"""One session: the models of a run, opened once, with their caches and the scores kept of them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.activations.fill import encoded_hash, fill, fingerprint_of_run, provenance_of
from lensaudit.activations.gc import remove
from lensaudit.activations.spec import Fingerprint, kept_as
from lensaudit.activations.store import Activations, ActivationStore
from lensaudit.data.facts import Fact
from lensaudit.data.spans import Encoded, buckets, encoded_row, make_batch
from lensaudit.models.bridge import (
    DTYPES,
    TransformerBridge,
    device_of,
    load,
    logits_of,
    n_bytes,
    unembedded,
)
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, misfit
from lensaudit.models.conditions import Conditions, Padding, conditions_of
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.patching.alignment import TokenMatch, token_match
from lensaudit.patching.budget import Room
from lensaudit.patching.options import Engine, PatchOptions
from lensaudit.patching.preflight import check_component, check_model, usable_decoder
from lensaudit.patching.score_cache import (
    KeptByContent,
    OwnAnswerCache,
    OwnAnswerKey,
    ScoreCache,
    ScoreKey,
    example_hash,
)
from lensaudit.patching.settings import PatchSettings
from lensaudit.patching.sources import CachedComponent, CachedSource, LiveSource, SourceStreams
from lensaudit.patching.stages import Runner, Wanted, complete, deltas, ke_layers
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.scores.depth import label_logprob, mean_per_example, span_logprob, span_mean
from lensaudit.scores.erasure import label_hit
from lensaudit.settings import Kept, Positions

ANSWER_BATCH = 16
HELD_PART = 8
"""Models beside `full` stay in memory while they are below this part of `memory`."""


AnyKept = TypeVar("AnyKept", bound=KeptByContent)


@dataclass(frozen=True)
class OwnAnswers:
    """What a model says of its own accord, teacher-forced."""

    logprob: Float[Tensor, " batch"]
    """Of the span, nats per token."""
    exact: Bool[Tensor, " batch"]
    """Every token of the span is the model's first choice."""


@dataclass
class _InMemory:
    """What a session holds: dropped when it is closed, but for what was begun anew."""

    files: ExitStack = field(default_factory=ExitStack)
    models: dict[str, TransformerBridge] = field(default_factory=dict)
    runners: dict[PatchOptions, Runner] = field(default_factory=dict)
    caches: dict[tuple[str, str, tuple[Encoded, ...]], Activations] = field(default_factory=dict)
    kept: dict[Conditions, Any] = field(default_factory=dict)
    """Scores, texts and answers by their keys."""
    matches: dict[tuple[str, tuple[Encoded, ...]], TokenMatch] = field(default_factory=dict)
    texts: dict[Encoded, Fact] = field(default_factory=dict)
    emptied: set[Path] = field(default_factory=set)
    """Score caches begun anew with `fresh`: once a run, however often they are opened."""

    def close(self) -> None:
        self.files.close()
        for held in (self.models, self.runners, self.caches, self.kept):
            held.clear()


@dataclass(eq=False)
class Session:
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
    options: PatchOptions
    root: Path
    """The activations folder."""
    spread: bool = False
    """Models that do not fit the device are brought block by block: `--device auto`."""
    examples: tuple[Fact, ...] = ()
    """The facts behind `encoded` and `unscored`."""
    fresh: bool = False
    notice: Notice = print
    progress: Tell = unheard
    settings: PatchSettings = PatchSettings()  # noqa: RUF009  # it is frozen
    """As the run was asked for; `data` is named where the examples are those of a set."""
    _held: _InMemory = field(default_factory=_InMemory, repr=False, init=False)

    def __post_init__(self) -> None:
        facts = {one.idx: one for one in self.examples}
        self._held.texts |= {e: facts[e.idx] for e in self.encoded if e.idx in facts}

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

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
        """Under which a model of this session runs; `full` is padded on the left to generate."""
        options = self.options
        return conditions_of(
            model,
            dtype=options.dtype,
            device=options.device,
            padding=padding,
            batch_size=options.batch_size,
        )

    def tick(self, stage: str, done: int, of: int) -> None:
        """Tell how far a stage is."""
        self.progress(Progress(stage, done, of))

    def under(self, **options: Any) -> "Session":
        """The same session with other options: models, caches and scores are shared."""
        other = copy(self)
        other.options = replace(self.options, **options)
        return other

    def use(self, engine: Engine) -> None:
        """From now on by this engine: what the architecture or a check allows."""
        runner = self._held.runners.get(self.options)
        self.options = replace(self.options, engine=engine)
        if runner is not None and engine == "oracle":
            self._held.runners[self.options] = runner.by_oracle()

    def model(self, checkpoint: Checkpoint) -> TransformerBridge:
        """A model in memory: `full` stays; the others as long as they are small beside `memory`."""
        models = self._held.models
        if checkpoint.weights not in models:
            others = [key for key in models if key != self.full.weights]
            held = sum(n_bytes(models[key]) for key in others)
            # beside `full` one other is held in any case, whichever of the two is loaded first
            second = checkpoint.weights != self.full.weights or self.spread
            if second and held > self.options.memory_bytes // HELD_PART:
                for key in others:  # freed before the next is loaded
                    del models[key]
            models[checkpoint.weights] = load(
                checkpoint,
                dtype=DTYPES[self.options.dtype],
                device=self.options.device,
                spread=self.options.memory_bytes if self.spread else None,
            )
        return models[checkpoint.weights]

    def runner(self, rows: Sequence[Encoded]) -> Runner:
        """What computes patched scores of these rows; `full` is loaded and checked once."""
        options = self.options
        if options not in self._held.runners:
            full = self.model(self.full)
            check_model(full, rows[0], options.dtype)
            check_component(full, rows[0], options)
            decoder = usable_decoder(full, options, self.notice)
            room = Room(sizes_on_disk(self.full, options.dtype), options, decoder is not None)
            self._held.runners[options] = Runner(full, None, decoder, options, room)
        runner = self._held.runners[options]
        if runner.decoder is None:
            return runner
        return replace(runner, clean=CachedSource(self.cache(self.full, rows, "all"), "resid_post"))

    def encode(self, rows: Sequence[Fact]) -> tuple[Encoded, ...]:
        """Tokens and spans; rows of which the tokenizer leaves nothing are dropped."""
        tokenizer = load_tokenizer(self.full)
        found = {e: row for row in rows if (e := encoded_row(row, tokenizer)) is not None}
        self._held.texts |= found
        return tuple(found)

    def token_match(self, source: Checkpoint, rows: Sequence[Encoded]) -> TokenMatch:
        """Rows in the tokens of a source."""
        if source.tokenizer == self.full.tokenizer:
            return TokenMatch(tuple(rows), None, {})
        key, matches = (source.tokenizer, tuple(rows)), self._held.matches
        if key not in matches:
            both = load_tokenizer(self.full), load_tokenizer(source)
            texts = self._held.texts.__getitem__
            matches[key] = token_match(rows, texts, *both, self.options.scope)
        return matches[key]

    def fingerprint(
        self,
        checkpoint: Checkpoint,
        positions: Positions,
        part: Kept = "resid",
        *,
        rows: Sequence[Encoded] | None = None,
    ) -> Fingerprint:
        """Of the cache of a model on these rows; None: the session's."""
        options = self.options
        return fingerprint_of_run(
            checkpoint,
            self.encoded if rows is None else rows,
            positions=positions,
            dtype=options.dtype,
            device=options.device,
            batch_size=options.cache_batch,
            part=part,
        )

    def there(
        self,
        checkpoint: Checkpoint,
        positions: Positions,
        part: Kept = "resid",
        *,
        rows: Sequence[Encoded] | None = None,
    ) -> Activations | None:
        """The complete cache that serves, if there is one.

        What a run left of all positions of `full` serves where its span is wanted, and so do all
        positions of a component.
        """
        store = ActivationStore(self.root)
        wanted: list[Positions] = [positions]
        if positions == "span" and (part != "resid" or checkpoint.weights == self.full.weights):
            wanted = ["all", "span"]
        found = (store.open(self.fingerprint(checkpoint, one, part, rows=rows)) for one in wanted)
        return next((one for one in found if one is not None), None)

    def cache(
        self, checkpoint: Checkpoint, rows: Sequence[Encoded], positions: Positions
    ) -> Activations:
        """Cached activations of these rows; the model is loaded only if some are missing.

        A cache of other rows than the session's is listed as neutral: the model's name means the
        session's. It stays open as long as the session.
        """
        key, caches = (checkpoint.weights, positions, tuple(rows)), self._held.caches
        if key not in caches:
            found = self.there(checkpoint, positions, rows=rows)
            if found is None:
                found = self.filled(checkpoint, rows, positions)
            caches[key] = self._held.files.enter_context(found)
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
                batch_size=self.options.cache_batch,
                memory_bytes=self.options.memory_bytes,
            )
        return fill(
            ActivationStore(self.root),
            self.fingerprint(checkpoint, positions, part, rows=rows),
            rows,
            name=name,
            load=lambda: self.model(checkpoint),
            batch_size=self.options.cache_batch,
            provenance=provenance,
            progress=self.tick,
            notice=self.notice,
        )

    def streams(self, checkpoint: Checkpoint, rows: Sequence[Encoded]) -> CachedSource:
        """A model as a source on these rows; one of other tokens at all positions of its own."""
        match, positions = self.token_match(checkpoint, rows), "all"
        if match.places is None:
            of_full = checkpoint.weights == self.full.weights
            positions = self.options.positions_needed(of_full=of_full) or "span"
        activations = self.cache(checkpoint, match.rows, positions)
        return CachedSource(activations, self.options.last_layer)

    def component(self, checkpoint: Checkpoint) -> SourceStreams:
        """From the cache that `lensaudit cache --component` made; else the model runs."""
        options = self.options
        kept = self.there(checkpoint, options.positions_replaced, kept_as(options.component))
        if kept is None:
            return LiveSource(self.model(checkpoint), options.component, checkpoint.spec.name)
        sizes = sizes_on_disk(self.full, options.dtype)
        return CachedComponent(self._held.files.enter_context(kept), sizes.n_heads)

    def kept(self, kind: type[AnyKept], key: Conditions, name: str) -> AnyKept:
        """What is kept under this key, read once; with `fresh` without what earlier runs left."""
        if key not in self._held.kept:
            found = kind(self.root, key, name, None if self.fresh else self.notice)
            if self.fresh and found.path not in self._held.emptied:
                self._held.emptied.add(found.path)
                found.clear()
            self._held.kept[key] = found
        return self._held.kept[key]

    def scores(self, source: str) -> ScoreCache:
        """Scores of `full` with a source patched in, by the engine of the options.

        Args:
            source: what decides what it hands over: weights, and a map or other rows.
        """
        options, named = self.options, self.patched_in().get(source)
        key = ScoreKey(
            **vars(self.conditions(self.full)),
            source=source,
            scope=options.scope,
            component=options.component_name,
            last_layer=options.last_layer,
            engine=options.engine,
            measure=options.measure,
        )
        return self.kept(ScoreCache, key, named.spec.name if named else "control")

    def wanted(self) -> Wanted:
        """The layers whose score is wanted of a source: KE layers only, where S1 is known."""
        options, s1 = self.options, self.scores(self.retain.weights)
        layers, ke = options.layers, ke_layers(s1, options.layers, options.tau)
        if options.profile == "full" or any(s1.lacks(e, layers) for e in self.encoded):
            return lambda e, source: layers
        return lambda e, source: layers if source == self.retain.weights else ke(e)

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
        streams: Mapping[str, SourceStreams],
        layers: Sequence[int] | Mapping[int, Sequence[int]],
        *,
        only: Mapping[str, Collection[int]] | None = None,
    ) -> None:
        """Compute what is not known of other rows or sources, all in one sweep.

        Args:
            rows: of which `full` is cached.
            streams: by what decides what they hand over; as of `scores`.
            layers: patched one at a time; or by idx those of each row.
            only: source -> idx of the rows wanted of it; None: all.
        """
        caches = {name: self.scores(name) for name in streams}

        def asked(e: Encoded, name: str) -> bool:
            return only is None or e.idx in only[name]

        def wanted(e: Encoded, name: str) -> Sequence[int]:
            own = layers[e.idx] if isinstance(layers, Mapping) else layers
            return own if asked(e, name) else ()

        pairs = ((e, name) for name in streams for e in rows if asked(e, name))
        if any(caches[name].lacks(e, wanted(e, name)) for e, name in pairs):
            runner = self.runner(rows)
            told = {"what": "patching rows for controls", "progress": self.tick}
            complete(runner, rows, streams, caches, wanted, **told)

    def read(
        self, source: str, rows: Sequence[Encoded], layers: Sequence[int]
    ) -> Float[Tensor, "batch layer"]:
        """Drop of the span's log-prob of `full`, nats per token; NaN where nothing was filled."""
        return deltas(self.scores(source), rows, layers)

    def answers(self, checkpoint: Checkpoint, rows: Sequence[Encoded]) -> OwnAnswers:
        """Log-prob and exactness of the model's own answers, kept by content.

        Where the model's cache of these rows is there, they are read out of its last stream;
        elsewhere it runs.
        """
        conditions = replace(self.conditions(self.full), weights=checkpoint.weights)
        kept = self.kept(OwnAnswerCache, OwnAnswerKey(**vars(conditions)), checkpoint.spec.name)
        if todo := [e for e in rows if example_hash(e) not in kept.known]:
            with ExitStack() as opened:
                cache = self._cache_there(checkpoint, rows, opened)
                for bucket in buckets(todo, ANSWER_BATCH):
                    model = self.model(checkpoint)
                    if cache is None:
                        kept.add(bucket, *run_answers(model, bucket))
                    else:
                        kept.add(bucket, *read_answers(model, bucket, cache))
        own = [kept.known[example_hash(e)] for e in rows]
        return OwnAnswers(
            torch.tensor([logprob for logprob, _ in own]),
            torch.tensor([exact for _, exact in own], dtype=torch.bool),
        )

    def _cache_there(
        self, checkpoint: Checkpoint, rows: Sequence[Encoded], opened: ExitStack
    ) -> Activations | None:
        """The model's cache of these rows, if there is one: it stays as it is."""
        for positions in ("span", "all"):
            cache = self._held.caches.get((checkpoint.weights, positions, tuple(rows)))
            if cache is not None:
                return cache
        found = self.there(checkpoint, "span", rows=rows)
        return None if found is None else opened.enter_context(found)


def run_answers(
    model: TransformerBridge, bucket: Sequence[Encoded]
) -> tuple[list[float], list[float]]:
    """Log-prob of the spans, nats per token, and the share of their tokens that come first."""
    batch = make_batch(bucket).to(device_of(model))
    logits = logits_of(model, batch.tokens)
    logprob = span_logprob(logits, batch.tokens, batch.predict_at)
    hits = span_mean(logits, batch.tokens, batch.predict_at, label_hit)
    return logprob.tolist(), hits.tolist()


def read_answers(
    model: TransformerBridge, bucket: Sequence[Encoded], cache: Activations
) -> tuple[list[float], list[float]]:
    """The same of what the model's last layer wrote when it ran."""
    device = device_of(model)
    at = [torch.arange(e.start, e.end) for e in bucket]
    streams = [cache.example(e.idx).at(p).resid[-1] for e, p in zip(bucket, at, strict=True)]
    logits = unembedded(model, torch.cat(streams).unsqueeze(0).to(device))[0]
    labels = torch.tensor([t for e in bucket for t in e.token_ids[e.start + 1 : e.end + 1]])
    labels = labels.to(device)
    example = torch.tensor([row for row, p in enumerate(at) for _ in p], device=device)
    scores = (score(logits, labels) for score in (label_logprob, label_hit))
    logprob, hits = (mean_per_example(one, example, len(bucket)).tolist() for one in scores)
    return logprob, hits
