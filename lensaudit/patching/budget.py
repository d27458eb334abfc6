"""How many examples fit: the batch is chosen from the memory budget, not by luck."""

from collections.abc import Sequence

from lensaudit.data.spans import Encoded, patched_range
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.patching.options import PatchOptions
from lensaudit.patching.wavefront import MLP_CHUNK

MAX_BATCH = 64
"""Beyond this a batch gains no speed and an interruption loses more."""


def logit_rows_for(full: Checkpoint, options: PatchOptions) -> int:
    """Rows of full-vocabulary logits held at once: a quarter of the budget.

    A row is held in the model's type, as float32, and once more inside log-sum-exp.
    """
    return max(16, min(4096, options.memory_bytes // 4 // (full.d_vocab * 12)))


def batch_size_for(
    full: Checkpoint, options: PatchOptions, encoded: Sequence[Encoded], n_sources: int
) -> int:
    """Examples per sweep whose tensors stay within half of the budget."""
    bytes_per_value = 4 if options.dtype == "float32" else 2
    longest = max(encoded, key=lambda e: e.end)
    widest = max(high - low for low, high in (_row(e, options) for e in encoded))
    n_rows = n_sources * len(options.layers)
    clean = full.n_layers * longest.end
    sources = n_sources * full.n_layers * widest
    # the rows themselves, their attention inputs (query, key, value, spread and packed) and output
    rows = n_rows * widest * 10
    heads = max(1, full.d_model // 64)
    scores = 3 * n_rows * widest * longest.end * heads
    per_example = (2 * (clean + sources) + rows) * full.d_model + scores
    # the next batch is read while this one is computed, hence twice clean and sources
    fixed = MLP_CHUNK * full.d_model * 12 * bytes_per_value
    room = max(0, options.memory_bytes // 2 - fixed)
    return max(1, min(MAX_BATCH, room // (per_example * bytes_per_value)))


def _row(encoded: Encoded, options: PatchOptions) -> tuple[int, int]:
    return patched_range(encoded, options.scope)[0], encoded.end
