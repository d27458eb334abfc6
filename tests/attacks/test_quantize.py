"""Rounding: bitsandbytes' own bits, stored and live; which layers change, by how much."""

import json
from pathlib import Path

import pytest
import torch
from support import tiny_model, tiny_model_of, without
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from lensaudit.attacks.quantize import engine_of, int8, nf4, overall, quantised, quantised_names
from lensaudit.errors import InputError, WorkError


def changed(before, after):
    theirs = dict(after.named_parameters())
    return {name for name, one in before.named_parameters() if not torch.equal(one, theirs[name])}


@pytest.mark.parametrize("method", ["nf4", "int8"])
def test_every_linear_layer_of_the_blocks_is_rounded_and_nothing_else(method):
    model = tiny_model()
    twin, errors = quantised(model, method, engine="torch")
    inside = {name for name, _ in model.named_parameters() if ".layers." in name}
    assert changed(model, twin) == {name for name in inside if "norm" not in name}
    assert {f"{one.name}.weight" for one in errors} == changed(model, twin)
    rounding = {"nf4": nf4, "int8": int8}[method]
    weight = model.model.layers[1].mlp.down_proj.weight
    assert torch.equal(twin.model.layers[1].mlp.down_proj.weight, rounding(weight))


def test_a_readout_that_is_tied_to_the_embedding_stays():
    model = tiny_model(tie_word_embeddings=True)
    twin, _ = quantised(model, "nf4", engine="torch")
    assert twin.lm_head.weight is twin.model.embed_tokens.weight
    assert torch.equal(twin.lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize("kind", ["Qwen2", "Gemma2"])
def test_biases_and_norms_of_other_families_stay(kind):
    model = tiny_model_of(kind)
    names = changed(model, quantised(model, "nf4", engine="torch")[0])
    assert len(names) == 4 * 7
    assert all(name.endswith("_proj.weight") for name in names)


def test_what_a_class_keeps_in_float32_stays():
    """As transformers' quantizer of bitsandbytes leaves it out."""
    sizes = {"hidden_size": 32, "intermediate_size": 16, "moe_intermediate_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 8}
    few = {"num_hidden_layers": 1, "n_routed_experts": 2, "kv_lora_rank": 8, "vocab_size": 40}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("glm_moe_dsa", **sizes, **heads, **few)
    )
    kept = "model.layers.0.self_attn.indexer.weights_proj"
    assert type(model.get_submodule(kept)) is torch.nn.Linear
    names = quantised_names(model)
    assert kept not in names
    assert kept.replace("weights_proj", "wk") in names


def test_the_transposed_layers_of_gpt2_are_rounded_along_their_inputs():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=40)).eval()
    twin, errors = quantised(model, "nf4", engine="torch")
    weight, rounded = model.transformer.h[0].mlp.c_fc.weight, twin.transformer.h[0].mlp.c_fc.weight
    assert torch.equal(rounded, nf4(weight.T.contiguous()).T)
    assert len(errors) == 4
    assert torch.equal(twin.transformer.wte.weight, model.transformer.wte.weight)


def test_the_errors_are_those_of_the_weights():
    model = tiny_model()
    torch.nn.init.zeros_(model.model.layers[0].mlp.up_proj.weight)
    twin, errors = quantised(model, "nf4", engine="torch")
    (zero,) = [one for one in errors if one.name == "model.layers.0.mlp.up_proj"]
    assert (zero.norm, zero.relative) == (0.0, 0.0)
    first = errors[0]
    before, after = (one.get_submodule(first.name).weight.detach() for one in (model, twin))
    assert first.relative == pytest.approx(float((after - before).norm() / before.norm()))
    assert first.largest == pytest.approx(float((after - before).abs().max()))
    assert first.n_weights == before.numel()
    vectors = [
        torch.cat([one.get_submodule(e.name).weight.detach().flatten() for e in errors])
        for one in (model, twin)
    ]
    whole = float((vectors[1] - vectors[0]).norm() / vectors[0].norm())
    assert overall(errors) == pytest.approx(whole, rel=1e-5)
    assert 0.05 < whole < 0.12


def test_weights_that_cannot_be_rounded_are_refused():
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[2].self_attn.k_proj.weight[0, 0] = torch.nan
    with pytest.raises(WorkError, match=r"model\.layers\.2\.self_attn\.k_proj: .* not finite"):
        quantised(model, "nf4", engine="torch")
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight[0, 0] = 1e6
    with pytest.raises(WorkError, match="beyond the range of float16"):
        quantised(model, "int8", engine="torch")
    model = tiny_model()
    model.is_quantized = True
    with pytest.raises(InputError, match="quantised already"):
        quantised(model, "nf4", engine="torch")


def test_without_bitsandbytes_auto_is_plain_torch(monkeypatch):
    without(monkeypatch, "bitsandbytes")
    assert engine_of("auto") == "torch"
    with pytest.raises(InputError, match="--engine torch"):
        engine_of("bitsandbytes")


GOLDEN = json.loads((Path(__file__).parent / "golden" / "bitsandbytes.json").read_text())
WIDTHS = {"float32": torch.int32, "bfloat16": torch.int16, "float16": torch.int16}


def tensor_of(bits, case):
    width, dtype = WIDTHS[case["dtype"]], getattr(torch, case["dtype"])
    return torch.tensor(bits, dtype=width).view(dtype).reshape(case["shape"])


def weights(*shape, scale=1.0, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: f"{c['name']} {c['dtype']}")
def test_the_numbers_are_those_that_bitsandbytes_gave(case):
    weight = tensor_of(case["weight"], case)
    assert torch.equal(nf4(weight), tensor_of(case["nf4"], case))
    assert torch.equal(int8(weight), tensor_of(case["int8"], case))


def test_the_error_on_gaussian_weights_is_the_published_one():
    weight = weights(512, 512, seed=2)
    relative = {m: float((m(weight) - weight).norm() / weight.norm()) for m in (nf4, int8)}
    assert relative[nf4] == pytest.approx(0.0921, abs=1e-3)  # ecosystem notes: 0.0921
    assert relative[int8] < 0.01
