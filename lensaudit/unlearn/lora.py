"""Low-rank adapters in training: put on a model, trained on where it has one, saved by themselves.

What moves is the adapter; the base stays as it is on disk. Hu et al. 2022, arXiv:2106.09685.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.models.adapter import CONFIG, WEIGHTS, peft_for
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.unlearn.state import writing

ALPHA = 2
"""The adapter's output is scaled by alpha / rank with alpha = 2 rank: peft's usual choice."""
FASTER = 10
"""An adapter takes about ten times the rate of full weights, whatever its rank (Schulman et al.
2025, "LoRA Without Regret", thinkingmachines.ai)."""


@dataclass(frozen=True)
class How:
    """Which weights move, and in what the passes are computed."""

    lora: int | None = None
    """Rank of the adapter that moves; None: all weights do."""
    autocast: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """What tells a run by this from others; nothing of what all runs were before."""
        named = {"lora": self.lora, "autocast": self.autocast}
        return {name: value for name, value in named.items() if value}

    @property
    def frozen(self) -> bool:
        """Whether the weights that were loaded stay."""
        return self.lora is not None

    @property
    def held(self) -> str:
        """What is in memory."""
        return "weights" if self.lora else "weights, gradients and moments"

    def rate(self, lr: float) -> float:
        """The learning rate, where `lr` is that of all weights."""
        return lr * FASTER if self.lora else lr


ALL_WEIGHTS = How()


def adapted(model: Any, *, rank: int, seed: int) -> Any:
    """Peft's view of `model` with a new adapter on every matrix of its blocks, put on in place.

    It changes nothing until it is trained: one of its two matrices is 0, `seed` draws the other.

    Raises:
        InputError: peft is not installed.
    """
    peft = peft_for("--lora")
    config = peft.LoraConfig(
        r=rank, lora_alpha=ALPHA * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        return peft.get_peft_model(model, config)


def trainee(start: Checkpoint, how: How, *, seed: int, device: str) -> tuple[Any, Any]:
    """The model that is trained, and peft's view of it where an adapter is.

    An adapter is new, or the model's own, to be trained on.

    Raises:
        InputError: peft is not installed, or the model cannot be loaded.
    """
    if how.lora is None:
        return load_causal(start, device=device), None
    model = load_causal(replace(start, adapter=None), device=device)
    if start.adapter is None:
        return model, adapted(model, rank=how.lora, seed=seed)
    peft = peft_for(start.adapter.name)
    own = peft.PeftModel.from_pretrained(model, str(start.adapter.folder), is_trainable=True)
    return model, own


def check_rank(start: Checkpoint, rank: int | None) -> None:
    """A model's own adapter is trained on as it is.

    Raises:
        InputError: it has another rank.
    """
    if rank is None or start.adapter is None:
        return
    config = read_json(start.adapter.folder / CONFIG)
    found = config.get("r") if isinstance(config, dict) else None
    if found != rank:
        raise InputError(
            f"--lora {rank}: {start.spec.name} has an adapter of rank {found}, which is trained "
            f"on; give --lora {found}"
        )


def base_name(start: Checkpoint) -> str:
    """What the model is called that an adapter is for."""
    name = start.spec.name
    return name if start.adapter is None else name.removesuffix(f"+{start.adapter.name}")


def save_adapter(wrapped: Any, start: Checkpoint, folder: Path, *, dtype: torch.dtype) -> None:
    """Write the adapter's matrices and settings, and nothing of its base.

    Raises:
        InputError | TryAgainError | WorkError: by the cause of a failed write.
    """
    peft = peft_for("--lora")
    matrices = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    config = replace(
        wrapped.peft_config["default"],
        base_model_name_or_path=base_name(start),
        inference_mode=True,
    )
    with writing(folder):
        save_file(
            {name: one.detach().to("cpu", dtype).contiguous() for name, one in matrices.items()},
            folder / WEIGHTS,
            metadata={"format": "pt"},
        )
        config.save_pretrained(folder)
        (folder / WEIGHTS).chmod(0o644)  # safetensors leaves it private
