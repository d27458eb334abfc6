"""Disguises leave every answer as it is; without what takes them back they do not."""

import torch
from support.llama_helpers import logits, streams

from experiments.aligned import disguises
from lensaudit.gym import edits


def test_one_scale_of_the_whole_stream_is_not_heard_and_several_are(full, text):
    said = logits(full, text)
    for factor in (0.01, 3.0):
        made = disguises.scaled_stream(full, torch.full((64,), factor))
        assert torch.allclose(logits(made, text), said, atol=1e-3)
        assert torch.allclose(streams(made, text)[9] / factor, streams(full, text)[9], atol=1e-3)
    made = disguises.scaled_stream(full, torch.full((64,), 0.01))
    for norm in [one for one in made.modules() if hasattr(one, "variance_epsilon")]:
        norm.variance_epsilon = full.config.rms_norm_eps
    assert (logits(made, text) - said).abs().max() > 0.5
    made = disguises.scaled_stream(full, torch.linspace(0.5, 1.5, 64))
    assert (logits(made, text) - said).abs().max() > 0.5
    signs = torch.ones(64)
    signs[::2] = -1.0
    assert torch.allclose(logits(disguises.scaled_stream(full, signs), text), said, atol=1e-4)


def test_another_basis_in_the_heads_moves_weights_and_no_stream(full, text):
    made = disguises.regauged(full, seed=1)
    for one, other in zip(streams(made, text), streams(full, text), strict=True):
        assert torch.allclose(one, other, atol=1e-4)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        moved = made.get_parameter(f"model.layers.3.self_attn.{name}.weight")
        assert not torch.allclose(
            moved, full.get_parameter(f"model.layers.3.self_attn.{name}.weight"), atol=0.01
        )
    # a gauge of the keys alone is another attention
    made.model.layers[3].self_attn.k_proj.load_state_dict(
        full.model.layers[3].self_attn.k_proj.state_dict()
    )
    assert (logits(made, text) - logits(full, text)).abs().max() > 0.1


def test_layers_in_two_halves_say_the_same_and_are_twice_as_many(full, text):
    made = edits.split_layers(full)
    assert len(made.model.layers) == 32
    assert torch.allclose(logits(made, text), logits(full, text), atol=1e-5)
    for layer in (0, 9):
        assert torch.allclose(streams(made, text)[2 * layer + 1], streams(full, text)[layer])
        assert not torch.allclose(
            streams(made, text)[2 * layer], streams(full, text)[layer], atol=0.01
        )
