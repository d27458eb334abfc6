import json
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import checkpoint_of, refusal, tiny_model, tiny_model_of
from transformers import AutoModelForCausalLM

from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.registry import load_registry, resolve

Q, DOWN = "model.layers.{}.self_attn.q_proj", "model.layers.{}.mlp.down_proj"
SETTINGS = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "down_proj"],
    "base_model_name_or_path": "somebody/base",
    "inference_mode": True,
    "bias": "none",
}


def matrices(modules, *, seed=0):
    """Random A and B per module, named as peft names them."""
    tensors = {}
    weights = tiny_model().state_dict()
    torch.manual_seed(seed)  # tiny_model sets its own
    for module in modules:
        d_out, d_in = weights[f"{module}.weight"].shape
        tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(4, d_in) / 4
        tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(d_out, 4) / 4
    return tensors


def every_module():
    return [name.format(layer) for layer in range(3) for name in (Q, DOWN)]


def write_adapter(folder, tensors, **settings):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(SETTINGS | settings))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.fixture
def adapter(tmp_path):
    return write_adapter(tmp_path / "adapter", matrices(every_module()))


@pytest.fixture
def opened(tiny_checkpoint):
    return lambda adapter: checkpoint_of(f"{tiny_checkpoint}+{adapter}")


def added(tensors, scale):
    """The base model with scale * B A added by hand, per module."""
    model = tiny_model()
    weights = model.state_dict()
    for name, a in tensors.items():
        if ".lora_A." in name:
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            b = tensors[name.replace("lora_A", "lora_B")]
            weights[f"{module}.weight"] += scale * b @ a
    model.load_state_dict(weights)
    return model


def assert_same_weights(found, wanted, **tolerance):
    found, wanted = found.state_dict(), wanted.state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, **tolerance)


def test_the_merged_model_is_base_plus_scaled_product(adapter, opened):
    tensors = load_file(adapter / "adapter_model.safetensors")
    wanted = added(tensors, 8 / 4)
    assert_same_weights(load_causal(opened(adapter)), wanted, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(
        tiny_model().state_dict()[f"{Q.format(0)}.weight"],
        wanted.state_dict()[f"{Q.format(0)}.weight"],
    )


def test_bfloat16_is_taken_after_merging_as_if_the_merged_model_had_been_saved(
    adapter, opened, tmp_path
):
    load_causal(opened(adapter)).save_pretrained(tmp_path / "merged")
    wanted = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.bfloat16).eval()
    found = load_causal(opened(adapter), dtype=torch.bfloat16)
    assert_same_weights(found, wanted, atol=0, rtol=0)
    tokens = torch.arange(50).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(found(tokens).logits, wanted(tokens).logits)
    buffers = {n: b.dtype for n, b in found.named_buffers()}
    assert buffers == {n: b.dtype for n, b in wanted.named_buffers()}


def test_weights_that_stay_in_float32_do_so_after_merging(tiny_tokenizer, tmp_path):
    import peft

    experts = {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24}
    base = tiny_model_of("Ernie4_5_Moe", moe_layer_start_index=1, **experts)
    base.save_pretrained(tmp_path / "base")
    tiny_tokenizer.save_pretrained(tmp_path / "base")
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["o_proj"])
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "a")  # that changes nothing yet
    wanted = load_causal(checkpoint_of(tmp_path / "base"), dtype=torch.bfloat16)
    name = f"{tmp_path / 'base'}+{tmp_path / 'a'}"
    found = load_causal(checkpoint_of(name), dtype=torch.bfloat16)
    assert found.model.layers[1].mlp.gate.weight.dtype == torch.float32
    assert found.config.dtype == torch.bfloat16
    assert_same_weights(found, wanted, atol=0, rtol=0)


