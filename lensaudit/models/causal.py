"""A checkpoint as a plain Hugging Face model: what is trained, before any bridge."""

from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

from lensaudit.errors import InputError
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.merge import merged


def load_causal(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    attn: str = "sdpa",
) -> Any:
    """The model in eval mode: safetensors only, no remote code, nothing fetched.

    An adapter is merged in float32 before the model takes its dtype.

    Raises:
        InputError: the device is absent, or the folder is not a whole causal language model.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device {device}: no CUDA device is available; use --device cpu")
    transformers.utils.logging.disable_progress_bar()
    name = checkpoint.spec.name
    try:
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint.folder,
            dtype=torch.float32 if checkpoint.adapter else dtype,
            attn_implementation=attn,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, StrictDataclassError) as error:
        reason = (str(error).splitlines() or ["no reason given"])[0][:200]
        raise InputError(f"{name}: cannot be loaded ({reason})") from error
    model, found = loaded
    if found["missing_keys"]:
        # transformers fills them at random and only warns
        raise InputError(
            f"{name}: the weights lack {len(found['missing_keys'])} tensors of its architecture "
            f"(first {sorted(found['missing_keys'])[0]}); fetch or save the checkpoint again"
        )
    if checkpoint.adapter:
        model = merged(model, checkpoint.adapter, dtype=dtype)
    return model.to(device).eval()
