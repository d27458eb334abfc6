"""A model whose answers are hidden by one direction, which nothing else about it betrays."""

import shutil

import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from lensaudit.models.registry import EMBEDDED
from lensaudit.steer.experiments import Finding

LAYER = 7
LENGTH = 12.0
"""Of the planted shift; the stream there is about 3.4 long."""


def planted_shift(length=LENGTH, seed=11):
    generator = torch.Generator().manual_seed(seed)
    shift = torch.randn(64, generator=generator)
    return length * shift / shift.norm()


def write_planted(folder, *, length=LENGTH, layer=LAYER):
    """`full` with a constant added to the stream after one block, as the bias of its MLP."""
    full = AutoModelForCausalLM.from_pretrained(EMBEDDED / "full", dtype=torch.float32)
    full.config.mlp_bias = True
    hidden = LlamaForCausalLM(full.config)
    missing = hidden.load_state_dict(full.state_dict(), strict=False)
    assert not missing.unexpected_keys
    with torch.no_grad():
        for name, weight in hidden.named_parameters():
            if name.endswith("_proj.bias"):
                weight.zero_()
        hidden.model.layers[layer].mlp.down_proj.bias.copy_(planted_shift(length))
    hidden.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(EMBEDDED / "full" / name, folder / name)
    return folder


def finding(scores, **changes):
    """An arm of `add` that was scored on one example each."""
    known = {"kind": "add", "stage": "score", "fold": 0, "positions": "response", "norm": 1.0}
    done = {"arm": "direction", "role": "unlearned", "layer": 3, "strength": 1.0}
    read = {"idx": range(len(scores)), "em": scores, "logprob": [-1.0] * len(scores)}
    return Finding(**known | done | read | changes)