def test_the_hash_is_of_base_matrices_and_scale_not_of_names(adapter, opened, tmp_path):
    tensors = load_file(adapter / "adapter_model.safetensors")

    def weights(name, tensors=tensors, **settings):
        return opened(write_adapter(tmp_path / name, tensors, **settings)).weights

    first = opened(adapter).weights
    assert weights("elsewhere", base_model_name_or_path="other/name") == first
    assert weights("stronger", lora_alpha=16) != first
    assert weights("other", matrices(every_module(), seed=1)) != first
    base = checkpoint_of(opened(adapter).folder)
    assert base.weights != first
    assert base.tokenizer == opened(adapter).tokenizer


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; only LORA"),
        (
            {"target_modules": ["no_such_module"]},
            "cannot be merged (it names 'somebody/base') (Target modules {'no_such_module'}",
        ),
        # what says it is no first line of the library
        ({"r": 2}, "checkpoint, the shape in current model is torch.Size([32, 2])"),
        ({"base_model_name_or_path": None, "r": 2}, "cannot be merged (Error(s) in loading"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(tmp_path, opened, settings, said):
    folder = write_adapter(tmp_path / "a", matrices(every_module()), **settings)
    assert said in refusal(lambda: load_causal(opened(folder)))


def test_matrices_without_a_place_and_places_without_matrices_are_refused(tmp_path, opened):
    short = matrices(every_module()[:-1])
    said = refusal(load_causal, opened(write_adapter(tmp_path / "short", short)))
    assert "2 tensors do not fit" in said
    assert "is not in the adapter" in said
    assert "somebody/base" in said
    long = matrices(every_module())
    long["base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"] = torch.ones(4, 32)
    said = refusal(load_causal, opened(write_adapter(tmp_path / "long", long)))
    assert "has no place in the model" in said


def test_pickled_and_damaged_matrices_are_refused(adapter, opened):
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    assert "damaged" in refusal(opened, adapter)
    weights.rename(adapter / "adapter_model.bin")
    assert "pickles can run code" in refusal(opened, adapter)


def test_merging_that_changes_what_the_adapter_computes_is_refused(
    tmp_path, tiny_tokenizer, opened
):
    # the unembedding is the embedding: merged there, the adapter acts twice
    base = tmp_path / "tied"
    tiny_model(tie_word_embeddings=True).save_pretrained(base)
    tiny_tokenizer.save_pretrained(base)
    name = "base_model.model.model.embed_tokens.lora_embedding_{}"
    tensors = {name.format("A"): torch.randn(4, 61), name.format("B"): torch.randn(32, 4)}
    folder = write_adapter(tmp_path / "a", tensors, target_modules=["embed_tokens"])
    checkpoint = checkpoint_of(f"{base}+{folder}")
    assert "tied to the unembedding" in refusal(load_causal, checkpoint)


def test_without_peft_the_package_to_install_is_named(adapter, opened, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    assert "lensaudit[lora]" in refusal(load_causal, opened(adapter))


def test_names_of_base_and_adapter(adapter, tiny_checkpoint, tmp_path):
    file = tmp_path / "names.toml"
    file.write_text(f'mine = {{ path = "{tiny_checkpoint}", adapter = "adapter" }}\n')
    registry = load_registry(file)
    assert open_checkpoint(resolve("mine", registry)).adapter == adapter
    spec = resolve("full@v2+lab/adapter@main", registry)
    assert (spec.revision, spec.role) == ("v2", "unlearned")
    assert (spec.adapter.repo, spec.adapter.revision) == ("lab/adapter", "main")
    assert f"BASE+{adapter}" in refusal(resolve, str(adapter), registry)
    plus = tmp_path / "lr1e-5+wd"
    plus.symlink_to(adapter)
    assert resolve(f"demo/full+{plus}", registry).adapter.local == plus
    assert "no adapter at" in refusal(resolve, "demo/full+./nothing", registry)
    assert "no adapter at" in refusal(resolve, f"demo/full+{tiny_checkpoint}", registry)
    twice = f"demo/full+{adapter}+{adapter}"
    assert "only one" in refusal(resolve, twice, registry)
    assert "unknown model" in refusal(resolve, f"nonsense+{adapter}", registry)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_dora": True},
        {"use_rslora": True, "bias": "lora_only", "rank_pattern": {"down_proj": 2}},
        {"modules_to_save": ["lm_head", "embed_tokens"]},
        {"target_modules": ["embed_tokens", "q_proj"]},
        {"init_lora_weights": "pissa"},
    ],
    ids=str,
)
def test_adapters_that_peft_saved_compute_what_they_computed_before(tmp_path, opened, settings):
    import peft

    chosen = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]} | settings
    adapted = peft.get_peft_model(tiny_model(), peft.LoraConfig(task_type="CAUSAL_LM", **chosen))
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) / 8)
    adapted.eval().save_pretrained(tmp_path / "a")
    tokens = torch.arange(40).unsqueeze(0)
    with torch.no_grad():
        wanted, base = adapted(tokens).logits, tiny_model()(tokens).logits
        found = load_causal(opened(tmp_path / "a"))(tokens).logits
    torch.testing.assert_close(found, wanted, atol=2e-5 * float(wanted.abs().max()), rtol=0)
    assert float((wanted - base).abs().max()) > 0.1 * float(base.abs().max())
