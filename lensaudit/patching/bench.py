"""Other rows and other donors, patched into the same `full`: what the controls of a score need."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.activations.fill import Positions
from lensaudit.activations.store import Activations
from lensaudit.data.examples import Example
from lensaudit.data.neutral import is_whole
from lensaudit.data.spans import Encoded, buckets, encode, make_batch
from lensaudit.files import digest, slug
from lensaudit.models.bridge import DTYPES, TransformerBridge, load, logits_of
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.patching.audit import Audit, cached
from lensaudit.patching.budget import Room
from lensaudit.patching.donors import CachedDonor, Donor
from lensaudit.patching.preflight import check_model, usable_decoder
from lensaudit.patching.scorebook import BookKey, ScoreBook, example_hash
from lensaudit.patching.stages import Runner, all_layers, complete, deltas
from lensaudit.results.ledger import Ledger
from lensaudit.scores.depth import span_logprob, span_mean
from lensaudit.scores.erasure import label_hit

SAID_BATCH = 16
_SAID_KEY = ("tokenizer", "dtype", "device_class", "attention", "batch_policy", "algorithm")


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
        self._full: TransformerBridge | None = None
        self._other: tuple[str, TransformerBridge] | None = None
        self._runner: Runner | None = None

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def encoded(self, rows: Sequence[Example]) -> tuple[Encoded, ...]:
        """Tokens and spans; rows of which the tokenizer leaves nothing are dropped."""
        tokenizer = load_tokenizer(self.audit.full)
        found = [_encoded(row, tokenizer) for row in rows]
        return tuple(e for e in found if e is not None)

    def model(self, checkpoint: Checkpoint) -> TransformerBridge:
        """`full` is kept; of the others one at a time is in memory."""
        options = self.audit.options
        if checkpoint.weights == self.audit.full.weights:
            self._full = self._full or load(
                checkpoint, dtype=DTYPES[options.dtype], device=options.device
            )
            return self._full
        if self._other is None or self._other[0] != checkpoint.weights:
            self._other = None  # freed before the next is loaded
            made = load(checkpoint, dtype=DTYPES[options.dtype], device=options.device)
            self._other = checkpoint.weights, made
        return self._other[1]

    def cache(
        self, checkpoint: Checkpoint, rows: Sequence[Encoded], positions: Positions
    ) -> Activations:
        """Cached activations of these rows; the model is loaded only if some are missing."""
        audit = replace(self.audit, encoded=tuple(rows))
        return self._opened.enter_context(
            cached(audit, checkpoint, positions, lambda: self.model(checkpoint))
        )

    def donor(self, checkpoint: Checkpoint, rows: Sequence[Encoded]) -> CachedDonor:
        """A model as a source on these rows."""
        prefix = self.audit.options.scope == "prefix"
        activations = self.cache(checkpoint, rows, "all" if prefix else "span")
        return CachedDonor(activations, self.audit.options.last_layer)

    def deltas(
        self, rows: Sequence[Encoded], donors: Mapping[str, Donor], layers: Sequence[int]
    ) -> dict[str, Float[Tensor, "batch layer"]]:
        """Drop of the span's log-prob of `full`, nats per token, by donor; kept in score books.

        Args:
            rows: to patch.
            donors: by what decides what they hand over: weights, and a map or other rows.
            layers: patched one at a time.
        """
        books = {name: self._book(name) for name in donors}
        wanted = all_layers(layers)
        if any(b.entry(e) is None or b.missing(e, layers) for b in books.values() for e in rows):
            complete(
                self._on(rows),
                rows,
                donors,
                books,
                wanted,
                what="controls",
                progress=self.audit.progress,
            )
        return {name: deltas(book, rows, layers) for name, book in books.items()}

    def said(self, checkpoint: Checkpoint, rows: Sequence[Encoded]) -> Said:
        """Log-prob and exactness of the model's own answers; kept in a ledger of the model's."""
        key = self._key(checkpoint.weights)
        record = {"weights": key.donor, **{name: getattr(key, name) for name in _SAID_KEY}}
        path = self.audit.root / "said" / f"{slug(checkpoint.spec.name)}--{digest(record)}.jsonl"
        ledger = Ledger(path, "said", record, notice=self.audit.notice)
        known = {row["example"]: (row["logprob"], row["exact"]) for row in ledger.rows}
        todo = [e for e in rows if example_hash(e) not in known]
        for bucket in buckets(todo, SAID_BATCH):
            model = self.model(checkpoint)
            batch = make_batch(bucket).to(next(model.original_model.parameters()).device)
            logits = logits_of(model, batch.tokens)
            logprob = span_logprob(logits, batch.tokens, batch.predict_at).tolist()
            hits = span_mean(logits, batch.tokens, batch.predict_at, label_hit).tolist()
            found = {
                example_hash(e): (p, hit == 1.0)
                for e, p, hit in zip(bucket, logprob, hits, strict=True)
            }
            ledger.append(
                [{"example": e, "logprob": p, "exact": exact} for e, (p, exact) in found.items()]
            )
            known |= found
        own = [known[example_hash(e)] for e in rows]
        return Said(
            torch.tensor([logprob for logprob, _ in own]),
            torch.tensor([exact for _, exact in own], dtype=torch.bool),
        )

    def _book(self, name: str) -> ScoreBook:
        """A book of its own for each thing that is handed over."""
        return ScoreBook(self.audit.root, self._key(name), "control", self.audit.notice)

    def _key(self, donor: str) -> BookKey:
        # `fresh` would empty the book whose key is asked for
        return replace(replace(self.audit, fresh=False).book(self.audit.full).key, donor=donor)

    def _on(self, rows: Sequence[Encoded]) -> Runner:
        """The runner of `full`, on these rows."""
        if self._runner is None:
            options, full = self.audit.options, self.model(self.audit.full)
            check_model(full, rows[0], options.dtype)
            decoder = usable_decoder(full, options, self.audit.notice)
            room = Room(sizes_on_disk(self.audit.full, options.dtype), options, decoder is not None)
            self._runner = Runner(full, None, decoder, options, room)
        clean = None
        if self._runner.decoder is not None:
            clean = CachedDonor(self.cache(self.audit.full, rows, "all"), "resid_post")
        return replace(self._runner, clean=clean)


def _encoded(row: Example, tokenizer) -> Encoded | None:
    if row.question or not is_whole(row):
        found = encode(row, tokenizer, scored="answer" if is_whole(row) else "entity")
        return found if isinstance(found, Encoded) else None
    # a plain sentence: all of it is scored but its first token
    ids = tuple(tokenizer(row.answer, add_special_tokens=True)["input_ids"])
    return Encoded(row.idx, row.group, ids, 1, 0, len(ids) - 1) if len(ids) > 1 else None
