"""A LoRA adapter beside a checkpoint, checked before it is loaded."""

import logging
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, need
from lensaudit.models.hashing import (
    adapter_hash,
)
from lensaudit.models.hub_files import fetch
from lensaudit.models.registry import (
    ModelSpec,
)
from lensaudit.models.weight_files import header_of
from lensaudit.results.reading import json_object

CONFIG = "adapter_config.json"
"""Its presence makes a folder an adapter's."""

WEIGHTS = "adapter_model.safetensors"


def open_adapter(spec: ModelSpec) -> tuple[Path, str]:
    """Folder and content hash of the LoRA adapter of `spec`, fetched if it is on the Hub.

    Raises:
        InputError: it cannot be fetched, is no LoRA, or its weights are absent or damaged.
    """
    folder = fetch(spec) if spec.local is None else spec.local
    config = json_object(folder / CONFIG)
    if (kind := config.get("peft_type")) != "LORA":
        raise InputError(f"{folder / CONFIG}: peft_type is {kind!r}; only LORA can be merged")
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise InputError(
            f"{folder}: no {WEIGHTS}; pickles can run code: save the adapter with save_pretrained"
        )
    header_of(weights)
    return folder, adapter_hash(weights, config)


def peft_for(who: str) -> Any:
    """The package that knows adapters; loaded when one is, which takes seconds.

    Raises:
        InputError: it is not installed; names who needs it.
    """
    need("peft", called=f"{who}: peft, which knows adapters,", extra="lora")
    # it loads bitsandbytes, which complains of a kernel that nothing here asks for
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    import peft

    return peft


def trained_on(folder: Path) -> str:
    """The base model an adapter's file names; shown to the user, never followed."""
    named = json_object(folder / CONFIG).get("base_model_name_or_path")
    return f" (it names {named[:80]!r})" if isinstance(named, str) and named else ""
