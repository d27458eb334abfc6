"""How does a trained model become a checkpoint folder? Safetensors, in a stored precision."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from lensaudit.errors import WorkError
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.results import keyed
from lensaudit.results.records import BEGUN, MANIFEST, Manifest
from lensaudit.unlearn.lora import save_adapter
from lensaudit.unlearn.state import writing

STATE_FOLDER = "training"
"""Inside the output folder, until the run is finished."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)


def save_model(model: Any, folder: Path, *, dtype: torch.dtype) -> None:
    """Write weights and configuration; `model` is left in `dtype`.

    Raises:
        InputError | TryAgainError | WorkError: weights that are not finite, or by the cause of a
            failed write.
    """
    transformers.utils.logging.disable_progress_bar()
    check_weights(model.to(dtype))
    with writing(folder):
        model.save_pretrained(folder)
        for file in folder.glob("*.safetensors"):
            file.chmod(0o644)  # safetensors leaves them private, also in a wheel


def check_weights(model: Any) -> None:
    """Refuse a model with a weight that is NaN or infinite: whatever it says is no answer.

    Raises:
        WorkError: counts such tensors and names the first.
    """
    bad = [name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())]
    if bad:
        raise WorkError(
            f"{len(bad)} weight tensors are not finite (first {bad[0]}), nothing was saved; take "
            "a smaller learning rate"
        )


def copy_tokenizer(start: Path, folder: Path) -> None:
    """The start model's tokenizer, byte for byte: patching wants the same one in both."""
    with writing(folder):
        for name in TOKENIZER_FILES:
            if (start / name).exists():
                shutil.copyfile(start / name, folder / name)


def seal_model(
    model: Any,
    start: Checkpoint,
    out: Path,
    *,
    dtype: torch.dtype,
    key: str,
    record: Callable[[], Manifest],
    wrapped: Any = None,
) -> None:
    """Write weights, tokenizer and, last, the manifest over all files of the folder.

    `wrapped`: peft's view of the model, whose adapter is written and nothing else.
    """
    if wrapped is None:
        save_model(model, out, dtype=dtype)
        copy_tokenizer(start.folder, out)
    else:
        check_weights(model)
        save_adapter(wrapped, start, out, dtype=dtype)
    beside = (MANIFEST, BEGUN)
    files = (p.name for p in out.iterdir() if p.is_file() and p.suffix != ".partial")
    keyed.seal(out, record(), key=key, files=[name for name in files if name not in beside])
    drop_state(out)


def drop_state(out: Path) -> None:
    """Remove what only an unfinished run needs."""
    shutil.rmtree(out / STATE_FOLDER, ignore_errors=True)
