"""How many examples fit: batches are made from the memory budget, not by luck.

A sweep holds the activations of its batch and of the next one, which is read meanwhile, the rows,
and the largest of what attention, the MLP and the readout take. Each is counted in values, for the
very examples of a batch; see `docs/engine.md`.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lensaudit.data.spans import Encoded, patched_range
from lensaudit.errors import InputError
from lensaudit.models.sizes import Sizes
from lensaudit.patching.options import PatchOptions

MAX_BATCH = 64
"""Examples: beyond this a batch gains no speed and an interruption loses more."""

ROW_TOKENS = {"cpu": 2048, "cuda": 16384}
"""Tokens of a batch's rows at which matrix products run at full speed."""

SLACK = 0.85
"""Share of the budget that is planned for; allocators and libraries take some of the rest."""

MiB = 1 << 20


@dataclass(frozen=True)
class Load:
    """What an example brings into a batch."""

    example: Encoded
    n_prefix: int
    n_span: int
    """Tokens per row."""
    n_rows: int


@dataclass(frozen=True)
class Room:
    """Sizes of the model, the budget, and how many donors share it."""

    sizes: Sizes
    options: PatchOptions
    sweeps: bool
    """By the sweep; else by one hooked pass per layer."""

    @property
    def planned(self) -> int:
        """Bytes to plan for."""
        return int(SLACK * self.options.memory_bytes)

    @property
    def mlp_rows(self) -> int:
        """Tokens per MLP call: an eighth of the budget for its hidden layer."""
        per_row = self.sizes.n_bytes * (2 * self.sizes.d_ff + 3 * self.sizes.d_model)
        return max(32, min(2048, self.planned // 8 // per_row))

    @property
    def logit_rows(self) -> int:
        """Rows of full-vocabulary logits held at once: a quarter of the budget."""
        return max(16, min(4096, self.planned // 4 // self._logit_bytes))

    @property
    def _logit_bytes(self) -> int:
        """Of one row: in the model's type, widened to float32, and once inside log-sum-exp."""
        widened = 0 if self.sizes.n_bytes == 4 else 4
        return self.sizes.d_vocab * (self.sizes.n_bytes + widened + 4)

    def load(self, e: Encoded, n_rows: int) -> Load:
        """What an example with `n_rows` patched rows brings."""
        first, _ = patched_range(e, self.options.scope)
        return Load(e, first, e.end - first, n_rows)

    def bytes_of(self, loads: Sequence[Load], *, n_donors: int) -> int:
        """Peak above the weights while these examples are scored."""
        if not self.sweeps:
            return self._oracle_bytes(loads, n_donors)
        s = self.sizes
        row_tokens = sum(load.n_rows * load.n_span for load in loads)
        clean = sum(load.example.end for load in loads)
        sources = n_donors * sum(load.n_span for load in loads)
        held = 2 * s.n_layers * (clean + sources) * s.d_model + 2 * row_tokens * s.d_model
        hidden = min(row_tokens, self.mlp_rows) * (2 * s.d_ff + 3 * s.d_model)
        at_work = max(self._attention_values(loads), row_tokens * s.d_model + hidden)
        logits = min(row_tokens, self.logit_rows) * self._logit_bytes
        return self._live_bytes(loads) + s.n_bytes * held + max(s.n_bytes * at_work, logits)

    def _attention_values(self, loads: Sequence[Load]) -> int:
        s = self.sizes
        row_tokens = sum(load.n_rows * load.n_span for load in loads)
        n_prefix = max(load.n_prefix for load in loads)
        width = max(load.n_span for load in loads)
        cells = len(loads) * max(load.n_rows for load in loads) * width
        d_query, d_key = s.n_heads * s.d_head, s.n_kv * s.d_head
        packed = row_tokens * (s.d_model + 3 * d_query + 4 * d_key)
        spread = cells * (2 * d_query + 2 * d_key)
        keys = len(loads) * n_prefix * (2 * d_key + s.d_model + 2 * d_key)
        # two at a time of: products, joined products, weights; weights are float32 first
        scores = cells * s.n_heads * (n_prefix + width) * (2 if s.n_bytes == 4 else 4)
        return packed + spread + keys + scores

    def _oracle_bytes(self, loads: Sequence[Load], n_donors: int) -> int:
        n_pos = max(len(load.example.token_ids) for load in loads)
        tokens = len(loads) * n_pos
        stacks = 2 * n_donors * self.sizes.residual_bytes(tokens)
        read = sum(load.n_span for load in loads) * self._logit_bytes
        run = self.sizes.run_bytes(len(loads), n_pos, n_logits=tokens)
        return self._live_bytes(loads) + stacks + run + read

    def _live_bytes(self, loads: Sequence[Load]) -> int:
        """A component is not cached: the source runs beside `full`."""
        if self.options.component == "resid":
            return 0
        n_pos = max(len(load.example.token_ids) for load in loads)
        tokens = len(loads) * n_pos
        return 3 * self.sizes.residual_bytes(tokens) + self.sizes.run_bytes(
            len(loads), n_pos, n_logits=len(loads)
        )

    def check(self, encoded: Sequence[Encoded], *, n_donors: int) -> None:
        """Refuse a budget in which the largest example does not fit.

        Raises:
            InputError: says how much it takes.
        """
        n_rows = n_donors * len(self.options.layers)
        needed = max(
            self.bytes_of([self.load(e, n_rows)], n_donors=n_donors) for e in encoded
        )  # fmt: skip
        if needed > self.planned:
            raise InputError(
                f"--memory {self.options.memory_bytes // MiB}M: one example of this model takes "
                f"{needed // MiB}M above the weights; "
                f"use --memory {math.ceil(needed / SLACK / MiB)}M"
            )

    def batches(
        self, todo: Sequence[Encoded], n_rows: Callable[[Encoded], int], *, n_donors: int
    ) -> Iterator[list[Encoded]]:
        """Groups of examples alike in span and length, as many as fit."""
        loads = [self.load(e, n_rows(e)) for e in todo]
        most = self.options.batch_size or MAX_BATCH
        tokens = ROW_TOKENS["cuda" if self.options.device.startswith("cuda") else "cpu"]
        batch: list[Load] = []
        for load in self._alike(loads, tokens):
            fuller = [*batch, load]
            n_tokens = sum(one.n_rows * one.n_span for one in fuller)
            too_many = self.options.batch_size is None and n_tokens > tokens
            too_large = self.bytes_of(fuller, n_donors=n_donors) > self.planned
            if batch and (len(batch) == most or too_many or too_large):
                yield [one.example for one in batch]
                fuller = [load]
            batch = fuller
        if batch:
            yield [one.example for one in batch]

    def _alike(self, loads: Sequence[Load], batch_tokens: int) -> list[Load]:
        """Ordered so that neighbours are alike in span, then in length.

        A batch pays its widest span and its longest prefix in attention alone, a hooked pass its
        longest sequence in everything.
        """
        by_length = sorted(loads, key=_length)
        if not self.sweeps:
            return by_length
        n_batches = max(
            sum(load.n_rows * load.n_span for load in loads) / batch_tokens,
            len(loads) / (self.options.batch_size or MAX_BATCH),
        )
        n_strips = max(1, math.isqrt(math.ceil(n_batches)))
        by_span = sorted(loads, key=lambda load: (load.n_span, *_length(load)))
        edges = [len(loads) * at // n_strips for at in range(n_strips + 1)]
        strips = [by_span[low:high] for low, high in itertools.pairwise(edges)]
        return [load for strip in strips for load in sorted(strip, key=_length)]


def _length(load: Load) -> tuple[int, int, int]:
    return load.example.end, len(load.example.token_ids), load.example.idx
