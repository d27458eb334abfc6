"""A model in memory: its content hash, and the rows of its readout."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.text import digest

_NO_PART = frozenset(
    {"_name_or_path", "_commit_hash", "architectures", "dtype", "transformers_version"}
)
"""Entries of a configuration that move no number: names, versions, what the weights say."""


def readout_rows(model: Any) -> Float[Tensor, "token d_model"]:
    """The readout of a causal model, a row for each token."""
    return model.get_output_embeddings().weight.detach()


def memory_hash(model: torch.nn.Module) -> str:
    """Content hash of weights and buffers in memory, by name."""
    return f"memory:{_hashed(model.state_dict())}"


def computing_hash(model: Any) -> str:
    """Content hash of all that decides what a Hugging Face model in eval mode computes.

    Besides the weights: configuration, buffers that no checkpoint holds (rotary frequencies), and
    which adapters act, how strongly.
    """
    config = json.loads(model.config.to_json_string(use_diff=False), object_hook=_deciding)
    adapters = [
        f"{name} {one.active_adapters} {one.disable_adapters} {one.merged_adapters} "
        f"{getattr(one, 'scaling', None)}"
        for name, one in model.named_modules()
        if hasattr(type(one), "merged_adapters")  # a layer of PEFT; a wrapper has what it wraps
    ]
    constants = _hashed(dict(model.named_buffers()))
    how = json.dumps([type(model).__name__, config, adapters, constants], sort_keys=True)
    return f"memory:{digest([memory_hash(model), how])}"


def _deciding(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in _NO_PART}


def _hashed(tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name, one in sorted(tensors.items()):
        found.update(f"{name} {one.dtype} {tuple(one.shape)}".encode())
        found.update(one.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
