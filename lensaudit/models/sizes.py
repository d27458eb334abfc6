"""How large are a model's tensors, and how long may a text be? What budgets are reckoned from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lensaudit.models.checkpoint import Checkpoint, config_of

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

FIXED_BYTES = 64 << 20
"""What libraries keep for themselves: packed matrices, freed memory not given back."""

LEAST_BUDGET = 256 << 20
"""The smallest that is taken."""

READ_BYTES = {"cpu": 24 << 20, "cuda": 256 << 20}
"""Logits in float32 that are made at once: what an allocator of the host keeps for the next ones,
where larger tensors are given back to the system and paged in anew."""

FEWEST_ROWS = 64
"""Matrix products of fewer rows are slower."""

SLACK = 0.85
"""Share of the rest of a budget that is planned for."""


def planned_bytes(budget: int) -> int:
    """How much of a memory budget tensors may take."""
    return int(SLACK * (budget - FIXED_BYTES))


def rows_at_once(d_vocab: int, device: str) -> int:
    """Positions whose logits are made at once.

    >>> rows_at_once(49152, "cpu"), rows_at_once(128256, "cpu")
    (128, 64)
    """
    n_bytes = READ_BYTES["cuda" if device.startswith("cuda") else "cpu"]
    return max(FEWEST_ROWS, n_bytes // (4 * d_vocab))


def budget_for(n_bytes: int) -> int:
    """The budget in which tensors of `n_bytes` may be planned; whole MiB."""
    return math.ceil((n_bytes / SLACK + FIXED_BYTES) / (1 << 20)) << 20


@dataclass(frozen=True)
class Sizes:
    """Axes of a decoder-only model, and bytes per value."""

    n_layers: int
    d_model: int
    d_ff: int
    """Hidden units of the MLP that one token passes: of experts, those it is sent to."""
    d_vocab: int
    n_heads: int
    n_kv: int
    d_head: int
    d_value: int
    """Width of one head's output, where that is not `d_head`."""
    n_bytes: int

    @property
    def d_heads(self) -> int:
        """All heads' outputs end to end, before the output projection."""
        return self.n_heads * self.d_value

    def run_bytes(self, n_batch: int, n_pos: int, *, n_logits: int) -> int:
        """A forward pass without cached activations, its logits included."""
        tokens = n_batch * n_pos
        block = tokens * (3 * self.d_ff + 8 * self.d_model + 4 * self.n_heads * self.d_head)
        scores = 4 * n_batch * self.n_heads * n_pos * n_pos
        # transformers and the bridge each hold one copy of the logits
        return self.n_bytes * (max(block, scores + tokens * self.d_model * 4)) + (
            2 * n_logits * self.d_vocab * self.n_bytes
        )

    def kept_bytes(self, n_tokens: int) -> int:
        """Keys and values of some tokens in every block, which a generation keeps."""
        return 2 * n_tokens * self.n_layers * self.n_kv * self.d_head * self.n_bytes

    def residual_bytes(self, n_tokens: int) -> int:
        """The residual stream of some tokens after every block, and the final norm's."""
        return n_tokens * (self.n_layers + 1) * self.d_model * self.n_bytes


def sizes_of(config: Any, dtype: str) -> Sizes:
    """From a transformers configuration."""
    config = config.get_text_config()
    n_heads = getattr(config, "num_attention_heads", None) or 1  # a state space model has none
    d_head = getattr(config, "head_dim", None) or config.hidden_size // n_heads
    dense = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    dense = max(dense) if isinstance(dense, list | tuple) else dense  # one for each layer
    n_used = getattr(config, "num_experts_per_tok", None) or 1
    one = getattr(config, "moe_intermediate_size", None) or dense
    shared = getattr(config, "shared_expert_intermediate_size", None) or 0
    return Sizes(
        n_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        d_ff=max(dense, n_used * one + shared),
        d_vocab=config.vocab_size,
        n_heads=n_heads,
        n_kv=getattr(config, "num_key_value_heads", None) or n_heads,
        d_head=d_head,
        d_value=getattr(config, "v_head_dim", None) or d_head,
        n_bytes=BYTES[dtype],
    )


def sizes_on_disk(checkpoint: Checkpoint, dtype: str) -> Sizes:
    """Sizes of a checkpoint that is not loaded."""
    return sizes_of(config_of(checkpoint), dtype)


_BY_LENGTH = ("dynamic", "longrope")
"""Rotary embeddings whose frequencies change once the longest text of a batch is long: a row's
score would depend on its neighbours, and a cached stream on the batch that it was cached in."""


@dataclass(frozen=True)
class ContextWindow:
    """The positions that a model was made for."""

    n_pos: int | None = None
    """Most tokens of a text; None: there is no limit."""
    fixed: bool = False
    """What is generated has to fit too: positions come from a table, or turn by length."""

    def too_long(self, n_tokens: int, n_new: int = 0) -> str | None:
        """Why a text of so many tokens, and so many generated ones, cannot be scored.

        >>> ContextWindow(8).too_long(9)
        "9 tokens, longer than the model's context of 8"
        """
        n_all = n_tokens + n_new * self.fixed
        if self.n_pos is None or n_all <= self.n_pos:
            return None
        new = f" with {n_new} to generate" if n_new and self.fixed else ""
        return f"{n_tokens} tokens{new}, longer than the model's context of {self.n_pos}"


def context_of(config: Any) -> ContextWindow:
    """From a transformers configuration; `max_position_embeddings`, or where the rotation turns."""
    config = config.get_text_config()
    n_pos = getattr(config, "max_position_embeddings", None)
    ropes = ropes_of(config)
    turning = [rope for rope in ropes if rope.get("rope_type") in _BY_LENGTH]
    for rope in turning:
        original = rope.get("original_max_position_embeddings")
        n_pos = original or getattr(config, "original_max_position_embeddings", None) or n_pos
    return ContextWindow(n_pos, fixed=bool(turning) or not ropes)


def ropes_of(config: Any) -> list[Mapping[str, Any]]:
    """Parameters of the rotary embeddings: one for all layers, or one by kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in parameters:
        return [parameters]
    return [rope for rope in parameters.values() if isinstance(rope, Mapping)]
