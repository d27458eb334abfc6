"""S1 and S2 over a data set: which rows are still to compute, in which batches, and resume.

S1 patches `retain` into `full`, S2 a source; the calibration patches `full` into itself. Each is
a source with a score cache, so they share batches, the clean run and one sweep.

Batches are made from the memory budget, not by luck. A sweep holds the activations of its batch and
of the next one, which is read meanwhile, the rows, and the largest of what attention, the MLP and
the readout take. Each is counted in values, for the very examples of a batch; see `docs/engine.md`.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.data.spans import Encoded, make_batch, patched_range
from lensaudit.errors import InputError
from lensaudit.models.bridge import TransformerBridge, device_of, embedded, unembedded
from lensaudit.models.decoder import Decoder
from lensaudit.models.sizes import Sizes, budget_for, planned_bytes, rows_at_once
from lensaudit.patching import oracle
from lensaudit.patching.layout import Layout, layout_of
from lensaudit.patching.options import Engine, Measure, ResolvedSettings
from lensaudit.patching.score_cache import ScoreCache, ScoreEntry, example_hash
from lensaudit.patching.sources import CachedSource
from lensaudit.patching.wavefront import CleanRun, Stack, Swept, sweep
from lensaudit.progress import Progress, Tell
from lensaudit.scores.depth import LabelScore, label_hit, label_logprob, mean_per_example

Joins = Bool[Tensor, "source batch layer"]
KEPT_EVERY = 1.0
"""Seconds of computing that a kill may lose."""

MEASURES: Mapping[Measure, LabelScore] = {"logprob": label_logprob, "hit": label_hit}


MAX_BATCH = 64
"""Examples: beyond this a batch gains no speed and an interruption loses more."""

ROW_TOKENS = {"cpu": 2048, "cuda": 16384}
"""Tokens of a batch's rows at which matrix products run at full speed."""

MAX_STRIPS = 12
"""Orders of the examples that are tried to find the one that pads least."""

MiB = 1 << 20


@dataclass(frozen=True)
class Load:
    """What an example, or a batch of them, brings: sums, and the largest of what is padded."""

    n_examples: int
    n_pos: int
    """Longest sequence."""
    n_prefix: int
    """Longest prefix."""
    n_span: int
    """Most tokens per row."""
    n_rows: int
    """Most rows of one example."""
    row_tokens: int
    """Tokens of all rows."""
    clean_tokens: int
    """Tokens up to the last that is read."""
    span_tokens: int

    def __add__(self, other: "Load") -> "Load":
        return Load(
            self.n_examples + other.n_examples,
            max(self.n_pos, other.n_pos),
            max(self.n_prefix, other.n_prefix),
            max(self.n_span, other.n_span),
            max(self.n_rows, other.n_rows),
            self.row_tokens + other.row_tokens,
            self.clean_tokens + other.clean_tokens,
            self.span_tokens + other.span_tokens,
        )

    @property
    def cells(self) -> int:
        """(query, key) pairs per head on the rectangle that attention lays the rows on."""
        return self.n_examples * self.n_rows * self.n_span * (self.n_prefix + self.n_span)


