"""Other rows and other sources, patched into the same `full`: what the controls of a score need."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.activations.fill import Positions
from lensaudit.activations.gc import remove
from lensaudit.activations.spec import Fingerprint
from lensaudit.activations.store import Activations
from lensaudit.data.facts import Fact
from lensaudit.data.spans import Encoded, buckets, encoded_row, make_batch
from lensaudit.models.bridge import TransformerBridge, logits_of, unembedded
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.patching.alignment import Reading, reading_of
from lensaudit.patching.audit import Audit, cached, loaded
from lensaudit.patching.budget import Room
from lensaudit.patching.options import Engine
from lensaudit.patching.preflight import check_component, check_model, usable_decoder
from lensaudit.patching.score_cache import BookKey, ScoreBook, example_hash
from lensaudit.patching.sources import CachedSource, SourceStreams
from lensaudit.patching.stages import Runner, complete, deltas
from lensaudit.results.ledger import Ledger, ledger_path
from lensaudit.results.schema import Flag, Number
from lensaudit.scores.depth import label_logprob, mean_per_example, span_logprob, span_mean
from lensaudit.scores.erasure import label_hit

SAID_BATCH = 16
KEPT = 8
"""Models beside `full` stay in memory while they are below this part of `memory`."""
_SAID_KEY = ("tokenizer", "dtype", "device_class", "attention", "batch_policy", "algorithm")


@dataclass(frozen=True)
class _SaidLine:
    """What a line of the ledger must hold."""

    example: str
    logprob: Number
    exact: Flag


@dataclass(frozen=True)
class Said:
    """What a model says of its own accord, teacher-forced."""

    logprob: Float[Tensor, " batch"]
    """Of the span, nats per token."""
    exact: Bool[Tensor, " batch"]
    """Every token of the span is the model's first choice."""


