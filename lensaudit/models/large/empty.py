"""A model before its weights: made without memory, and the type that each of them is loaded in."""

import copy
import re
from typing import Any

import torch
import transformers
from torch.overrides import TorchFunctionMode


def empty_model(config: Any, *, dtype: torch.dtype, **options: Any) -> Any:
    """A causal language model of this configuration whose parameters take no memory."""
    from accelerate import init_empty_weights  # a second to import

    with init_empty_weights(include_buffers=False), _EmptyAtOnce():
        return transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, trust_remote_code=False, **options
        )


class _EmptyAtOnce(TorchFunctionMode):
    """Weights are made without memory, where `init_empty_weights` makes them and lets them go.

    The C library keeps what it was given back, and a limit of the process counts it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func is torch.empty:
            options["device"] = "meta"
        return func(*args, **options)


def dtypes_of(model: Any, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """By name the type that `from_pretrained` loads a tensor in, of a model made in `dtype`.

    A class keeps some in float32: what chooses experts, a few norms (`_keep_in_fp32_modules`). Of
    the others each has the type it was made in (transformers 5.23, `core_model_loading`).
    """
    plan = model._get_dtype_plan(dtype)
    kept = {re.compile(pattern.replace("*", ".*")): own for pattern, own in plan.items()}
    return {
        name: next((own for one, own in kept.items() if one.search(name)), tensor.dtype)
        for name, tensor in model.state_dict().items()
    }


def cast_as_loaded(model: Any, dtype: torch.dtype) -> None:
    """Cast a model in float32 to what it would be if it had been saved and loaded in `dtype`."""
    model.config.dtype = dtype
    if dtype == torch.float32:
        return
    own = dtypes_of(empty_model(copy.deepcopy(model.config), dtype=dtype), dtype)
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensor.data = tensor.data.to(own.get(name, dtype))
