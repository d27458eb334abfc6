"""How long may a text be that a model is asked for? Longer ones are unscored, with the reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_BY_LENGTH = ("dynamic", "longrope")
"""Rotary embeddings whose frequencies change once the longest text of a batch is long: a row's
score would depend on its neighbours, and a cached stream on the batch that it was cached in."""


@dataclass(frozen=True)
class Context:
    """The positions that a model was made for."""

    n_pos: int | None = None
    """Most tokens of a text; None: there is no limit."""
    fixed: bool = False
    """What is generated has to fit too: positions come from a table, or turn by length."""

    def too_long(self, n_tokens: int, n_new: int = 0) -> str | None:
        """Why a text of so many tokens, and so many generated ones, cannot be scored.

        >>> Context(8).too_long(9)
        "9 tokens, longer than the model's context of 8"
        """
        n_all = n_tokens + n_new * self.fixed
        if self.n_pos is None or n_all <= self.n_pos:
            return None
        new = f" with {n_new} to generate" if n_new and self.fixed else ""
        return f"{n_tokens} tokens{new}, longer than the model's context of {self.n_pos}"


def context_of(config: Any) -> Context:
    """From a transformers configuration; `max_position_embeddings`, or where the rotation turns."""
    config = config.get_text_config()
    n_pos = getattr(config, "max_position_embeddings", None)
    ropes = ropes_of(config)
    turning = [rope for rope in ropes if rope.get("rope_type") in _BY_LENGTH]
    for rope in turning:
        original = rope.get("original_max_position_embeddings")
        n_pos = original or getattr(config, "original_max_position_embeddings", None) or n_pos
    return Context(n_pos, fixed=bool(turning) or not ropes)


def ropes_of(config: Any) -> list[Mapping[str, Any]]:
    """Parameters of the rotary embeddings: one for all layers, or one by kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in parameters:
        return [parameters]
    return [rope for rope in parameters.values() if isinstance(rope, Mapping)]
