"""How many bytes does a batch take, and which examples fit into one?

Batches are made from the memory budget, not by luck. A sweep holds the activations of its batch and
of the next one, which is read meanwhile, the rows, and the largest of what attention, the MLP and
the readout take. Each is counted in values, for the very examples of a batch; see `docs/memory.md`.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lensaudit.data.spans import Encoded, patched_range
from lensaudit.errors import InputError
from lensaudit.models.sizes import Sizes, budget_for, planned_bytes, rows_at_once
from lensaudit.patching.options import ResolvedSettings

MAX_BATCH = 64
"""Examples: beyond this a batch gains no speed and an interruption loses more."""

ROW_TOKENS = {"cpu": 2048, "cuda": 16384}
"""Tokens of a batch's rows at which matrix products run at full speed."""

LOGIT_ROWS = 256
"""Rows of logits on a processor, of which products of a large vocabulary run at full speed."""

MAX_STRIPS = 12
"""Orders of the examples that are tried to find the one that pads least."""

MiB = 1 << 20


@dataclass(frozen=True)
class BatchCost:
    """Token counts of an example, or of a batch, that its peak memory follows from."""

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

    def __add__(self, other: "BatchCost") -> "BatchCost":
        return BatchCost(
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
class MemoryBudget:
    """Bytes a batch takes, and the largest batches that fit."""

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
        """Rows of full-vocabulary logits held at once: at most a quarter of the budget.

        They are reduced piece by piece (`scores.depth.label_logprob`), so that more of them are
        made at once than where each is kept in float32.
        """
        most = max(LOGIT_ROWS, rows_at_once(self.sizes.d_vocab, self.settings.device))
        return max(16, min(most, 4096, self.planned // 4 // self._logit_bytes))

    @property
    def _logit_bytes(self) -> int:
        """Bytes of one row's logits: in the model's type, in float32, and inside log-sum-exp.

        A processor reduces pieces that count for nothing; there the others are what a cap makes.
        """
        n, on_processor = self.sizes.n_bytes, self.settings.device == "cpu"
        return self.sizes.d_vocab * (3 * n if on_processor else n + 4 + (4 if n == 2 else 0))

    def cost(self, e: Encoded, n_rows: int) -> BatchCost:
        """The cost of an example with `n_rows` patched rows."""
        first, _ = patched_range(e, self.settings.scope)
        n_span = e.end - first
        return BatchCost(1, len(e.token_ids), first, n_span, n_rows, n_rows * n_span, e.end, n_span)

    def bytes_of(self, cost: BatchCost, *, n_sources: int) -> int:
        """Peak above the weights while a batch is scored."""
        if not self.sweeps:
            return self._oracle_bytes(cost, n_sources)
        s = self.sizes
        width = s.n_heads * s.d_head if self.settings.part == "head" else s.d_model
        patched_in = n_sources * cost.span_tokens * width
        held = 2 * s.n_layers * (cost.clean_tokens * s.d_model + patched_in)
        rows = cost.row_tokens * s.d_model
        hidden = min(cost.row_tokens, self.mlp_rows) * (2 * s.d_ff + 3 * s.d_model)
        at_work = max(self._attention_values(cost), rows + hidden)
        logits = min(cost.row_tokens, self.logit_rows) * self._logit_bytes
        return s.n_bytes * (held + 2 * rows) + max(s.n_bytes * at_work, logits)

    def _attention_values(self, cost: BatchCost) -> int:
        s = self.sizes
        d_query, d_key = s.n_heads * s.d_head, s.n_kv * s.d_head
        packed = cost.row_tokens * (s.d_model + 3 * d_query + 4 * d_key)
        spread = cost.n_examples * cost.n_rows * cost.n_span * (2 * d_query + 2 * d_key)
        keys = cost.n_examples * cost.n_prefix * (4 * d_key + s.d_model)
        # two at a time of: products, joined products, weights; weights are float32 first
        scores = cost.cells * s.n_heads * (2 if s.n_bytes == 4 else 4)
        return packed + spread + keys + scores

    def _oracle_bytes(self, cost: BatchCost, n_sources: int) -> int:
        tokens = cost.n_examples * cost.n_pos
        stacks = 2 * n_sources * self.sizes.residual_bytes(tokens)
        read = cost.span_tokens * self._logit_bytes
        return stacks + self.sizes.run_bytes(cost.n_examples, cost.n_pos, n_logits=tokens) + read

    def check(self, encoded: Sequence[Encoded], *, n_sources: int) -> None:
        """Refuse a budget in which the largest example does not fit.

        Raises:
            InputError: says how much it takes.
        """
        n_rows = n_sources * len(self.settings.at_layers)
        needed = max(self.bytes_of(self.cost(e, n_rows), n_sources=n_sources) for e in encoded)
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
        costs = [(e, self.cost(e, n_rows(e))) for e in ordered]
        found = list(self._cut(costs, n_sources))
        n_strips = range(2, min(len(found), MAX_STRIPS) + 1) if self.sweeps else ()
        others = (list(self._cut(_strips(costs, n), n_sources)) for n in n_strips)
        best = min([found, *others], key=lambda batches: sum(total.cells for _, total in batches))
        return [batch for batch, _ in best]

    def _cut(
        self, costs: Sequence[tuple[Encoded, BatchCost]], n_sources: int
    ) -> Iterator[tuple[list[Encoded], BatchCost]]:
        """Batches in the order given, each with its cost."""
        most = self.settings.batch_size or MAX_BATCH
        tokens = ROW_TOKENS["cuda" if self.settings.device.startswith("cuda") else "cpu"]
        batch: list[Encoded] = []
        total = None
        for e, cost in costs:
            fuller = cost if total is None else total + cost
            too_many = self.settings.batch_size is None and fuller.row_tokens > tokens
            too_large = self.bytes_of(fuller, n_sources=n_sources) > self.planned
            if total is not None and (len(batch) == most or too_many or too_large):
                yield batch, total
                batch, fuller = [], cost
            batch.append(e)
            total = fuller
        if total is not None:
            yield batch, total


def _strips(costs: Sequence[tuple[Encoded, BatchCost]], n: int) -> list[tuple[Encoded, BatchCost]]:
    """Reordered in `n` strips alike in span; within one the order stays."""
    by_span = sorted(range(len(costs)), key=lambda at: costs[at][1].n_span)
    edges = [len(costs) * at // n for at in range(n + 1)]
    return [
        costs[at] for low, high in itertools.pairwise(edges) for at in sorted(by_span[low:high])
    ]
