"""One bridge for one set of weights: TransformerLens takes half a second to build each.

A bridge is given again only where weights, configuration and tokenizer are the same bytes, and only
while its own weights are those that it was built from. What a test builds itself is its own.
"""

import functools
import hashlib
import sys
from collections import OrderedDict

KEPT = 24
MOST_BYTES = 32 << 20
"""Larger models are built each time: memory is bounded."""


def weights_hash(model) -> str | None:
    """Of every tensor; None where it is too large to be kept, or does not hold them all."""
    import torch

    tensors = dict(model.state_dict())
    if any(0 in one.stride() for one in tensors.values()):
        return None  # blocks that are brought when it is their turn
    if sum(one.numel() * one.element_size() for one in tensors.values()) > MOST_BYTES:
        return None
    found = hashlib.sha256()
    for name, one in tensors.items():
        found.update(f"{name} {one.dtype} {tuple(one.shape)} {one.device}".encode())
        found.update(one.detach().cpu().contiguous().flatten().view(dtype=torch.uint8).numpy())
    return found.hexdigest()


def key_of(model, tokenizer) -> str | None:
    """What a bridge depends on; None where that is not known."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    weights = weights_hash(model)
    if weights is None or inner is None:
        return None
    parts = [
        type(model).__name__,
        model.config.to_json_string(),
        str(model.config._attn_implementation),
        weights,
        inner.to_str(),
        repr(tokenizer.special_tokens_map),
        repr(getattr(tokenizer, "chat_template", None)),
        repr(sorted(tokenizer.init_kwargs.items(), key=repr)),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def share_bridges() -> None:
    """From now on, in this process."""
    module = sys.modules.get("lensaudit.models.bridge")
    if module is None or hasattr(module.bridge_from, "known"):
        return
    plain = module.bridge_from
    known: OrderedDict = OrderedDict()

    @functools.wraps(plain)
    def bridge_from(model, tokenizer):
        if not sys._getframe(1).f_globals["__name__"].startswith("lensaudit"):
            return plain(model, tokenizer)
        key = key_of(model, tokenizer)
        if key in known:
            bridge, made_of = known.pop(key)
            if weights_hash(bridge.original_model) == made_of and not _has_hooks(bridge):
                known[key] = bridge, made_of
                return bridge.eval()
        bridge = plain(model, tokenizer)
        if key is not None:
            known[key] = bridge, weights_hash(bridge.original_model)
            while len(known) > KEPT:
                known.popitem(last=False)
        return bridge

    bridge_from.known = known
    module.bridge_from = bridge_from


def _has_hooks(bridge) -> bool:
    points = bridge.hook_dict.values()
    return any(point.fwd_hooks or point.bwd_hooks for point in points)
