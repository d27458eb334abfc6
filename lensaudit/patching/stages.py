"""S1 and S2 over a data set: which rows are still to compute, in which batches, and resume.

S1 patches `retain` into `full`, S2 a source; the calibration patches `full` into itself. Each is
a source with a score cache, so they share batches, the clean run and one sweep.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.data.spans import Encoded, make_batch
from lensaudit.models.bridge import TransformerBridge, device_of, embedded, unembedded
from lensaudit.models.decoder import Decoder
from lensaudit.patching import oracle
from lensaudit.patching.budget import MemoryBudget
from lensaudit.patching.layout import Layout, layout_of
from lensaudit.patching.options import Measure, ResolvedSettings
from lensaudit.patching.score_cache import ScoreCache, ScoreEntry, example_hash
from lensaudit.patching.sources import CachedSource
from lensaudit.patching.wavefront import CleanRun, Stack, Swept, sweep
from lensaudit.progress import Progress, Tell
from lensaudit.scores.depth import LabelScore, label_hit, label_logprob, mean_per_example

Joins = Bool[Tensor, "source batch layer"]
KEPT_EVERY = 1.0
"""Seconds of computing that a kill may lose."""

MEASURES: Mapping[Measure, LabelScore] = {"logprob": label_logprob, "hit": label_hit}


@dataclass(frozen=True)
class Runner:
    """Computes scores of one batch: patched by the sweep or by the oracle, or read by the lens.

    The lens reads cached streams with the final norm and the unembedding of `full`.
    """

    full: TransformerBridge
    clean: CachedSource | None
    """Cached run of `full`: at all positions, as the sweep reads prefixes from it; for the lens at
    the span."""
    decoder: Decoder | None
    """None: the oracle is used, or the lens."""
    settings: ResolvedSettings
    budget: MemoryBudget

    def by_oracle(self) -> "Runner":
        """The same, by one hooked pass per layer."""
        return replace(self, clean=None, decoder=None, budget=replace(self.budget, sweeps=False))

    def fetch(self, bucket: Sequence[Encoded], streams: Sequence[CachedSource]) -> "Fetched":
        """Read what a batch needs; safe to call from another thread."""
        layout, own = layout_of(bucket, self.settings.scope), self.clean
        if own is None:
            return Fetched(layout, None, [one.padded(bucket) for one in streams])
        if self.decoder is None:
            span = own.packed(bucket, layout)
            clean = CleanRun(span[:, :0], span)
        else:
            clean = own.clean_run(bucket, layout)
        # `full` patched into itself hands over what the clean run holds already
        stacks = [clean.span if one == own else one.packed(bucket, layout) for one in streams]
        return Fetched(layout, clean, stacks)

    def score(self, bucket: Sequence[Encoded], fetched: "Fetched", joins: Joins) -> Swept:
        """Span log-probs of the rows in `joins`, nats per token; NaN elsewhere."""
        with torch.inference_mode():
            if fetched.clean is None:
                return self._oracle(bucket, fetched.stacks, joins)
            if self.decoder is None:
                return self._lens(fetched, fetched.clean.span, joins)
            return self._sweep(bucket, fetched, self.decoder, fetched.clean, joins)

    def _sweep(
        self, bucket, fetched: "Fetched", decoder: Decoder, clean: CleanRun, joins: Joins
    ) -> Swept:
        settings, layout, device = self.settings, fetched.layout, device_of(self.full)
        clean = clean.to(device)
        if settings.part != "resid":
            stream = embedded(self.full, make_batch(bucket).tokens.to(device))
            clean = replace(
                clean,
                embedded=stream[layout.span_example, layout.span_pos],
                embedded_prefix=stream[layout.prefix_example, layout.prefix_pos],
            )
        return sweep(
            *(decoder, layout, clean, [stack.to(device) for stack in fetched.stacks], joins),
            logit_rows=self.budget.logit_rows,
            mlp_rows=self.budget.mlp_rows,
            component=settings.part,
            head=settings.head,
            label_score=MEASURES[settings.measure],
        )

    def _oracle(self, bucket, stacks: Sequence[Tensor], joins: Joins) -> Swept:
        device, measured = device_of(self.full), MEASURES[self.settings.measure]
        batch = make_batch(bucket, scope=self.settings.scope).to(device)
        scores = torch.full(joins.shape, torch.nan, dtype=torch.float32, device=device)
        for source, stack in enumerate(stacks):
            if layers := joins[source].any(0).nonzero().squeeze(1).tolist():
                scores[source][:, layers] = oracle.patched(
                    *(self.full, stack.to(device), batch),
                    layers=layers,
                    component=self.settings.part,
                    head=self.settings.head,
                    label_score=measured,
                )
        scores = scores.where(joins.to(device), torch.nan)
        return Swept(oracle.baseline(self.full, batch, label_score=measured), scores)

    def _lens(
        self, fetched: "Fetched", own: Float[Tensor, "layer token d_model"], joins: Joins
    ) -> Swept:
        """Read at the layers in `joins`; the baseline is full's own last layer."""
        layout, device, at_once = fetched.layout, device_of(self.full), self.budget.logit_rows

        def read(stream: Float[Tensor, "token d_model"]) -> tuple[Tensor, Tensor]:
            parts = zip(stream.split(at_once), layout.span_label.split(at_once), strict=True)
            scores = [
                label_logprob(
                    unembedded(self.full, part.to(device).unsqueeze(0))[0], labels.to(device)
                )
                for part, labels in parts
            ]
            tokens = torch.cat(scores).cpu()
            return tokens, mean_per_example(tokens, layout.span_example, layout.n_examples)

        found = torch.full(joins.shape, torch.nan, dtype=torch.float32)
        by_token = torch.full((*joins.shape, layout.width), torch.nan, dtype=torch.float32)
        for source, layer in joins.any(1).nonzero().tolist():
            tokens, found[source, :, layer] = read(fetched.stacks[source][layer])
            by_token[source, layout.span_example, layer, layout.span_column] = tokens
        return Swept(read(own[-1])[1], found.where(joins, torch.nan), by_token)


