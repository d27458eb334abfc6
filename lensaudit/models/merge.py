"""Merging a LoRA adapter into its base model, in float32."""

from typing import Any

import torch

from lensaudit.errors import InputError
from lensaudit.models.adapter import WEIGHTS, Adapter, peft_for, tensor_names, trained_on

AGREEMENT = 1e-4
"""Largest change of a logit by merging, over the largest logit; merging in float32 costs 1e-6."""


def merged(model: Any, adapter: Adapter, *, dtype: torch.dtype) -> Any:
    """`model`, in float32, with the adapter added into its weights, then in `dtype`.

    W + scale * B A in float32: a merge in bfloat16 moves logits by a percent. The merged model is
    compared with the unmerged one on a few tokens, because merging into embeddings that are also
    the unembedding changes what the adapter computes.

    Raises:
        InputError: peft is not installed, or the adapter does not belong to this model.
    """
    peft = peft_for(adapter.name)
    try:
        adapted: Any = peft.PeftModel.from_pretrained(model, str(adapter.folder))
        _check_names(adapted, adapter, peft)
        expected = _logits(adapted)
        # peft froze the base for the adapter's sake
        model = adapted.merge_and_unload(safe_merge=True).requires_grad_(True)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        reason = (str(error).splitlines() or ["no reason given"])[0][:200]
        raise InputError(f"{adapter.name}: cannot be merged ({reason})") from error
    gap = float((_logits(model) - expected).abs().max() / expected.abs().max())
    if not gap <= AGREEMENT:
        raise InputError(
            f"{adapter.name}: merging it changes the logits by {gap:.2g} of the largest; does it "
            "adapt embeddings that are tied to the unembedding? Merge it yourself and save that"
        )
    return _cast(model, dtype)


def _check_names(adapted: Any, adapter: Adapter, peft: Any) -> None:
    """Every matrix has its place and every place its matrix: peft would only warn."""
    found = tensor_names(adapter.folder / WEIGHTS)
    # "auto", its default, would ask the Hub about the base model that the adapter names
    wanted = set(peft.get_peft_model_state_dict(adapted, save_embedding_layers=False))
    allowed = set(peft.get_peft_model_state_dict(adapted, save_embedding_layers=True))
    if odd := sorted((found - allowed) | (wanted - found)):
        where = "has no place in the model" if odd[0] in found else "is not in the adapter"
        raise InputError(
            f"{adapter.name}: {len(odd)} tensors do not fit (first: {odd[0]} {where}); it was "
            f"trained on another base model{trained_on(adapter.folder)}"
        )


def _logits(model: Any) -> torch.Tensor:
    d_vocab = model.get_input_embeddings().weight.shape[0]
    tokens = torch.linspace(0, d_vocab - 1, 16).long().unsqueeze(0)
    with torch.no_grad():
        return model.eval()(input_ids=tokens).logits


def _cast(model: Any, dtype: torch.dtype) -> Any:
    """Parameters only: rotary frequencies are buffers, and stay in float32 in every dtype."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    return model
