"""Edits of weights do what they say, are undone exactly, and leave the model they are given."""

import pytest
import torch
from support.llama_helpers import logits, streams

from lensaudit.attacks.quantize import nf4
from lensaudit.gym import edits

TOKENS = [40, 55, 300, 812]


def same_weights(one, other):
    theirs = dict(other.named_parameters())
    return all(torch.equal(weight, theirs[name]) for name, weight in one.named_parameters())


def test_a_turned_model_says_the_same_and_thinks_it_in_another_basis(full, text):
    turn = edits.random_turn(64, seed=0)
    made = edits.turned(full, turn)
    assert torch.allclose(logits(made, text), logits(full, text), atol=1e-3)
    for one, other in zip(streams(full, text), streams(made, text), strict=True):
        assert torch.allclose(one @ turn, other, atol=2e-3)
        assert not torch.allclose(one, other, atol=0.1)
    back = edits.turned(made, turn.T)
    assert torch.allclose(streams(back, text)[9], streams(full, text)[9], atol=2e-3)


def test_a_partial_turn_moves_its_subspace_alone(full, text):
    basis = edits.least_used(full, [text], 8)
    turn = edits.turn_within(basis, seed=1)
    assert torch.allclose(turn @ turn.T, torch.eye(64), atol=1e-5)
    outside = torch.eye(64) - basis @ basis.T
    assert torch.allclose(outside @ turn, outside, atol=1e-5)
    assert not torch.allclose(turn @ basis, basis, atol=0.1)
    assert torch.allclose(logits(edits.turned(full, turn), text), logits(full, text), atol=1e-3)


def test_the_least_used_directions_hold_the_least_of_the_stream(full, text):
    unit = torch.cat([one[0] / one[0].norm(dim=1, keepdim=True) for one in streams(full, text)])
    bases = edits.least_used(full, [text], 8), edits.random_turn(64, seed=2)[:, :8]
    used, drawn = ((unit @ basis).square().sum(1).mean() for basis in bases)
    assert used < drawn / 4


@pytest.mark.parametrize("layer", [8, 15])
def test_a_vector_moves_the_stream_from_its_layer_on_and_is_subtracted(layer, full, text):
    push = 50 * torch.ones(64)
    made = edits.with_vector(full, layer, push)
    before, after = streams(full, text), streams(made, text)
    for one, other in zip(before[:layer], after[:layer], strict=True):
        assert torch.equal(one, other)
    assert torch.allclose(after[layer] - before[layer], push.expand_as(after[layer]), atol=1e-3)
    back = edits.with_vector(made, layer, -push)
    assert torch.allclose(logits(back, text), logits(full, text), atol=1e-4)
    turned = edits.turned(made, edits.random_turn(64, seed=3))  # a bias is turned, too
    assert torch.allclose(logits(turned, text), logits(made, text), atol=1e-3)


def test_a_permuted_readout_moves_the_tokens_and_comes_back(full):
    made = edits.permuted_readout(full, TOKENS)
    assert torch.equal(made.lm_head.weight[55], full.lm_head.weight[40])
    assert torch.equal(made.lm_head.weight[7], full.lm_head.weight[7])
    assert same_weights(edits.permuted_readout(made, TOKENS, by=-1), full)


def test_a_removed_subspace_cannot_be_read_out(full, text):
    basis = edits.read_subspace(full, TOKENS, 3)
    made = edits.without_subspace(full, basis, 14)
    for one, other in zip(streams(full, text)[:14], streams(made, text)[:14], strict=True):
        assert torch.equal(one, other)
    read = made.lm_head.weight.detach() * full.model.norm.weight.detach()
    assert (read @ basis.T).abs().max() < 1e-4
    assert (
        full.lm_head.weight.detach() * full.model.norm.weight.detach() @ basis.T
    ).abs().max() > 1


def test_an_adapter_is_what_training_changed_and_is_taken_out(full):
    trained = edits.noisy(full, share=0.1)
    change = edits.low_rank(trained, full, rank=4)
    name = "model.layers.3.mlp.down_proj.weight"
    assert "lm_head.weight" not in change
    assert torch.linalg.matrix_rank(change[name][0] @ change[name][1]) == 4
    made = edits.with_adapter(full, change)
    back = edits.with_adapter(made, change, sign=-1.0)
    assert torch.allclose(back.get_parameter(name), full.get_parameter(name), atol=1e-6)
    # all ranks: the training itself
    whole = edits.with_adapter(full, edits.low_rank(trained, full, rank=64))
    assert torch.allclose(whole.get_parameter(name), trained.get_parameter(name), atol=1e-5)


def test_weights_within_their_cells_round_to_the_same_bits(full):
    cells = edits.cells_of(full)
    moved = edits.noisy(full, share=0.5)
    name = "model.layers.3.mlp.down_proj.weight"
    assert not torch.equal(nf4(moved.get_parameter(name)), nf4(full.get_parameter(name)))
    edits.clamp_to(moved, cells)
    changed = (moved.get_parameter(name) != full.get_parameter(name)).float().mean()
    assert changed > 0.5
    for one in cells:
        assert torch.equal(nf4(moved.get_parameter(one)), nf4(full.get_parameter(one))), one


def test_the_model_itself_is_never_changed(full, text):
    before = logits(full, text)
    assert torch.allclose(10 * logits(edits.scaled_readout(full, 0.1), text), before, atol=1e-3)
    edits.noisy(full, share=0.1)
    assert torch.equal(logits(full, text), before)


def test_a_model_that_is_not_laid_out_as_llama_is_refused(full):
    from transformers import GPT2Config, GPT2LMHeadModel

    from lensaudit.errors import InputError

    edits.check_layout(full, "x")
    other = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=20))
    with pytest.raises(InputError, match="not laid out as Llama"):
        edits.check_layout(other, "x")
    tied = edits.scaled_readout(full, 1.0)
    tied.lm_head.weight = tied.model.embed_tokens.weight
    with pytest.raises(InputError, match="untied"):
        edits.check_layout(tied, "x")