@dataclass(frozen=True)
class Room:
    """Sizes of the model, the budget, and how rows are scored."""

    sizes: Sizes
    settings: ResolvedSettings
    sweeps: bool
    """By the sweep; else by one hooked pass per layer."""

    @property
    def planned(self) -> int:
        """Bytes that batches are planned for."""
        return planned_bytes(self.settings.memory_bytes)

    @property
    def mlp_rows(self) -> int:
        """Tokens per MLP call: an eighth of the budget for its hidden layer."""
        per_row = self.sizes.n_bytes * (2 * self.sizes.d_ff + 3 * self.sizes.d_model)
        return max(32, min(2048, self.planned // 8 // per_row))

    @property
    def logit_rows(self) -> int:
        """Rows of full-vocabulary logits held at once: at most a quarter of the budget."""
        most = rows_at_once(self.sizes.d_vocab, self.settings.device)
        return max(16, min(most, 4096, self.planned // 4 // self._logit_bytes))

    @property
    def _logit_bytes(self) -> int:
        """Of one row: in the model's type, widened to float32, and once inside log-sum-exp."""
        widened = 0 if self.sizes.n_bytes == 4 else 4
        return self.sizes.d_vocab * (self.sizes.n_bytes + widened + 4)

    def load(self, e: Encoded, n_rows: int) -> Load:
        """What an example with `n_rows` patched rows brings."""
        first, _ = patched_range(e, self.settings.scope)
        n_span = e.end - first
        return Load(1, len(e.token_ids), first, n_span, n_rows, n_rows * n_span, e.end, n_span)

    def bytes_of(self, load: Load, *, n_sources: int) -> int:
        """Peak above the weights while a batch is scored."""
        if not self.sweeps:
            return self._oracle_bytes(load, n_sources)
        s = self.sizes
        width = s.n_heads * s.d_head if self.settings.part == "head" else s.d_model
        patched_in = n_sources * load.span_tokens * width
        held = 2 * s.n_layers * (load.clean_tokens * s.d_model + patched_in)
        rows = load.row_tokens * s.d_model
        hidden = min(load.row_tokens, self.mlp_rows) * (2 * s.d_ff + 3 * s.d_model)
        at_work = max(self._attention_values(load), rows + hidden)
        logits = min(load.row_tokens, self.logit_rows) * self._logit_bytes
        return s.n_bytes * (held + 2 * rows) + max(s.n_bytes * at_work, logits)

    def _attention_values(self, load: Load) -> int:
        s = self.sizes
        d_query, d_key = s.n_heads * s.d_head, s.n_kv * s.d_head
        packed = load.row_tokens * (s.d_model + 3 * d_query + 4 * d_key)
        spread = load.n_examples * load.n_rows * load.n_span * (2 * d_query + 2 * d_key)
        keys = load.n_examples * load.n_prefix * (4 * d_key + s.d_model)
        # two at a time of: products, joined products, weights; weights are float32 first
        scores = load.cells * s.n_heads * (2 if s.n_bytes == 4 else 4)
        return packed + spread + keys + scores

    def _oracle_bytes(self, load: Load, n_sources: int) -> int:
        tokens = load.n_examples * load.n_pos
        stacks = 2 * n_sources * self.sizes.residual_bytes(tokens)
        read = load.span_tokens * self._logit_bytes
        return stacks + self.sizes.run_bytes(load.n_examples, load.n_pos, n_logits=tokens) + read

    def check(self, encoded: Sequence[Encoded], *, n_sources: int) -> None:
        """Refuse a budget in which the largest example does not fit.

        Raises:
            InputError: says how much it takes.
        """
        n_rows = n_sources * len(self.settings.at_layers)
        loads = [self.load(e, n_rows) for e in encoded]
        needed = max(self.bytes_of(load, n_sources=n_sources) for load in loads)
        if needed > self.planned:
            raise InputError(
                f"--memory {self.settings.memory_bytes // MiB}M: one example of this model takes "
                f"{needed // MiB}M above the weights; "
                f"use --memory {budget_for(needed) // MiB}M"
            )

    def batches(
        self, todo: Sequence[Encoded], n_rows: Callable[[Encoded], int], *, n_sources: int
    ) -> list[list[Encoded]]:
        """Groups of examples alike in span and length, as many as fit.

        A hooked pass pays its longest sequence in everything; a sweep pays its longest prefix
        times its widest span, in attention alone. So examples are cut into strips alike in span,
        each sorted by length, with the number of strips that pads least.
        """
        ordered = sorted(todo, key=lambda e: (e.end, len(e.token_ids), e.idx))
        loads = [(e, self.load(e, n_rows(e))) for e in ordered]
        found = list(self._cut(loads, n_sources))
        n_strips = range(2, min(len(found), MAX_STRIPS) + 1) if self.sweeps else ()
        others = (list(self._cut(_strips(loads, n), n_sources)) for n in n_strips)
        best = min([found, *others], key=lambda batches: sum(total.cells for _, total in batches))
        return [batch for batch, _ in best]

    def _cut(
        self, loads: Sequence[tuple[Encoded, Load]], n_sources: int
    ) -> Iterator[tuple[list[Encoded], Load]]:
        """Batches, with what each brings, in the order given."""
        most = self.settings.batch_size or MAX_BATCH
        tokens = ROW_TOKENS["cuda" if self.settings.device.startswith("cuda") else "cpu"]
        batch: list[Encoded] = []
        total = None
        for e, load in loads:
            fuller = load if total is None else total + load
            too_many = self.settings.batch_size is None and fuller.row_tokens > tokens
            too_large = self.bytes_of(fuller, n_sources=n_sources) > self.planned
            if total is not None and (len(batch) == most or too_many or too_large):
                yield batch, total
                batch, fuller = [], load
            batch.append(e)
            total = fuller
        if total is not None:
            yield batch, total


def _strips(loads: Sequence[tuple[Encoded, Load]], n: int) -> list[tuple[Encoded, Load]]:
    """Reordered in `n` strips alike in span; within one the order stays."""
    by_span = sorted(range(len(loads)), key=lambda at: loads[at][1].n_span)
    edges = [len(loads) * at // n for at in range(n + 1)]
    return [
        loads[at] for low, high in itertools.pairwise(edges) for at in sorted(by_span[low:high])
    ]


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
    room: Room

    @property
    def engine(self) -> Engine:
        """Engine that computes."""
        return "oracle" if self.decoder is None else "sweep"

    def by_oracle(self) -> "Runner":
        """The same, by one hooked pass per layer."""
        return replace(self, clean=None, decoder=None, room=replace(self.room, sweeps=False))

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
            span = stream[layout.span_example, layout.span_pos]
            prefix = stream[layout.prefix_example, layout.prefix_pos]
            clean = replace(clean, embedded=span, embedded_prefix=prefix)
        return sweep(
            *(decoder, layout, clean, [stack.to(device) for stack in fetched.stacks], joins),
            logit_rows=self.room.logit_rows,
            mlp_rows=self.room.mlp_rows,
            component=settings.part,
            head=settings.head,
            label_score=MEASURES[settings.measure],
        )

    def _oracle(self, bucket, stacks: Sequence[Tensor], joins: Joins) -> Swept:
        device, measured = device_of(self.full), MEASURES[self.settings.measure]
        batch = make_batch(bucket, scope=self.settings.scope).to(device)
        scores = torch.full(joins.shape, torch.nan, device=device)
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
        layout, device, at_once = fetched.layout, device_of(self.full), self.room.logit_rows

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

        found = torch.full(joins.shape, torch.nan)
        by_token = torch.full((*joins.shape, layout.width), torch.nan)
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
    batches = runner.room.batches(todo, n_rows, n_sources=len(own))
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
        reading = [background.submit(runner.fetch, one, streams) for one in batches[:1]]
        for at, bucket in enumerate(batches):
            after = batches[at + 1 : at + 2]
            reading += [background.submit(runner.fetch, one, streams) for one in after]
            yield bucket, reading.pop(0).result()


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