class Bench:
    """Models of an audit, loaded once; caches and scores of any rows."""

    def __init__(self, audit: Audit) -> None:
        self.audit, self._opened = audit, ExitStack()
        self._models: dict[str, TransformerBridge] = {}
        self._runner: Runner | None = None
        self._books: dict[str, ScoreBook] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._caches: dict[tuple[str, Positions, tuple[Encoded, ...]], Activations] = {}
        texts = {text.idx: text for text in audit.examples}
        self._texts = {e: texts[e.idx] for e in audit.encoded if e.idx in texts}
        self._readings: dict[tuple[str, tuple[Encoded, ...]], Reading] = {}

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def encoded(self, rows: Sequence[Fact]) -> tuple[Encoded, ...]:
        """Tokens and spans; rows of which the tokenizer leaves nothing are dropped."""
        tokenizer = load_tokenizer(self.audit.full)
        found = {e: row for row in rows if (e := encoded_row(row, tokenizer)) is not None}
        self._texts |= found
        return tuple(found)

    def reading(self, source: Checkpoint, rows: Sequence[Encoded]) -> Reading | None:
        """Rows in the tokens of a source; None where they are those of `full`."""
        full = self.audit.full
        if source.tokenizer == full.tokenizer:
            return None
        key = (source.tokenizer, tuple(rows))
        if key not in self._readings:
            both = load_tokenizer(full), load_tokenizer(source)
            scope = self.audit.options.scope
            self._readings[key] = reading_of(rows, self._texts.__getitem__, *both, scope)
        return self._readings[key]

    def model(self, checkpoint: Checkpoint) -> TransformerBridge:
        """A model in memory: `full` stays; the others as long as they are small beside `memory`."""
        if checkpoint.weights not in self._models:
            others = [key for key in self._models if key != self.audit.full.weights]
            held = sum(_n_bytes(self._models[key]) for key in others)
            if held > self.audit.options.memory_bytes // KEPT:
                for key in others:  # freed before the next is loaded
                    del self._models[key]
            self._models[checkpoint.weights] = loaded(self.audit, checkpoint)
        return self._models[checkpoint.weights]

    def cache(
        self, checkpoint: Checkpoint, rows: Sequence[Encoded], positions: Positions
    ) -> Activations:
        """Cached activations of these rows; the model is loaded only if some are missing.

        A cache of other rows than the audit's is listed as neutral: the model's name means the
        audit's. It stays open as long as the bench.
        """
        key = (checkpoint.weights, positions, tuple(rows))
        if key not in self._caches:
            found = self._cached(checkpoint, rows, positions)
            self._caches[key] = self._opened.enter_context(found)
        return self._caches[key]

    @contextmanager
    def passing(self, checkpoint: Checkpoint, rows: Sequence[Encoded]) -> Iterator[Activations]:
        """All positions of rows that are read once: the cache is gone afterwards, but `full`'s."""
        if checkpoint.weights == self.audit.full.weights:
            yield self.cache(checkpoint, rows, "all")
            return
        with self._cached(checkpoint, rows, "all") as found:
            yield found
        remove(found.folder)

    def fingerprint(self, checkpoint: Checkpoint, rows: Sequence[Encoded]) -> Fingerprint:
        """Of a cache of these rows at all positions."""
        return self._on(rows).fingerprint(checkpoint, "all")

    def _on(self, rows: Sequence[Encoded]) -> Audit:
        if tuple(rows) == self.audit.encoded:
            return self.audit
        return replace(self.audit, encoded=tuple(rows), chosen=None)

    def _cached(
        self, checkpoint: Checkpoint, rows: Sequence[Encoded], positions: Positions
    ) -> Activations:
        audit = self._on(rows)
        name = None if audit is self.audit else f"{checkpoint.spec.name} neutral"
        return cached(audit, checkpoint, positions, lambda: self.model(checkpoint), name=name)

    def streams(self, checkpoint: Checkpoint, rows: Sequence[Encoded]) -> CachedSource:
        """A model as a source on these rows; one of other tokens at all positions of its own."""
        if (reading := self.reading(checkpoint, rows)) is not None:
            activations = self.cache(checkpoint, reading.rows, "all")
            return CachedSource(activations, self.audit.options.last_layer)
        of_full = checkpoint.weights == self.audit.full.weights
        positions = self.audit.options.positions_needed(of_full=of_full)
        activations = self.cache(checkpoint, rows, positions or "span")
        return CachedSource(activations, self.audit.options.last_layer)

    def deltas(
        self, rows: Sequence[Encoded], streams: Mapping[str, SourceStreams], layers: Sequence[int]
    ) -> dict[str, Float[Tensor, "batch layer"]]:
        """Drop of the span's log-prob of `full`, nats per token, by source; kept in score books.

        Args:
            rows: to patch.
            streams: by what decides what they hand over: weights, and a map or other rows.
            layers: patched one at a time.
        """
        self.fill(rows, streams, layers)
        return {name: self.read(name, rows, layers) for name in streams}

    def fill(
        self,
        rows: Sequence[Encoded],
        streams: Mapping[str, SourceStreams],
        layers: Sequence[int],
        *,
        only: Mapping[str, Collection[int]] | None = None,
    ) -> None:
        """Compute what the books of these sources lack, all in one sweep.

        Args:
            rows: of which `full` is cached.
            streams: as of `deltas`.
            layers: patched one at a time.
            only: source -> idx of the rows wanted of it; None: all.
        """
        books = {name: self._book(name) for name in streams}

        def wanted(e: Encoded, name: str) -> Sequence[int]:
            return layers if only is None or e.idx in only[name] else ()

        if any(books[name].missing(e, wanted(e, name)) for name in streams for e in rows):
            complete(
                self.runner(rows),
                rows,
                streams,
                books,
                wanted,
                what="controls",
                progress=self.audit.progress,
            )

    def read(
        self, name: str, rows: Sequence[Encoded], layers: Sequence[int]
    ) -> Float[Tensor, "batch layer"]:
        """What the book of a source holds; NaN where nothing was filled."""
        return deltas(self._book(name), rows, layers)

    def said(self, checkpoint: Checkpoint, rows: Sequence[Encoded]) -> Said:
        """Log-prob and exactness of the model's own answers; kept in a ledger of the model's.

        Where the model's cache of these rows is there, they are read out of its last stream;
        elsewhere it runs.
        """
        ledger = self._ledger(checkpoint)
        known = {row["example"]: (row["logprob"], row["exact"]) for row in ledger.rows}
        todo = [e for e in rows if example_hash(e) not in known]
        with ExitStack() as opened:
            cache = self._there(checkpoint, rows, opened) if todo else None
            for bucket in buckets(todo, SAID_BATCH):
                model = self.model(checkpoint)
                read = (
                    run_answers(model, bucket)
                    if cache is None
                    else read_answers(model, bucket, cache)
                )
                found = {
                    example_hash(e): (p, hit == 1.0)
                    for e, p, hit in zip(bucket, *read, strict=True)
                }
                ledger.append(
                    [
                        {"example": e, "logprob": p, "exact": exact}
                        for e, (p, exact) in found.items()
                    ]
                )
                known |= found
        own = [known[example_hash(e)] for e in rows]
        return Said(
            torch.tensor([logprob for logprob, _ in own]),
            torch.tensor([exact for _, exact in own], dtype=torch.bool),
        )

    def _there(
        self, checkpoint: Checkpoint, rows: Sequence[Encoded], opened: ExitStack
    ) -> Activations | None:
        """The model's cache of these rows, if there is one: it stays as it is."""
        positions: tuple[Positions, ...] = ("span", "all")
        for one in positions:
            cache = self._caches.get((checkpoint.weights, one, tuple(rows)))
            if cache is not None:
                return cache
        found = self._on(rows).there(checkpoint, "span")
        return None if found is None else opened.enter_context(found)

    def _ledger(self, checkpoint: Checkpoint) -> Ledger:
        """Of what a model says; read once."""
        if checkpoint.weights not in self._ledgers:
            key = self._key(checkpoint.weights)
            record = {"weights": key.source, **{part: getattr(key, part) for part in _SAID_KEY}}
            path = ledger_path(self.audit.root / "said", checkpoint.spec.name, record)
            ledger = Ledger(path, "said", record, record=_SaidLine, notice=self.audit.told)
            if self.audit.fresh:
                ledger.clear()
            self._ledgers[checkpoint.weights] = ledger
        return self._ledgers[checkpoint.weights]

    def _book(self, name: str) -> ScoreBook:
        """A book of its own for each thing that is handed over."""
        if name not in self._books:
            book = ScoreBook(self.audit.root, self._key(name), "control", self.audit.told)
            self._books[name] = self.audit.begun(book)
        return self._books[name]

    def _key(self, source: str) -> BookKey:
        # `fresh` would empty the book whose key is asked for
        return replace(replace(self.audit, fresh=False).book(self.audit.full).key, source=source)

    def runner(self, rows: Sequence[Encoded]) -> Runner:
        """What computes patched scores of these rows; `full` is loaded and checked once."""
        if self._runner is None:
            options, full = self.audit.options, self.model(self.audit.full)
            check_model(full, rows[0], options.dtype)
            check_component(full, rows[0], options)
            decoder = usable_decoder(full, options, self.audit.notice)
            room = Room(sizes_on_disk(self.audit.full, options.dtype), options, decoder is not None)
            self._runner = Runner(full, None, decoder, options, room)
        clean = None
        if self._runner.decoder is not None:
            clean = CachedSource(self.cache(self.audit.full, rows, "all"), "resid_post")
        return replace(self._runner, clean=clean)

    def use(self, engine: Engine) -> None:
        """From now on by this engine: what the architecture or a check allows."""
        self.audit = replace(self.audit, options=replace(self.audit.options, engine=engine))
        if self._runner is not None and engine == "oracle":
            self._runner = self._runner.by_oracle()