@dataclass(frozen=True)
class Fetched:
    """What a batch needs from disk."""

    layout: Layout
    clean: CleanRun | None
    """None: `full` is run, by the oracle."""
    stacks: Sequence[Stack]


Wanted = Callable[[Encoded, str], Sequence[int]]
"""The layers whose score is wanted of an example and a source."""


def ke_layers(s1: ScoreCache, encoded: Encoded, layers: Sequence[int], tau: float) -> list[int]:
    """Only layers that can change UDS: those with S1 > tau, where S1 is complete."""
    entry = s1.known[example_hash(encoded)]
    return [at for at in layers if entry.delta(at) > tau]


def complete(
    runner: Runner,
    encoded: Sequence[Encoded],
    streams: Mapping[str, CachedSource],
    caches: Mapping[str, ScoreCache],
    wanted: Wanted,
    *,
    what: str,
    progress: Tell,
) -> None:
    """Fill the score caches of some sources; an interruption keeps the finished batches.

    The next batch is read while this one is computed. Scores are on disk within `KEPT_EVERY`, as a
    write waits for the disk.
    """
    own = [caches[name] for name in streams]

    def missing(e: Encoded) -> list[list[int]]:
        return [cache.missing(e, wanted(e, name)) for name, cache in zip(streams, own, strict=True)]

    def n_rows(e: Encoded) -> int:
        return sum(map(len, missing(e)))

    todo = [e for e in encoded if n_rows(e) or any(cache.entry(e) is None for cache in own)]
    n_done, n_layers = len(encoded) - len(todo), len(runner.full.blocks)
    batches = runner.budget.batches(todo, n_rows, n_sources=len(own))
    waiting: list[list[tuple[Encoded, ScoreEntry]]] = [[] for _ in own]
    written = time.monotonic()
    try:
        for bucket, fetched in _ahead(runner, list(streams.values()), batches):
            joins = torch.zeros(len(own), len(bucket), n_layers, dtype=torch.bool)
            for row, e in enumerate(bucket):
                for source, layers in enumerate(missing(e)):
                    joins[source, row, layers] = True
            swept = runner.score(bucket, fetched, joins)
            for rows, new in zip(waiting, _entries(bucket, swept, joins, own), strict=True):
                rows += new
            if time.monotonic() - written >= KEPT_EVERY:
                _write(own, waiting)
                written = time.monotonic()
            n_done += len(bucket)
            progress(Progress(what, n_done, len(encoded)))
    finally:
        _write(own, waiting)


def _write(
    caches: Sequence[ScoreCache], waiting: Sequence[list[tuple[Encoded, ScoreEntry]]]
) -> None:
    for cache, rows in zip(caches, waiting, strict=True):
        new = rows[:]
        rows.clear()
        cache.add(new)


def _ahead(
    runner: Runner, streams: Sequence[CachedSource], batches: Sequence[list[Encoded]]
) -> Iterator[tuple[list[Encoded], Fetched]]:
    """Each batch with what it needs, which is read while the one before it is computed."""
    with ThreadPoolExecutor(max_workers=1) as background:
        following = None
        for at, bucket in enumerate(batches):
            reading = following or background.submit(runner.fetch, bucket, streams)
            if at + 1 < len(batches):
                following = background.submit(runner.fetch, batches[at + 1], streams)
            yield bucket, reading.result()


def _entries(
    bucket: Sequence[Encoded], swept: Swept, joins: Joins, caches: Sequence[ScoreCache]
) -> Iterator[list[tuple[Encoded, ScoreEntry]]]:
    """What is new of each source."""
    baseline, patched = swept.baseline.tolist(), swept.patched.tolist()
    for source, cache in enumerate(caches):
        rows = []
        for at, e in enumerate(bucket):
            here = joins[source, at].nonzero().squeeze(1).tolist()
            if not here and cache.entry(e) is not None:
                continue
            entry = ScoreEntry(baseline[at], {layer: patched[source][at][layer] for layer in here})
            if swept.by_token is not None:
                tokens = swept.by_token[source, at, :, : e.n_span]
                entry.by_token = {layer: tokens[layer].tolist() for layer in here}
            rows.append((e, entry))
        yield rows
