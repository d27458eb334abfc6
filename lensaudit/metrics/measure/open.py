"""From a name to a model that can be asked: opened now, loaded when its first pass runs."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

from lensaudit.errors import InputError
from lensaudit.metrics.measure.subject import Subject
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer
from lensaudit.models.registry import load_registry
from lensaudit.patching.prepare import open_named, resolve_device, resolve_dtype


def open_subject(
    name: str, *, registry: Path | None, dtype: str, device: str, attn: str
) -> tuple[Subject, Checkpoint]:
    """A model to ask, with the checkpoint behind it.

    Raises:
        InputError: no such model, or a broken checkpoint.
    """
    device = resolve_device(device)
    dtype = resolve_dtype(dtype, device)
    checkpoint = open_named(name, load_registry(registry))
    # what runs on one GPU of a machine is not another result than on its neighbour
    conditions = {"dtype": dtype, "device": device.partition(":")[0], "attn": attn}
    subject = Subject(
        name, checkpoint.weights, conditions, lambda: _load(checkpoint, dtype, device, attn)
    )
    return subject, checkpoint


def tokenizer_for(checkpoint: Checkpoint, folder: Path | None) -> PreTrainedTokenizerBase:
    """The tokenizer in `folder`, or the checkpoint's own.

    Raises:
        InputError: it cannot be loaded, or has tokens that the model does not.
    """
    if folder is None:
        return load_tokenizer(checkpoint)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; --tokenizer wants one with tokenizer.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, use_fast=True, trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{folder}: the tokenizer cannot be loaded ({reason})") from error
    if len(tokenizer) > checkpoint.d_vocab:
        raise InputError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens, {checkpoint.spec.name} only "
            f"{checkpoint.d_vocab}; it belongs to another model"
        )
    return tokenizer


def _load(checkpoint: Checkpoint, dtype: str, device: str, attn: str) -> Any:
    """The plain Hugging Face model.

    Output-level metrics read nothing inside it, so the bridge's hook points would only cost time.
    """
    logging.disable_progress_bar()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint.folder,
            dtype=getattr(torch, dtype),
            attn_implementation=attn,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{checkpoint.spec.name}: cannot be loaded ({reason})") from error
    return model.to(torch.device(device))
