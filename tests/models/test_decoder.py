import pytest
import support
import torch

from lensaudit.data.spans import make_batch
from lensaudit.models.bridge import (
    bridge_from,
    embedded,
    logits_of,
    residuals,
    unembedded,
)
from lensaudit.models.decoder import NotSweepable, decoder_of
from lensaudit.models.sizes import sizes_of
from lensaudit.plans.work import flop_of_blocks


@pytest.mark.parametrize("architecture", support.ARCHITECTURES)
def test_readout_and_the_halves_of_a_block_are_the_bridges(tiny_of, ragged, architecture):
    model = tiny_of(architecture)
    decoder, tokens = decoder_of(model), make_batch(ragged).tokens
    stack, _ = residuals(model, tokens)
    read = unembedded(model, stack[:, -1]).flatten(0, 1)
    assert torch.allclose(read, logits_of(model, tokens).flatten(0, 1), atol=1e-4)
    entering = embedded(model, tokens).flatten(0, 1)
    heads, _ = residuals(model, tokens, component="head")
    wanted, block = stack[:, 0].flatten(0, 1), decoder.blocks[0]
    with torch.no_grad():
        assert torch.allclose(decoder.logits(stack[:, -1].flatten(0, 1)), read, atol=1e-5)
        mid = block.after_attention(entering, heads[:, 0].flatten(0, 1).flatten(1))
        whole, parts = (block.after_mlp(mid, entering, chunk) for chunk in (10_000, 3))
        in_place = entering.clone()
        block.after_mlp(mid, in_place, 7, out=in_place)
    for found in (whole, parts, in_place):
        assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("Bloom", {"n_head": 4}), ("Starcoder2", {}), ("GraniteMoe", {"num_local_experts": 2})],
)
def test_other_architectures_are_refused(tiny_tokenizer, kind, changes):
    model = bridge_from(support.tiny_model_of(kind, **changes), tiny_tokenizer)
    with pytest.raises(NotSweepable, match=f"not verified on {kind}"):
        decoder_of(model)


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_a_rotation_that_depends_on_the_sequences_length_is_refused(tiny_tokenizer, rope):
    parameters = {"rope_type": rope, "rope_theta": 10000.0, "factor": 2.0}
    if rope == "longrope":
        parameters |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    changes = {"rope_parameters": parameters, "original_max_position_embeddings": 16}
    model = bridge_from(support.tiny_model_of("Llama", **changes), tiny_tokenizer)
    with pytest.raises(NotSweepable, match=rope):
        decoder_of(model)


def test_sizes_are_read_from_any_configuration(tiny_of):
    sizes = sizes_of(tiny_of("Llama").original_model.config, "bfloat16")
    assert (sizes.n_layers, sizes.d_model, sizes.d_ff, sizes.d_vocab) == (4, 32, 48, 61)
    assert (sizes.n_heads, sizes.n_kv, sizes.d_head, sizes.n_bytes) == (4, 2, 8, 2)
    # one block: q and o 32 x 32, k and v 32 x 16, three of 32 x 48; two operations each
    assert flop_of_blocks(sizes) == 4 * 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
    layered = support.tiny_model_of("Llama").config
    layered.__dict__["intermediate_size"] = [64, 96]  # as Gemma 3n says it, for each layer
    assert sizes_of(layered, "float32").d_ff == 96
    mixtral = sizes_of(support.tiny_model_of("Mixtral").config, "float32")
    assert mixtral.d_ff == 2 * 48  # two experts a token
    kind, changes = support.ARCHITECTURES["Qwen2-MoE"]
    # 2 of 24 and a shared one of 40, where a layer without experts has 48
    assert sizes_of(support.tiny_model_of(kind, **changes).config, "float32").d_ff == 88
    gpt2 = sizes_of(support.tiny_model_of("GPT2", num_key_value_heads=4).config, "float32")
    assert (gpt2.n_layers, gpt2.d_model, gpt2.n_heads, gpt2.d_head) == (4, 32, 4, 8)
