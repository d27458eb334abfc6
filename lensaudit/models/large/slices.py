"""Joint projections of blocks that are brought one by one: their parts, made anew each time."""

from functools import partial
from typing import Any

from torch import Tensor
from transformers.initialization import no_init_weights

from lensaudit.models.large.streaming import Streamed

_SLICED = {"split_qkv_matrix": ("q", "k", "v"), "split_gate_up_matrix": ("gate", "in")}
"""What slices a joint projection in TransformerLens, and the modules that get the slices."""


def follow_slices(bridge: Any, brings: Streamed) -> None:
    """Have joint projections, which TransformerLens slices once, sliced whenever they arrive."""
    for layer, block in enumerate(bridge.blocks):
        for module in block.modules():
            for split, names in _SLICED.items():
                if hasattr(module, split):
                    parts = [getattr(module, name).original_component for name in names]
                    slices = partial(_slices, module, split)
                    brings.follow(layer, [one for part in parts for one in _own(part)], slices)


def _slices(module: Any, split: str) -> list[Tensor]:
    # TransformerLens makes linear layers of them, which draw random weights first
    with no_init_weights():
        parts = getattr(module, split)(module.original_component)
    return [one.data for part in parts for one in _own(part)]


def _own(linear: Any) -> list[Any]:
    return [linear.weight] if linear.bias is None else [linear.weight, linear.bias]
