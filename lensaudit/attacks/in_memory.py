"""A model in memory: its content hash, and the rows of its readout."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def readout_rows(model: Any) -> Float[Tensor, "token d_model"]:
    """The readout of a causal model, a row for each token."""
    return model.get_output_embeddings().weight.detach()


def memory_hash(model: torch.nn.Module) -> str:
    """Content hash of weights and buffers in memory, by name."""
    return f"memory:{hashed(model.state_dict())}"


def hashed(tensors: Mapping[str, Tensor]) -> str:
    """Content hash of tensors, by name."""
    found = hashlib.sha256()
    for name, one in sorted(tensors.items()):
        found.update(f"{name} {one.dtype} {tuple(one.shape)}".encode())
        found.update(one.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
