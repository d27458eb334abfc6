"""S1 and S2 over a data set: which rows are still to compute, in which batches, and resume.

S1 patches `retain` into `full`, S2 a source; the calibration patches `full` into itself. Each is
a source with a score cache, so they share batches, the clean run and one sweep.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.data.spans import Encoded, make_batch
from lensaudit.models.bridge import TransformerBridge, device_of, embedded, unembedded
from lensaudit.models.decoder import Decoder
from lensaudit.patching import oracle
from lensaudit.patching.budget import Room
from lensaudit.patching.layout import Layout, layout_of, on
from lensaudit.patching.options import Engine, Measure, ResolvedSettings
from lensaudit.patching.score_cache import ScoreCache, ScoreEntry, example_hash
from lensaudit.patching.sources import CachedSource, SourceStreams
from lensaudit.patching.wavefront import CleanRun, Stack, Swept, sweep
from lensaudit.progress import Tick
from lensaudit.scores.depth import LabelScore, label_logprob, mean_per_example
from lensaudit.scores.erasure import label_hit

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
    """None: the oracle is used."""
    settings: ResolvedSettings
    room: Room

    @property
    def engine(self) -> Engine:
        """Engine that computes."""
        return "oracle" if self.decoder is None else "sweep"

    def by_oracle(self) -> "Runner":
        """The same, by one hooked pass per layer."""
        return replace(self, decoder=None, room=replace(self.room, sweeps=False))

    @property
    def device(self) -> torch.device:
        """Device of `full`."""
        return device_of(self.full)

    def fetch(self, bucket: Sequence[Encoded], streams: Sequence[SourceStreams]) -> "Fetched":
        """Read what a batch needs; safe to call from another thread for cached sources."""
        layout = layout_of(bucket, self.settings.scope)
        if self.settings.score == "lens" and self.clean is not None:
            own = self.clean.packed(bucket, layout)
            others = (own if one == self.clean else one.packed(bucket, layout) for one in streams)
            return Fetched(layout, None, [own, *others])
        if self.decoder is None or self.clean is None:
            return Fetched(layout, None, [one.padded(bucket) for one in streams])
        clean = self.clean.clean_run(bucket, layout)
        # `full` patched into itself hands over what the clean run holds already
        stacks = [
            clean.span if one == self.clean else one.packed(bucket, layout) for one in streams
        ]
        return Fetched(layout, clean, stacks)

    def score(self, bucket: Sequence[Encoded], fetched: "Fetched", joins: Joins) -> Swept:
        """Span log-probs of the rows in `joins`, nats per token; NaN elsewhere."""
        with torch.inference_mode():
            if self.settings.score == "lens":
                return self._lens(fetched, joins)
            if fetched.clean is None or self.decoder is None:
                return self._oracle(bucket, fetched.stacks, joins)
            return self._sweep(bucket, fetched, joins)

    def _sweep(self, bucket: Sequence[Encoded], fetched: "Fetched", joins: Joins) -> Swept:
        assert fetched.clean is not None
        assert self.decoder is not None
        clean, layout = on(fetched.clean, self.device), fetched.layout
        if self.settings.part != "resid":
            stream = embedded(self.full, make_batch(bucket).tokens.to(self.device))
            span = stream[layout.span_example, layout.span_pos]
            prefix = stream[layout.prefix_example, layout.prefix_pos]
            clean = replace(clean, embedded=span, embedded_prefix=prefix)
        return sweep(
            self.decoder,
            layout,
            clean,
            [stack.to(self.device) for stack in fetched.stacks],
            joins,
            logit_rows=self.room.logit_rows,
            mlp_rows=self.room.mlp_rows,
            component=self.settings.part,
            head=self.settings.head,
            label_score=MEASURES[self.settings.measure],
        )

    def _oracle(self, bucket, stacks: Sequence[Tensor], joins: Joins) -> Swept:
        batch = make_batch(bucket, scope=self.settings.scope).to(self.device)
        scores = torch.full(joins.shape, torch.nan, device=self.device)
        label_score = MEASURES[self.settings.measure]
        for source, stack in enumerate(stacks):
            layers = joins[source].any(0).nonzero().squeeze(1).tolist()
            if layers:
                scores[source][:, layers] = oracle.patched(
                    self.full,
                    stack.to(self.device),
                    batch,
                    layers=layers,
                    component=self.settings.part,
                    head=self.settings.head,
                    label_score=label_score,
                )
        scores = scores.where(joins.to(self.device), torch.nan)
        return Swept(oracle.baseline(self.full, batch, label_score=label_score), scores)

    def _lens(self, fetched: "Fetched", joins: Joins) -> Swept:
        """Read at the layers in `joins`; the baseline is full's own last layer."""
        own, *stacks = fetched.stacks
        layout = fetched.layout
        found = torch.full(joins.shape, torch.nan)
        by_token = torch.full((*joins.shape, layout.width), torch.nan)
        for source, stack in enumerate(stacks):
            for layer in joins[source].any(0).nonzero().squeeze(1).tolist():
                tokens = self._tokens(stack[layer], layout)
                found[source, :, layer] = _span_mean(tokens, layout)
                by_token[source, layout.span_example, layer, layout.span_column] = tokens
        baseline = _span_mean(self._tokens(own[-1], layout), layout)
        return Swept(baseline, found.where(joins, torch.nan), by_token)

    def _tokens(self, stream: Float[Tensor, "token d_model"], layout: Layout) -> Tensor:
        parts = zip(
            stream.split(self.room.logit_rows),
            layout.span_label.split(self.room.logit_rows),
            strict=True,
        )
        scores = [
            label_logprob(
                unembedded(self.full, part.to(self.device).unsqueeze(0))[0], labels.to(self.device)
            )
            for part, labels in parts
        ]
        return torch.cat(scores).cpu()


