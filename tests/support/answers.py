"""One answer to one question of one set of weights: a third of what the tests do is to ask.

What a model generates, and which log-probabilities and gradients it gives, follows from its
weights, its configuration and the tokens of the batch. A batch that a process of the run asked
before is answered from what was said then, to the last token and bit; where anything hooks the
model or stands for its code, or its weights are not all there, it is asked.
"""

import functools
import hashlib
import os
import pickle
import sys
from pathlib import Path

from support.bridges import has_hooks, parts_of, weights_hash

PASSES = ("generations", "traces", "gradient_norm")


def key_of(model, prompts, more) -> str | None:
    """What a batch's answers depend on; None where that is not known."""
    inner = getattr(model, "original_model", model)
    weights = weights_hash(inner)
    is_own = not type(inner).forward.__module__.startswith("transformers.")
    if weights is None or is_own or model.training or _is_hooked(model):
        return None
    settings = inner.config.to_json_string(), inner.generation_config.to_json_string()
    attention = inner.config._attn_implementation
    parts = (type(inner).__name__, attention, *settings, weights, prompts, more)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _is_hooked(model) -> bool:
    """Does anybody listen to it?"""
    if hasattr(model, "hook_dict"):
        return has_hooks(model)
    return any(one._forward_hooks or one._forward_pre_hooks for one in parts_of(model))


def of_bridge(model, *asked, **how) -> str | None:
    """The key of what `patching.asking` asks."""
    given = [[tuple(ids) for ids in one] for one in asked]
    return key_of(model, given, sorted(how.items()))


def of_pass(model, asked, texts, *more, name=None, **how) -> str | None:
    """The key of what `evaluation.passes` asks: padding, its mask and what has a gradient count."""
    tokenizer = asked.tokenizer
    told = tokenizer.pad_token_id, tokenizer.eos_token_id, asked.mask
    trained = [one.requires_grad for one in model.parameters()]
    return key_of(model, texts, (told, trained, more, *sorted(how.items())))


SHARED = (
    ("lensaudit.patching.asking", "generate", of_bridge),
    ("lensaudit.patching.asking", "as_guessed", of_bridge),
    *(("lensaudit.evaluation.passes", way, of_pass) for way in PASSES),
)
"""Module, its way to ask, and what an answer depends on."""


def share_answers(folder: Path) -> None:
    """From now on, in this process and in those that name the folder."""
    for name, way, key in SHARED:
        module = sys.modules.get(name)
        if module is not None and not hasattr(getattr(module, way), "shared"):
            setattr(module, way, _shared(getattr(module, way), folder, key))


def _shared(said_by, folder: Path, key_for):
    """Of a way to ask, which is asked once for what was asked before."""

    @functools.wraps(said_by)
    def shared(model, *asked, **how):
        key = key_for(model, *asked, **how)
        place = folder / f"{said_by.__name__}-{key}.pickle"
        if key is not None and place.exists():
            return pickle.loads(place.read_bytes())
        said = said_by(model, *asked, **how)
        if key is not None:
            whole = place.with_suffix(f".{os.getpid()}")
            whole.write_bytes(pickle.dumps(said))
            whole.rename(place)
        return said

    shared.shared = True
    return shared
