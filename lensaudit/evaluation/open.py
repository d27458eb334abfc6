"""From a name to a model that can be asked: opened now, loaded when its first pass runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lensaudit.errors import InputError
from lensaudit.evaluation.subject import Subject
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_checkpoint
from lensaudit.models.conditions import conditions_of
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.fitting import where_spread
from lensaudit.models.generating import obeyed
from lensaudit.models.registry import load_registry, resolve
from lensaudit.models.sizes import sizes_on_disk


def open_subject(
    name: str, *, registry: Path | None, dtype: str, device: str, attn: str, memory_bytes: int
) -> tuple[Subject, Checkpoint]:
    """A model to ask, with the checkpoint behind it.

    The plain Hugging Face model is loaded, not the bridge: output-level metrics read nothing
    inside it, and the bridge's hook points cost time.

    What `memory_bytes` says is left to activations where blocks are brought one by one.

    Raises:
        InputError: no such model, or a broken checkpoint.
    """
    spread = memory_bytes if device == "auto" else None
    device = resolve_device(device)
    dtype = resolve_dtype(dtype, device)
    checkpoint = open_checkpoint(resolve(name, load_registry(registry)), allow_packed=True)

    def load() -> Any:
        return load_causal(
            checkpoint, dtype=getattr(torch, dtype), device=device, attn=attn, spread=spread
        )

    conditions = conditions_of(checkpoint, dtype=dtype, device=device, attention=attn)
    placement = where_spread(checkpoint, dtype=getattr(torch, dtype), device=device, spread=spread)
    in_blocks = placement is not None and placement.way != "whole"
    sizes = sizes_on_disk(checkpoint, dtype)
    return Subject(name, conditions, load, obeyed(checkpoint), in_blocks, sizes), checkpoint


def tokenizer_for(checkpoint: Checkpoint, folder: Path | None) -> Any:
    """The tokenizer in `folder`, or the checkpoint's own.

    Raises:
        InputError: it cannot be loaded, or has tokens that the model does not.
    """
    if folder is None:
        return load_tokenizer(checkpoint)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; --tokenizer wants one with tokenizer.json")
    named = replace(checkpoint.spec, name=str(folder))
    return load_tokenizer(replace(checkpoint, spec=named, folder=folder))
