"""A model to ask, opened now and loaded when its first pass runs, and what comes back of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from lensaudit.data.chat import Cleanup
from lensaudit.errors import InputError
from lensaudit.evaluation.generate import Classifier
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import (
    Checkpoint,
    load_tokenizer,
    obeyed,
    open_model,
)
from lensaudit.models.conditions import Conditions, conditions_of
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.large.placement import where_spread
from lensaudit.models.sizes import Sizes, sizes_on_disk


@dataclass
class Subject:
    """A model to ask: what decides its numbers, and the weights once they are needed."""

    name: str
    conditions: Conditions
    """What a pass depends on beside texts. Batches are not part of a pass's key: a run that did
    not fit into memory goes on with smaller ones, and finds its finished passes."""
    open: Callable[[], Any]
    obeyed: Mapping[str, Any] = field(default_factory=dict)
    """What its generation configuration changes about a greedy continuation; part of its key."""
    in_blocks: bool = False
    """It does not fit, and is brought block by block: there are no gradients."""
    sizes: Sizes | None = None
    """What tells how many texts fit into memory at once; None: not known."""
    _model: Any = field(default=None, repr=False)

    @property
    def weights(self) -> str:
        """Content hash of the checkpoint."""
        return self.conditions.weights

    @property
    def model(self) -> Any:
        """The model in eval mode, loaded on first use."""
        if self._model is None:
            self._model = self.open().eval()
        return self._model

    def release(self) -> None:
        """Forget the weights; they are loaded again if they are needed again."""
        self._model = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@dataclass(frozen=True)
class PassOptions:
    """How passes are run."""

    batch_size: int | None = None
    """None: as large as fits, from `AUTO_BATCH` down."""
    memory_bytes: int = 2 << 30
    """Above the weights; batches that nobody named follow from it."""
    max_new_tokens: int | None = None
    """None: what the split says."""
    cleanup: Cleanup = "upstream"
    classifier: Classifier | None = None
    classifier_tokens: int = 32


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
    checkpoint = open_model(name, registry, allow_packed=True)

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
