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
    {
        *("_name_or_path", "_commit_hash", "architectures", "dtype", "transformers_version"),
        *("_is_hf_initialized", "_output_capturing_hooks_installed", "name_or_path"),
        *vars(torch.nn.Module()),
    }
)
"""Entries of a configuration or module that move no number, or that are read elsewhere: names,
versions, what the weights say, what was done, where PyTorch keeps weights, submodules, hooks."""


def readout_rows(model: Any) -> Float[Tensor, "token d_model"]:
    """The readout of a causal model, a row for each token."""
    return model.get_output_embeddings().weight.detach()


def memory_hash(model: torch.nn.Module) -> str:
    """Content hash of weights and buffers in memory, by name."""
    return f"memory:{_hashed(model.state_dict())}"


def computing_hash(model: Any) -> str:
    """Content hash of all that decides what a Hugging Face model in eval mode computes.

    Besides the weights: configuration, buffers that no checkpoint holds (rotary frequencies), and
    of each module its type and its attributes that are numbers, texts, tensors, or tuples, lists
    and mappings of numbers and texts, such as which adapters act, how strongly. Not: code.
    """
    config = json.loads(model.config.to_json_string(use_diff=False), object_hook=_deciding)
    modules = dict(model.named_modules())
    held = {
        f"{at} {name}": value
        for at, one in modules.items()
        if not type(one).__module__.startswith("transformer_lens.")  # which note what they did
        for name, value in _deciding(vars(one)).items()
    }
    tensors = {name: one for name, one in held.items() if isinstance(one, Tensor)}
    constants = _hashed(dict(model.named_buffers()) | tensors)
    how = [f"{name} {type(one)}" for name, one in modules.items()]
    how += [f"{name} {one!r}" for name, one in held.items() if _is_plain(one)]
    how += [json.dumps(config, sort_keys=True), constants]
    return f"memory:{digest([memory_hash(model), *how])}"


def _is_plain(value: Any) -> bool:
    """Whether its text says all of it.

    >>> _is_plain((1, "a", [None, {"b": 0.5}])), _is_plain([print])
    (True, False)
    """
    if isinstance(value, dict):
        value = (*value, *value.values())
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | str)


def _deciding(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in _NO_PART}


def _hashed(tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name, one in sorted(tensors.items()):
        found.update(f"{name} {one.dtype} {tuple(one.shape)}".encode())
        found.update(one.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
