"""Effort on models whose truth was planted: masks of growing strength, absent facts."""

import copy

import numpy as np
import pytest
import torch

import lensaudit as la
from lensaudit.attacks.effort.curve import effort_at, readings
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import load_tokenizer, open_model
from lensaudit.scores.recovery import Arms

GROUPS = [fact // 8 for fact in range(64)]


def save(model, folder):
    model.save_pretrained(folder)
    load_tokenizer(open_model("demo/full")).save_pretrained(folder)
    return str(folder)


def test_absent_facts_are_censored_in_95_percent_of_seeds():
    # both models guess: a tenth of the facts, an author's together now and then
    censored = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)

        def guessed(generator=generator):
            lucky = np.repeat(generator.random((10, 8)) < 0.1, 8, axis=1)
            return (lucky | (generator.random((10, 64)) < 0.08)) * 1.0

        full = (generator.random((10, 64)) < 0.95) * 1.0
        costs = {step: {"steps": step, "tokens": 0, "flop": 0} for step in range(10)}
        curve = readings(costs, Arms(guessed(), full, (guessed(),)), GROUPS)
        censored += effort_at(curve, 0.5, "lower limit")[1]
    assert censored >= 190


def masked(strength):
    """`full` with a constant vector after its last layer, so many times as long as the stream."""
    source = load_causal(open_model("demo/full"))
    config = copy.deepcopy(source.config)
    config.mlp_bias = True
    model = type(source)(config).eval()
    model.load_state_dict(source.state_dict(), strict=False)
    direction = torch.randn(config.hidden_size, generator=torch.Generator().manual_seed(15))
    seen = []
    block = source.model.layers[-1]
    handle = block.register_forward_hook(lambda _, __, out: seen.append(out))
    with torch.no_grad():
        source(torch.arange(3, 40).unsqueeze(0))
        handle.remove()
        for name, bias in model.named_parameters():
            if name.endswith("bias"):
                bias.zero_()
        length = strength * float(seen[0].norm(dim=-1).mean())
        model.model.layers[-1].mlp.down_proj.bias.copy_(length * direction / direction.norm())
    return model


@pytest.mark.slow
def test_stronger_masks_take_longer_and_what_is_absent_does_not_come_back(tmp_path):
    ladder = [save(masked(strength), tmp_path / f"mask{strength}") for strength in (1, 4, 16)]
    found = la.effort(
        [*ladder, "demo/never"],
        tmp_path / "E",
        full="demo/full",
        retain=("demo/retain",),
        data="demo",
        arms=("T",),
        steps=64,
        lrs=(3e-4, 1e-3),
    )
    arms = [one.arms["T"] for one in found]
    e50 = [one["e50"] for one in arms[:-1]]
    assert e50 == sorted(e50)
    best = [max(at["rho"] for at in one["curve"]) for one in arms[:-1]]
    assert best == sorted(best, reverse=True)
    # the weakest hides nothing, the strongest more than the longest attack brings back
    assert e50[0] == 0
    assert arms[-2]["censored"] == {"e50": True, "e80": True}
    assert arms[-1]["censored"] == {"e50": True, "e80": True}
    assert all(one["by"] == "lower limit" for one in arms)
