"""What does caching add to the forward passes it caches? Part of `python -m benchmarks.store`."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.shapes import (
    cache_batches,
    lengths_of,
    random_examples,
    random_model,
    shape_named,
)
from benchmarks.store_faults import FINGERPRINT
from benchmarks.work import NotMeasured, tokens_read
from lensaudit.activations.fill import fill
from lensaudit.activations.layers import ActivationStore
from lensaudit.data.spans import make_batch
from lensaudit.models.bridge import captured

N_CACHED = 64
"""Two shards, so one is written while the next is computed."""
BATCH = 16


@dataclass(frozen=True)
class Overhead:
    """What caching all positions adds to the forward passes of Llama-3.2-1B's shape.

    Seconds of processor time of all threads: the machine's other work does not count, and writing
    counts in full although it happens beside the next forward pass.
    """

    forward_s: float
    fill_s: float
    n_bytes: int


def overhead(root: Path) -> Overhead:
    """The same batches through the same model, bare and into a cache, in turn."""
    shape = shape_named("llama-1b")
    model = random_model(shape.config)
    encoded = random_examples(N_CACHED, shape.config.vocab_size)
    fingerprint = replace(FINGERPRINT, layers=16, d_model=2048, dtype="float32")

    n_tokens, batches = lengths_of(encoded).total, list(cache_batches(encoded, BATCH))

    def forward(n_batches: int | None = None) -> None:
        for bucket in batches[:n_batches]:
            # one activation, and the logits of one position, as when caching
            captured(model, make_batch(bucket).tokens, ["ln_final.hook_out"])

    forward(1)
    bare, cached, n_bytes = [], [], 0
    for number in range(2):
        store = ActivationStore(root / f"model-{number}", reserve_bytes=0)

        def filled(store: ActivationStore = store) -> None:
            fill(
                store,
                fingerprint,
                encoded,
                name="x",
                load=lambda: model,
                batch_size=BATCH,
            ).close()

        with tokens_read(model) as read:
            bare.append(processor_seconds(forward))
            n_bare = list(read)
            cached.append(processor_seconds(filled))
        if n_bare[0] < n_tokens or read != [2 * n for n in n_bare]:
            raise NotMeasured(f"tokens read: {n_bare} bare, {read} with the cache")
        n_bytes = sum(path.stat().st_size for path in store.root.rglob("*.h5"))
        shutil.rmtree(store.root)
    return Overhead(min(bare), min(cached), n_bytes)


def processor_seconds(run: Callable[[], object]) -> float:
    """Processor seconds of one call, all threads."""
    started = time.process_time()
    run()
    return time.process_time() - started


def overhead_line(found: Overhead) -> str:
    """One sentence."""
    more = 100 * (found.fill_s / found.forward_s - 1)
    return (
        f"Caching all positions of {N_CACHED} examples, Llama-3.2-1B's shape in float32 "
        f"({found.n_bytes / 1e6:.0f} MB): {found.fill_s:.1f} processor seconds; the bare forward "
        f"passes: {found.forward_s:.1f}; {more:+.1f} % (wanted at most +10 %)."
    )