def _span_mean(tokens: Float[Tensor, " token"], layout: Layout) -> Float[Tensor, " batch"]:
    return mean_per_example(tokens, layout.span_example, layout.n_examples)


@dataclass(frozen=True)
class Fetched:
    """What a batch needs from disk."""

    layout: Layout
    clean: CleanRun | None
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
    streams: Mapping[str, SourceStreams],
    caches: Mapping[str, ScoreCache],
    wanted: Wanted,
    *,
    what: str,
    progress: Tick,
) -> None:
    """Fill the score caches of some sources; an interruption keeps the finished batches.

    The next batch is read while this one is computed. Scores are on disk within `KEPT_EVERY`.
    """
    names = list(streams)

    def n_rows(e: Encoded) -> int:
        return sum(len(caches[name].missing(e, wanted(e, name))) for name in names)

    todo = [e for e in encoded if n_rows(e) or any(caches[n].entry(e) is None for n in names)]
    n_done = len(encoded) - len(todo)
    batches = runner.room.batches(todo, n_rows, n_sources=len(names))
    reading = [streams[name] for name in names]
    with (
        _keeping([caches[name] for name in names]) as record,
        ThreadPoolExecutor(max_workers=1) as background,
    ):
        for bucket, fetched in _ahead(background, runner, reading, batches):
            joins = _joins(bucket, caches, wanted, names, len(runner.full.blocks))
            swept = runner.score(bucket, fetched, joins)
            record(bucket, swept, joins)
            n_done += len(bucket)
            progress(what, n_done, len(encoded))


def _ahead(
    background: ThreadPoolExecutor,
    runner: Runner,
    streams: Sequence[SourceStreams],
    batches: Sequence[list[Encoded]],
) -> Iterator[tuple[list[Encoded], Fetched]]:
    cached = all(isinstance(one, CachedSource) for one in streams)
    ahead = None
    for bucket in [*batches, None]:
        # a live model computes: two threads of it would only take turns
        follows = background.submit(runner.fetch, bucket, streams) if bucket and cached else bucket
        if ahead is not None:
            held, answer = ahead
            yield held, answer.result() if cached else runner.fetch(held, streams)
        ahead = (bucket, follows) if bucket else None


def _joins(bucket, caches, wanted: Wanted, names, n_layers: int) -> Joins:
    joins = torch.zeros(len(names), len(bucket), n_layers, dtype=torch.bool)
    for source, name in enumerate(names):
        for row, e in enumerate(bucket):
            joins[source, row, caches[name].missing(e, wanted(e, name))] = True
    return joins


@contextmanager
def _keeping(
    caches: Sequence[ScoreCache],
) -> Iterator[Callable[[Sequence[Encoded], Swept, Joins], None]]:
    """What keeps the scores of a batch: written every `KEPT_EVERY`, as a write waits for the disk.

    What an error or an interruption leaves is written, too.
    """
    waiting: list[list[tuple[Encoded, ScoreEntry]]] = [[] for _ in caches]
    written = time.monotonic()

    def write() -> None:
        nonlocal written
        for at, cache in enumerate(caches):
            rows, waiting[at] = waiting[at], []
            cache.add(rows)
        written = time.monotonic()

    def record(bucket: Sequence[Encoded], swept: Swept, joins: Joins) -> None:
        for rows, new in zip(waiting, _entries(bucket, swept, joins, caches), strict=True):
            rows += new
        if time.monotonic() - written >= KEPT_EVERY:
            write()

    try:
        yield record
    finally:
        write()


def _entries(
    bucket: Sequence[Encoded], swept: Swept, joins: Joins, caches: Sequence[ScoreCache]
) -> Iterator[list[tuple[Encoded, ScoreEntry]]]:
    """What is new of each source."""
    baseline = swept.baseline.tolist()
    tables = zip(caches, swept.patched.tolist(), joins.tolist(), strict=True)
    for source, (cache, scores, chosen) in enumerate(tables):
        rows = []
        for at, (e, base, row, here) in enumerate(
            zip(bucket, baseline, scores, chosen, strict=True)
        ):
            if not any(here) and cache.entry(e) is not None:
                continue
            entry = ScoreEntry(base, {layer: row[layer] for layer, yes in enumerate(here) if yes})
            if swept.by_token is not None:
                tokens = swept.by_token[source, at, :, : e.n_span]
                entry.by_token = {layer: tokens[layer].tolist() for layer in entry.scores}
            rows.append((e, entry))
        yield rows


def baselines(cache: ScoreCache, encoded: Sequence[Encoded]) -> Float[Tensor, " batch"]:
    """Span log-prob of the unpatched `full`, nats per token."""
    return torch.tensor([cache.known[example_hash(e)].baseline for e in encoded])


def deltas(
    cache: ScoreCache, encoded: Sequence[Encoded], layers: Sequence[int]
) -> Float[Tensor, "batch layer"]:
    """Baseline minus patched, nats per token; NaN where no score was asked for."""
    entries = [cache.known[example_hash(e)] for e in encoded]
    rows = [[entry.delta(at) for at in layers] for entry in entries]
    return torch.tensor(rows, dtype=torch.float64).reshape(len(encoded), len(layers)).float()
