"""How does a trained model become a checkpoint folder? Safetensors, in a stored precision."""

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

from lensaudit.files import os_error

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "tokenizer.model", "vocab.json", "merges.txt", "generation_config.json",
)  # fmt: skip


def save_model(model: Any, folder: Path, *, dtype: torch.dtype) -> None:
    """Write weights and configuration; `model` is left in `dtype`.

    Raises:
        InputError | TryAgainError | WorkError: by the cause of a failed write.
    """
    transformers.utils.logging.disable_progress_bar()
    try:
        model.to(dtype).save_pretrained(folder)
        for file in folder.glob("*.safetensors"):
            file.chmod(0o644)  # safetensors leaves them private, also in a wheel
    except OSError as error:
        raise os_error(error, folder) from error


def copy_tokenizer(start: Path, folder: Path) -> None:
    """The start model's tokenizer, byte for byte: patching wants the same one in both."""
    for name in TOKENIZER_FILES:
        if (start / name).exists():
            shutil.copyfile(start / name, folder / name)
