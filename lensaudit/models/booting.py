"""The only importer of TransformerLens, and that only where a model is made: a bridge on it.

What TransformerLens does slowly, or over the network, is left out.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge as TransformerBridge
from transformer_lens.model_bridge import transformer_bridge as _building
from transformer_lens.model_bridge.generalized_components.base import alias_generation
from transformer_lens.model_bridge.sources.transformers import source as _source

from lensaudit.models.checkpoint import loading
from lensaudit.models.device import one_memory_error
from lensaudit.models.large.slices import follow_slices
from lensaudit.models.large.streaming import streamed
from lensaudit.models.linear import LOOPED, Widened
from lensaudit.models.wrappers import SAME_BITS, unheard_left_out
from lensaudit.types import Tokens

_ONE_AT_A_TIME = threading.Lock()
"""Threads bridge their models in turn: `_booting` exchanges what all of them use."""
_FEWEST_TOKENS = 64
"""Of a pass, from which attention by loops takes longer than to look at every call of PyTorch."""


_TURNS = WeakKeyDictionary[Any, Any]()
"""Bridge -> lock of its passes. Outside the bridge: a lock cannot be copied."""


def _turn(bridge: Any) -> Any:
    """The lock under which a bridge runs: a pass of another thread needs its wrappers in place."""
    return _TURNS.setdefault(bridge, threading.RLock())


class _Bridge(TransformerBridge):
    """A bridge that runs without the wrappers that no hook uses, and without loops."""

    def forward(self, input: Any, *args: Any, **options: Any) -> Any:
        """As that of any bridge; what stops at a block, or begins there, needs all wrappers."""
        whole = (
            any(options.get(name) is not None for name in ("start_at_layer", "stop_at_layer"))
            or self.compatibility_mode
            or self._weights_processed
            or self._has_apart
        )
        weight = next(self.original_model.parameters())
        is_long = isinstance(input, Tensor) and input.numel() >= _FEWEST_TOKENS
        looped = is_long and weight.is_cpu and weight.dtype in LOOPED
        with (
            _turn(self),
            contextlib.nullcontext() if whole else unheard_left_out(self),
            Widened() if looped else contextlib.nullcontext(),
        ):
            return super().forward(input, *args, **options)

    @property
    def _has_apart(self) -> bool:
        """Whether wrappers may compute with other weights than the modules under them.

        TransformerLens copies a fused query, key and value (GPT-NeoX): what is trained or edited
        there is not changed below, nor the other way round.
        """
        watched: dict[Any, int] = vars(self)["_watched"]
        return bool(watched) and (
            torch.is_grad_enabled() or any(one._version != at for one, at in watched.items())
        )

    @property
    def hook_dict(self) -> dict[str, Any]:
        """As that of any bridge; the points of its names are looked for once."""
        key = len(self._hook_registry), alias_generation()
        known = vars(self).get("_points_by_name")
        if known is None or known[0] != key:
            known = vars(self)["_points_by_name"] = key, super().hook_dict
        return dict(known[1])


def booted(model: Any, tokenizer: Any) -> TransformerBridge:
    """See `models.bridge.bridge_from`."""
    model.eval()
    model.config.architectures = model.config.architectures or [type(model).__name__]
    # TransformerLens fetches a tokenizer again, by name, unless it is marked so
    tokenizer.init_kwargs = {"name_or_path": "", **tokenizer.init_kwargs, "add_bos_token": True}
    logging.getLogger("transformer_lens").setLevel(logging.ERROR)
    parameter, own = next(model.parameters()), {*model.parameters()}
    with (
        loading(f"{type(model).__name__}: TransformerLens cannot bridge it"),
        _ONE_AT_A_TIME,
        _booting(),
        one_memory_error(),
    ):
        bridge = TransformerBridge.boot_transformers(
            getattr(model.config, "_name_or_path", "") or "local",
            hf_model=model,
            tokenizer=tokenizer,
            dtype=parameter.dtype,
            device=str(parameter.device),
        )
        if hollow := [
            name
            for name, part in bridge.named_children()
            if getattr(part, "original_component", part) is None
        ]:
            raise LookupError(f"the model has no {hollow[0]}")
    if type(model).__name__ in SAME_BITS:
        bridge.__class__ = _Bridge
        copies = {*bridge.parameters()} - own
        watched = own | copies if copies else ()
        vars(bridge)["_watched"] = {one: one._version for one in watched if not one.is_inference()}
    vars(bridge)["_own_hooks"] = {  # TransformerLens sets some itself, for OPT
        one.name: len(one.fwd_hooks + one.bwd_hooks) for one in bridge.hook_points()
    }
    if brings := streamed(model):
        follow_slices(bridge, brings)
    return bridge


def whole_pass(model: TransformerBridge, tokens: Tokens) -> None:
    """A pass through all wrappers, the blocks' own too."""
    with _turn(model):
        TransformerBridge.forward(
            model, tokens, return_type=None, use_cache=False, logits_to_keep=1
        )


@contextlib.contextmanager
def _booting() -> Iterator[None]:
    """While TransformerLens builds a bridge: what it does for images, or slowly.

    No processor of images: it would ask the network, and install torchvision. It looks for hook
    points among all attributes of each module and of its classes, twice: each module has them
    itself.
    """
    plain = _source.__dict__["load_modality_processor"]
    _source.__dict__["load_modality_processor"] = lambda *args: None
    _building.__dict__["dir"] = _hook_points_in
    try:
        yield
    finally:
        _source.__dict__["load_modality_processor"] = plain
        _building.__dict__.pop("dir", None)


def _hook_points_in(module: Any) -> list[str]:
    """Names of the hook points of a module, in the order of `dir`."""
    held = {**vars(module), **module._modules}
    return sorted(name for name, one in held.items() if isinstance(one, HookPoint))
