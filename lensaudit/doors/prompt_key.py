"""Key of a model in memory: a content hash of all that decides what it computes."""

import json
from typing import Any

import torch
from torch import Tensor

from lensaudit.attacks.in_memory import hashed, memory_hash
from lensaudit.errors import InputError
from lensaudit.models.bridge import TransformerBridge, user_hooks
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
    constants = hashed(dict(model.named_buffers()) | tensors)
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


def check_hashable(model: TransformerBridge, name: str) -> None:
    """Refuse a model that computes something else than `computing_hash` says.

    Raises:
        InputError: it trains, carries hooks, or has another `forward` than its class.
    """
    hf: Any = model.original_model
    if any(one.training for one in hf.modules()):  # the bridge's own flag may be another
        raise InputError(f"{name}: is in training mode; call model.eval()")
    if hooks := user_hooks(model):
        raise InputError(
            f"{name}: carries hooks ({hooks[0]}); remove them, as its cache is found by what the "
            "model computes without them"
        )
    for at, one in hf.named_modules():
        if "forward" in vars(one) and _package(one.forward) not in LIBRARIES:
            raise InputError(
                f"{name}: {at or 'the model'} has another forward than its class; make it a "
                "module of its own, as its cache is found by types and attributes"
            )


LIBRARIES = ("accelerate", "lensaudit", "peft", "torch", "transformer_lens", "transformers")
"""Packages that give a module another forward, which computes the same."""


def _package(function: Any) -> str:
    """Where a function is written, whatever it says that it wraps.

    >>> _package(torch.nn.Linear.forward)
    'torch'
    """
    inner = getattr(function, "func", function)
    code = getattr(inner, "__func__", inner)
    return getattr(code, "__globals__", {}).get("__name__", "").partition(".")[0]
