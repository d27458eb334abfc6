"""A checkpoint as a plain Hugging Face model, its adapter merged, before any bridge."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers

from lensaudit.errors import InputError
from lensaudit.models.adapter import WEIGHTS, peft_for, trained_on
from lensaudit.models.checkpoint import Checkpoint, config_of, loading
from lensaudit.models.device import one_memory_error
from lensaudit.models.large.empty import cast_as_loaded
from lensaudit.models.large.placement import where_spread, whole_placement
from lensaudit.models.large.streaming import first_block_alone, load_placed
from lensaudit.models.linear import with_fast_layers
from lensaudit.models.memory import left_to_process
from lensaudit.models.weight_files import HARMLESS, header_of

NOT_CAUSAL = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.05}
"""Change of a logit by a later token, over the largest one, that is no rounding. One batch has one
kernel, so a causal model's is 0, but for experts, whose batches are the tokens that choose them."""


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
    name = checkpoint.spec.name
    placement = where_spread(checkpoint, dtype=dtype, device=device, spread=spread)
    # transformers maps a whole file, beside copies of what it casts or puts together
    by_tensor = checkpoint.packed or (checkpoint.adapter is None and any(left_to_process()))
    if by_tensor:
        placement = placement or whole_placement(checkpoint, dtype=dtype, device=device)
    if placement is not None and (placement.way != "whole" or by_tensor):
        with loading(f"{name}: cannot be loaded"), one_memory_error():
            model, found = load_placed(checkpoint, placement, dtype=dtype, attn=attn)
        _check_whole(name, found)
        tried = first_block_alone(model)
    else:
        model = _whole(checkpoint, dtype=dtype, device=device, attn=attn)
        tried = nullcontext()
    model = with_fast_layers(model)
    with loading(f"{name}: cannot be run"), one_memory_error(), tried:
        _check_head(name, model)
        _check_causal(name, model)
    return model


def _whole(checkpoint: Checkpoint, *, dtype: torch.dtype, device: str, attn: str) -> Any:
    first = torch.float32 if checkpoint.adapter else dtype
    whole_placement(checkpoint, dtype=first, device=device)  # refuses what does not fit
    name = checkpoint.spec.name
    with loading(f"{name}: cannot be loaded"), one_memory_error():
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint.folder,
            config=config_of(checkpoint),
            dtype=first,
            attn_implementation=attn,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            # they are refused below, with the tensor's name
            ignore_mismatched_sizes=True,
        )
    model, found = loaded
    _check_whole(name, found)
    if checkpoint.adapter:
        model = merged(model, name, checkpoint.adapter, dtype=dtype)
    return model.to(device).eval()


def _check_whole(name: str, found: Mapping[str, Any]) -> None:
    """Every tensor has its place and every place its tensor: transformers would only warn.

    A tensor that is missing or of another shape is filled at random, one too many is dropped.
    """
    if shapes := sorted(found["mismatched_keys"]):
        tensor, *sizes = shapes[0]
        stored, wanted = (" x ".join(map(str, size)) for size in sizes)
        raise InputError(
            f"{name}: {tensor} is stored as {stored}, its configuration wants {wanted} "
            f"({len(shapes)} tensors of another shape); fetch or save the checkpoint again"
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
    if float((first - second).abs().max()) > NOT_CAUSAL[logits.dtype] * float(first.abs().max()):
        raise InputError(
            f"{name}: {type(model).__name__} has no causal mask, so it reads the tokens that "
            "come later; wanted a decoder-only language model"
        )


AGREEMENT = 1e-4
"""Largest change of a logit by merging, over the largest logit; merging in float32 costs 1e-6."""


def merged(model: Any, name: str, adapter: Path, *, dtype: torch.dtype) -> Any:
    """`model`, in float32, with the adapter added into its weights, then in `dtype`.

    W + scale * B A in float32: a merge in bfloat16 moves logits by a percent. The merged model is
    compared with the unmerged one on a few tokens, because merging into embeddings that are also
    the unembedding changes what the adapter computes.

    Raises:
        InputError: peft is not installed, or the adapter does not belong to this model.
    """
    peft = peft_for(name)
    with loading(f"{name}: cannot be merged{trained_on(adapter)}"):
        adapted: Any = peft.PeftModel.from_pretrained(model, str(adapter))
        check_names(adapted, name, adapter, peft)
        expected = _logits(adapted)
        # peft froze the base for the adapter's sake
        model = adapted.merge_and_unload(safe_merge=True).requires_grad_(True)
    gap = float((_logits(model) - expected).abs().max() / expected.abs().max())
    if not gap <= AGREEMENT:
        raise InputError(
            f"{name}: merging it changes the logits by {gap:.2g} of the largest; does it "
            "adapt embeddings that are tied to the unembedding? Merge it yourself and save that"
        )
    cast_as_loaded(model, dtype)
    return model


def check_names(adapted: Any, name: str, adapter: Path, peft: Any) -> None:
    """Every matrix has its place and every place its matrix: peft would only warn.

    Raises:
        InputError: one has not; the adapter was trained on another model.
    """
    found = header_of(adapter / WEIGHTS).keys()
    # "auto", its default, would ask the Hub about the base model that the adapter names
    wanted = set(peft.get_peft_model_state_dict(adapted, save_embedding_layers=False))
    allowed = set(peft.get_peft_model_state_dict(adapted, save_embedding_layers=True))
    if odd := sorted((found - allowed) | (wanted - found)):
        where = "has no place in the model" if odd[0] in found else "is not in the adapter"
        raise InputError(
            f"{name}: {len(odd)} tensors do not fit (first: {odd[0]} {where}); it was "
            f"trained on another base model{trained_on(adapter)}"
        )


def _logits(model: Any) -> torch.Tensor:
    tokens = torch.arange(16) * (len(model.get_input_embeddings().weight) - 1) // 15
    with torch.no_grad():
        return model.eval()(input_ids=tokens.unsqueeze(0)).logits
