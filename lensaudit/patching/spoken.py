"""Everything that an exact-match audit has the models say, each text once: books and resume.

Models are loaded in turn. Every model says what follows each prompt by itself; `full` says it again
with every source patched in at every layer, all layers of an example in one batch.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from lensaudit.data.spans import Encoded
from lensaudit.models.bridge import TransformerBridge
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.continuing import stop_ids
from lensaudit.models.generating import generation_config_of
from lensaudit.patching.audit import Audit, cached, loaded
from lensaudit.patching.generation import Rows, generate, patched_rows, rows_that_fit
from lensaudit.patching.preflight import check_model
from lensaudit.patching.sources import CachedSource
from lensaudit.patching.textbook import UNPATCHED, TextBook, TextKey

MAX_BATCH = 64
"""Examples per batch: an interruption loses at most this many."""


@dataclass(frozen=True)
class Spoken:
    """Texts by weights hash, then by example in the order of the audit."""

    own: Mapping[str, tuple[str, ...]]
    """What each model says unpatched."""
    patched: Mapping[str, tuple[tuple[str, ...], ...]]
    """What `full` says with each source patched in, by layer."""


@dataclass(frozen=True)
class Speakers:
    """The books of a run, and what generation needs to know."""

    audit: Audit
    tokenizer: Any
    stop: frozenset[int]
    own: Mapping[str, TextBook]
    patched: Mapping[str, TextBook]

    def own_todo(self, weights: str) -> list[Encoded]:
        """Examples that a model has not continued yet."""
        return [e for e in self.audit.encoded if self.own[weights].missing(e, [UNPATCHED])]

    def patched_todo(self, weights: str) -> list[Encoded]:
        """Examples with a layer at which this source was not patched in yet."""
        layers, book = self.audit.options.layers, self.patched[weights]
        return [e for e in self.audit.encoded if book.missing(e, layers)]

    def decoded(self, said: Sequence[int]) -> str:
        """The text of generated tokens."""
        return self.tokenizer.decode(list(said), skip_special_tokens=True)


def speakers(
    audit: Audit, tokenizer: Any, *, max_new_tokens: int, reference_tokens: int
) -> Speakers:
    """Open the books; nothing is loaded."""
    stop = _configured_stop(audit.full, tokenizer)
    patched_in = audit.patched_in()
    return Speakers(
        audit,
        tokenizer,
        stop,
        own={
            weights: _book(audit, one, None, reference_tokens, stop)
            for weights, one in patched_in.items()
        },
        patched={
            weights: _book(audit, audit.full, one, max_new_tokens, stop)
            for weights, one in patched_in.items()
        },
    )


def n_rows(
    audit: Audit, tokenizer: Any, *, max_new_tokens: int, reference_tokens: int
) -> tuple[int, int]:
    """Texts a run would generate: unpatched, patched. Writes nothing."""
    n_sources, n_examples, layers = (
        len(audit.patched_in()),
        len(audit.encoded),
        audit.options.layers,
    )
    if audit.fresh:
        return n_sources * n_examples, n_sources * n_examples * len(layers)
    books = speakers(
        audit, tokenizer, max_new_tokens=max_new_tokens, reference_tokens=reference_tokens
    )
    own = sum(len(books.own_todo(weights)) for weights in books.own)
    missing = (b.missing(e, layers) for b in books.patched.values() for e in audit.encoded)
    return own, sum(map(len, missing))


def _book(
    audit: Audit, model: Checkpoint, source: Checkpoint | None, n_tokens: int, stop: frozenset[int]
) -> TextBook:
    key = TextKey(
        **vars(audit.conditions(model, "padded")),
        source=source.weights if source else "",
        last_layer=audit.options.last_layer if source else "",
        max_new_tokens=n_tokens,
        stop=tuple(sorted(stop)),
    )
    book = TextBook(audit.root, key, (source or model).spec.name, audit.told)
    return book.emptied() if audit.fresh else book


def _configured_stop(checkpoint: Checkpoint, tokenizer: Any) -> frozenset[int]:
    """What ends a text, read from the folder: books are opened before a model is loaded."""
    return stop_ids(generation_config_of(checkpoint).eos_token_id, tokenizer.eos_token_id)


def speak(audit: Audit, tokenizer: Any, *, max_new_tokens: int, reference_tokens: int) -> Spoken:
    """Generate what no book holds yet, and read the rest.

    Raises:
        VerificationError: the preflight failed.
        WorkError: an activation or a logit is not finite.
    """
    books = speakers(
        audit, tokenizer, max_new_tokens=max_new_tokens, reference_tokens=reference_tokens
    )
    with ExitStack() as opened:
        _fill(books, max_new_tokens, reference_tokens, opened)
    layers = audit.options.layers
    return Spoken(
        own={
            weights: tuple(book.texts(e, [UNPATCHED])[0] for e in audit.encoded)
            for weights, book in books.own.items()
        },
        patched={
            weights: tuple(tuple(book.texts(e, layers)) for e in audit.encoded)
            for weights, book in books.patched.items()
        },
    )


def _fill(books: Speakers, max_new_tokens: int, reference_tokens: int, opened: ExitStack) -> None:
    audit, caches = books.audit, {}
    full = audit.full.weights
    patched_in = audit.patched_in()
    for weights in sorted(patched_in, key=lambda w: w == full):  # full last: it stays
        checkpoint = patched_in[weights]
        model = functools.cache(lambda c=checkpoint: loaded(audit, c))
        if books.patched_todo(weights):
            # the last prompt token is read; all positions of full serve the other scores too
            positions = audit.options.positions_needed(of_full=weights == full)
            assert positions is not None
            activations = opened.enter_context(cached(audit, checkpoint, positions, model))
            caches[weights] = CachedSource(activations, audit.options.last_layer)
        if todo := books.own_todo(weights):
            _say_own(books, model(), weights, todo, reference_tokens)
        if weights == full and caches:
            check_model(model(), audit.encoded[0], audit.options.dtype)
            _say_patched(books, model(), caches, max_new_tokens)


def _say_own(
    books: Speakers, model: TransformerBridge, weights: str, todo: Sequence[Encoded], n_tokens: int
) -> None:
    name = books.audit.patched_in()[weights].spec.name
    n_all = len(books.audit.encoded)
    n_done = n_all - len(todo)
    for bucket in _buckets(books, model, todo, 1, n_tokens):
        said = generate(
            model, [_prompt(e) for e in bucket], max_new_tokens=n_tokens, stop=books.stop
        )
        texts = map(books.decoded, said)
        books.own[weights].add(
            {e: {UNPATCHED: text} for e, text in zip(bucket, texts, strict=True)}
        )
        n_done += len(bucket)
        if books.audit.progress:
            books.audit.progress(f"{name} speaks", n_done, n_all)


def _say_patched(
    books: Speakers, full: TransformerBridge, streams: Mapping[str, CachedSource], n_tokens: int
) -> None:
    layers = books.audit.options.layers
    todo = [
        e for e in books.audit.encoded if any(books.patched[w].missing(e, layers) for w in streams)
    ]
    n_all = len(books.audit.encoded)
    n_done = n_all - len(todo)
    for bucket in _buckets(books, full, todo, len(streams) * len(layers), n_tokens):
        _say_bucket(books, full, streams, bucket, n_tokens)
        n_done += len(bucket)
        if books.audit.progress:
            books.audit.progress("patching and generating", n_done, n_all)


def _say_bucket(
    books: Speakers,
    full: TransformerBridge,
    streams: Mapping[str, CachedSource],
    bucket: Sequence[Encoded],
    n_tokens: int,
) -> None:
    """All missing rows of a few examples, every source and layer, in one batch."""
    layers = books.audit.options.layers
    rows = [
        (weights, at, layer)
        for at, e in enumerate(bucket)
        for weights in streams
        for layer in books.patched[weights].missing(e, layers)
    ]
    value = {(w, at): streams[w].at_prompt_end(bucket[at]) for w, at in {row[:2] for row in rows}}
    said = patched_rows(
        full,
        [_prompt(e) for e in bucket],
        Rows(
            prompt=torch.tensor([at for _, at, _ in rows]),
            layer=torch.tensor([layer for *_, layer in rows]),
            value=torch.stack([value[w, at][layer] for w, at, layer in rows]),
        ),
        max_new_tokens=n_tokens,
        stop=books.stop,
    )
    texts: dict[str, dict[Encoded, dict[int, str]]] = {weights: {} for weights in streams}
    for (weights, at, layer), ids in zip(rows, said, strict=True):
        texts[weights].setdefault(bucket[at], {})[layer] = books.decoded(ids)
    for weights, by_example in texts.items():
        books.patched[weights].add(by_example)


def _prompt(encoded: Encoded) -> tuple[int, ...]:
    return encoded.token_ids[: encoded.n_prompt]


def _buckets(
    books: Speakers, model: TransformerBridge, todo: Sequence[Encoded], n_rows: int, n_tokens: int
) -> Iterator[list[Encoded]]:
    """Examples alike in prompt length, as many as the memory holds with `n_rows` rows each."""
    options = books.audit.options
    by_length = sorted(todo, key=lambda e: (e.n_prompt, e.idx))
    longest = by_length[-1].n_prompt + n_tokens
    fit = rows_that_fit(model, longest, options.memory_bytes) // n_rows
    size = options.batch_size or max(1, min(MAX_BATCH, fit))
    for at in range(0, len(by_length), size):
        yield by_length[at : at + size]
