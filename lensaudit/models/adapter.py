"""A LoRA adapter on disk: opened and checked before any weight is read."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.models.hashing import adapter_hash
from lensaudit.models.hub import fetch
from lensaudit.models.spec import ModelSpec

CONFIG = "adapter_config.json"
"""Its presence makes a folder an adapter's."""
WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class Adapter:
    """An adapter on disk, opened and checked, not loaded."""

    name: str
    folder: Path
    weights: str
    """Content hash of its matrices and of the settings that give them meaning."""


def open_adapter(spec: ModelSpec) -> Adapter:
    """The LoRA adapter of `spec`, fetched if it is on the Hub.

    Raises:
        InputError: it cannot be fetched, is no LoRA, or its weights are absent or damaged.
    """
    folder = fetch(spec) if spec.local is None else spec.local
    config = read_json(folder / CONFIG)
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise InputError(f"{folder / CONFIG}: peft_type is {kind!r}; only LORA can be merged")
    weights = folder / WEIGHTS
    if not weights.is_file():
        pickled = any(folder.glob("*.bin"))
        hint = "only a pickle, which can run code; " if pickled else ""
        raise InputError(f"{folder}: no {WEIGHTS}; {hint}save the adapter with save_pretrained")
    tensor_names(weights)
    return Adapter(spec.name, folder, adapter_hash(weights, config))


def peft_for(who: str) -> Any:
    """The package that knows adapters; loaded when one is, which takes seconds.

    Raises:
        InputError: it is not installed; names who needs it.
    """
    # it loads bitsandbytes, which complains of a kernel that nothing here asks for
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        import peft
    except ImportError as error:
        raise InputError(
            f"{who}: adapters need the package peft; pip install 'lensaudit[lora]'"
        ) from error
    return peft


def trained_on(folder: Path) -> str:
    """The base model an adapter's file names; shown to the user, never followed."""
    config = read_json(folder / CONFIG)
    named = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    return f" (it names {named[:80]!r})" if isinstance(named, str) and named else ""


def tensor_names(weights: Path) -> set[str]:
    """Names of the tensors in a file, which is checked to be whole."""
    try:
        with safe_open(weights, framework="numpy") as tensors:
            return set(tensors.keys())
    except (SafetensorError, OSError) as error:
        raise InputError(f"{weights}: damaged or not safetensors ({error})") from error