def run_answers(
    model: TransformerBridge, bucket: Sequence[Encoded]
) -> tuple[list[float], list[float]]:
    """Log-prob of the spans, nats per token, and the share of their tokens that come first."""
    batch = make_batch(bucket).to(next(model.original_model.parameters()).device)
    logits = logits_of(model, batch.tokens)
    logprob = span_logprob(logits, batch.tokens, batch.predict_at)
    hits = span_mean(logits, batch.tokens, batch.predict_at, label_hit)
    return logprob.tolist(), hits.tolist()


def read_answers(
    model: TransformerBridge, bucket: Sequence[Encoded], cache: Activations
) -> tuple[list[float], list[float]]:
    """The same of what the model's last layer wrote when it ran."""
    device = next(model.original_model.parameters()).device
    at = [torch.arange(e.start, e.end) for e in bucket]
    streams = [cache.example(e.idx).at(p).resid[-1] for e, p in zip(bucket, at, strict=True)]
    logits = unembedded(model, torch.cat(streams).unsqueeze(0).to(device))[0]
    labels = torch.tensor([t for e in bucket for t in e.token_ids[e.start + 1 : e.end + 1]])
    labels = labels.to(device)
    example = torch.tensor([row for row, p in enumerate(at) for _ in p], device=device)
    scores = (score(logits, labels) for score in (label_logprob, label_hit))
    logprob, hits = (mean_per_example(one, example, len(bucket)).tolist() for one in scores)
    return logprob, hits


def _n_bytes(model: TransformerBridge) -> int:
    return sum(p.numel() * p.element_size() for p in model.original_model.parameters())
