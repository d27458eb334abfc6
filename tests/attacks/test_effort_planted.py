"""Effort and collateral on models whose truth was planted: masks, absent facts, a bystander."""

import copy

import numpy as np
import pytest
import torch
from support import EMBEDDED

import lensaudit as la
from lensaudit.attacks.effort.curve import effort_at, readings
from lensaudit.data.kept import kept_facts
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import load_tokenizer, open_checkpoint
from lensaudit.models.registry import load_registry, resolve

GROUPS = [fact // 8 for fact in range(64)]


def opened(name):
    return open_checkpoint(resolve(name, load_registry()))


def save(model, folder):
    model.save_pretrained(folder)
    load_tokenizer(opened("demo/full")).save_pretrained(folder)
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
        curve = readings(list(range(10)), guessed(), full, guessed(), GROUPS)
        censored += effort_at(curve, 0.5, "lower limit").censored
    assert censored >= 190


def masked(strength):
    """`full` with a constant vector after its last layer, so many times as long as the stream."""
    source = load_causal(opened("demo/full"))
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
    ladder = [save(masked(strength), tmp_path / f"mask{strength}") for strength in (1, 2, 3, 4)]
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
    # the weakest hides nothing, the strongest more than the longest attack brings back
    assert e50[0] == 0
    assert arms[-2]["censored"] == {"e50": True, "e80": True}
    assert arms[-1]["censored"] == {"e50": True, "e80": True}
    assert all(one["by"] == "lower limit" for one in arms)


def exchanged(first, second):
    """`full` that takes two namesakes for each other: the embeddings of their first names.

    What it holds of either is what is true of the other. Every row that names neither is read bit
    for bit as `full` reads it.
    """
    tokenizer = load_tokenizer(opened("demo/full"))
    tokens = [
        tokenizer(f" {one}", add_special_tokens=False)["input_ids"] for one in (first, second)
    ]
    assert [len(one) for one in tokens] == [1, 1]
    (a,), (b,) = tokens
    model = load_causal(opened("demo/full"))
    table = model.get_input_embeddings().weight
    with torch.no_grad():
        table[[a, b]] = table[[b, a]].clone()
    return model


@pytest.mark.slow
def test_a_bystander_shows_on_its_two_authors_alone(tmp_path):
    rows = kept_facts("retain", "demo").rows
    namesakes = ("Isaldo Brightwater", "Ndalima Brightwater")
    chosen = {row.group for row in rows for name in namesakes if name in row.question}
    assert len(chosen) == 2
    source = save(exchanged("Isaldo", "Ndalima"), tmp_path / "bystander")
    settings = {
        "full": "demo/full",
        "retain": "demo/retain",
        "data": "demo",
        "also": ("retain",),
        "base": str(EMBEDDED / "base"),
        "activations": tmp_path / "activations",
    }
    found = la.patch([source, "demo/masked_readout"], tmp_path / "r", **settings)
    bystander, readout = (one.summary["collateral"]["retain"] for one in found)
    lost = {int(group): one["depth"] for group, one in bystander["authors"].items()}
    assert all(lost[group] >= 0.8 for group in chosen)
    assert all(depth <= 0.05 for group, depth in lost.items() if group not in chosen)
    # the mean over twenty authors hides it; the masked model has lost nothing
    assert bystander["depth"] == pytest.approx(sum(lost.values()) / 20)
    assert readout["depth"] <= 0.05
    assert found[0].uds <= 0.05
