"""A checkpoint as a plain Hugging Face model: what is trained, before any bridge."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers

from lensaudit.errors import InputError
from lensaudit.models.checkpoint import HARMLESS, UNLOADABLE, Checkpoint, first_line
from lensaudit.models.device import one_memory_error
from lensaudit.models.fitting import check_fits, where_spread
from lensaudit.models.merge import merged
from lensaudit.models.packed import weights_of
from lensaudit.models.placement import Placement, needs_of
from lensaudit.models.streaming import first_block_alone, load_placed

NOT_CAUSAL: Mapping[torch.dtype, float] = {torch.float32: 1e-3}
"""Change of a logit by a later token, over the largest one, that is no rounding. One batch has one
kernel, so a causal model's is 0, but for experts, whose batches are the tokens that choose them."""
NOT_CAUSAL_HALF = 0.05


def load_causal(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    attn: str = "sdpa",
    spread: int | None = None,
) -> Any:
    """The model in eval mode: safetensors only, no remote code, nothing fetched.

    An adapter is merged in float32 before the model takes its dtype.

    Args:
        checkpoint: an opened checkpoint.
        dtype: of weights and activations.
        device: `cpu`, `cuda`, `cuda:1` …
        attn: transformers' attention.
        spread: where the model does not fit the device, its blocks lie elsewhere and are brought
            one by one, and so many bytes are left for activations; None: it is refused.

    Raises:
        InputError: the device is absent or too small, or the folder is not a whole causal language
            model: tensors are missing, of another shape, or without a place in the configuration.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device {device}: no CUDA device is available; use --device cpu")
    transformers.utils.logging.disable_progress_bar()
    placement = where_spread(checkpoint, dtype=dtype, device=device, spread=spread)
    if placement is not None and (placement.way != "whole" or checkpoint.packed):
        return _spread(checkpoint, placement, dtype=dtype, attn=attn)
    if placement is None and checkpoint.packed:
        check_fits(checkpoint, dtype=dtype, device=device)
        placement = Placement.whole(device, needs_of(weights_of(checkpoint.folder), dtype))
        return _spread(checkpoint, placement, dtype=dtype, attn=attn)
    return _whole(checkpoint, dtype=dtype, device=device, attn=attn)


def _spread(checkpoint: Checkpoint, placement: Placement, *, dtype: torch.dtype, attn: str) -> Any:
    """A model of which some blocks lie elsewhere than on its device, or that is packed."""
    name = checkpoint.spec.name
    tensors = weights_of(checkpoint.folder)
    try:
        with one_memory_error():
            model, found = load_placed(checkpoint, tensors, placement, dtype=dtype, attn=attn)
    except torch.OutOfMemoryError:
        raise
    except (*UNLOADABLE, RuntimeError, TypeError, AttributeError) as error:
        raise InputError(f"{name}: cannot be loaded ({first_line(error)})") from error
    _check_whole(name, found)
    _check_head(name, model)
    with first_block_alone(model):
        _check_causal(name, model)
    return model


def _whole(checkpoint: Checkpoint, *, dtype: torch.dtype, device: str, attn: str) -> Any:
    first = torch.float32 if checkpoint.adapter else dtype
    check_fits(checkpoint, dtype=first, device=device)
    name = checkpoint.spec.name
    try:
        with one_memory_error():
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
                checkpoint.folder,
                dtype=first,
                attn_implementation=attn,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                # they are refused below, with the tensor's name
                ignore_mismatched_sizes=True,
            )
    except torch.OutOfMemoryError:
        raise
    except (*UNLOADABLE, RuntimeError, ImportError, TypeError, AttributeError) as error:
        raise InputError(f"{name}: cannot be loaded ({first_line(error)})") from error
    model, found = loaded
    _check_whole(name, found)
    if checkpoint.adapter:
        model = merged(model, checkpoint.adapter, dtype=dtype)
    model = model.to(device).eval()
    _check_head(name, model)
    _check_causal(name, model)
    return model


def _check_whole(name: str, found: Mapping[str, Any]) -> None:
    """Every tensor has its place and every place its tensor: transformers would only warn.

    A tensor that is missing or of another shape is filled at random, one too many is dropped.
    """
    if shapes := sorted(found["mismatched_keys"]):
        tensor, stored, wanted = shapes[0]
        raise InputError(
            f"{name}: {tensor} is stored as {_shape(stored)}, its configuration wants "
            f"{_shape(wanted)} ({len(shapes)} tensors of another shape); fetch or save the "
            "checkpoint again"
        )
    if found["missing_keys"]:
        raise InputError(
            f"{name}: the weights lack {len(found['missing_keys'])} tensors of its architecture "
            f"(first {min(found['missing_keys'])}); fetch or save the checkpoint again"
        )
    if extra := [key for key in found["unexpected_keys"] if not HARMLESS.search(key)]:
        raise InputError(
            f"{name}: its configuration has no place for {len(extra)} tensors of the weights "
            f"(first {min(extra)}); correct config.json (layers, biases …) or save the "
            "checkpoint again"
        )


def _shape(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))


@torch.no_grad()
def _check_head(name: str, model: Any) -> None:
    """Every row of the head is finite: of one that is not, no cache and no hook has a sign."""
    weight = model.get_output_embeddings().weight
    # sums need no mask of the head's size; those of float16 run over
    bad = (~weight.sum(1, dtype=torch.float32).isfinite()).nonzero().flatten().tolist()
    if bad:
        raise InputError(
            f"{name}: row {bad[0]} of the head holds NaN or infinity ({len(bad)} of "
            f"{len(weight)} rows do); fetch or save the checkpoint again"
        )


@torch.no_grad()
def _check_causal(name: str, model: Any) -> None:
    """A later token changes nothing before it; NaN is another matter, told with its row."""
    d_vocab = model.get_input_embeddings().weight.shape[0]
    tokens = torch.arange(1, 5, device=model.device).repeat(2, 1) % d_vocab
    tokens[1, -1] = 0
    logits = model(input_ids=tokens).logits[:, :-1]
    first, second = logits.float().nan_to_num()
    allowed = NOT_CAUSAL.get(logits.dtype, NOT_CAUSAL_HALF)
    if float((first - second).abs().max()) > allowed * float(first.abs().max()):
        raise InputError(
            f"{name}: {type(model).__name__} reads what comes later (bidirectional); wanted a "
            "decoder-only language model"
        )
