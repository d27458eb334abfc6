"""A checkpoint is loaded whole or not at all."""

import json
import shutil

import pytest
import support
import torch
import transformers
from safetensors.torch import load_file, save_file
from support import checkpoint_of, refusal
from transformers.integrations import hub_kernels

from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import config_of

LOST = "model.layers.1.mlp.down_proj.weight"
EXTRA = "model.layers.2.self_attn.q_proj.bias"


@pytest.fixture
def folder(tiny_checkpoint, tmp_path):
    return shutil.copytree(tiny_checkpoint, tmp_path / "copy")


def change_weights(folder, **changed):
    """Tensors replaced, added, or (None) removed."""
    tensors = load_file(folder / "model.safetensors") | changed
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def change_config(folder, **changed):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def load(folder):
    return load_causal(checkpoint_of(folder))


def test_weights_that_lack_a_tensor_are_refused_by_its_name(folder):
    """Transformers would fill it at random, and warn."""
    assert load_causal(checkpoint_of(folder)).training is False
    change_weights(folder, **{LOST: None})
    assert f"lack 1 tensors of its architecture (first {LOST})" in refusal(load, folder)


def test_tensors_that_the_configuration_does_not_use_are_refused(folder):
    """Transformers drops them: a Llama with biases and attention_bias false is another model."""
    change_weights(folder, **{EXTRA: torch.ones(32)})
    assert f"no place for 1 tensors of the weights (first {EXTRA})" in refusal(load, folder)
    change_config(folder, attention_bias=True)
    assert "lack 11 tensors" in refusal(load, folder)
    change_weights(folder, **{EXTRA: None})
    change_config(folder, attention_bias=False, num_hidden_layers=2)
    assert "no place for 9 tensors of the weights (first model.layers.2." in refusal(load, folder)


def test_frequencies_and_masks_of_older_versions_do_no_harm(folder):
    change_weights(
        folder,
        **{
            "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
            "model.layers.0.attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.bool),
        },
    )
    assert load_causal(checkpoint_of(folder)).training is False


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder):
    change_weights(folder, **{LOST: torch.ones(32, 47)})
    message = refusal(load, folder)
    assert f"{LOST} is stored as 32 x 47, its configuration wants 32 x 48" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_of_the_head_that_is_not_finite_is_named(folder, value):
    """Logits of one token alone: the stream is finite, and caches of it are."""
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    head[7, 3] = value
    change_weights(folder, **{"lm_head.weight": head})
    assert f"row 7 of the head holds NaN or infinity (1 of {len(head)} rows do)" in refusal(
        load, folder
    )


def test_weights_of_whole_numbers_are_refused_before_any_is_read(folder):
    change_weights(folder, **{LOST: torch.ones(32, 48, dtype=torch.int32)})
    assert f"{LOST} is stored as I32" in refusal(checkpoint_of, folder)


@pytest.mark.parametrize(
    "packed",
    [
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "gptq", "bits": 4},
        {"quant_method": "compressed-tensors", "config_groups": {}},
        "nonsense",
    ],
)
def test_packed_weights_are_refused_with_what_would_do(folder, packed):
    change_config(folder, quantization_config=packed)
    message = refusal(checkpoint_of, folder)
    assert "its weights are packed" in message
    assert "name the checkpoint it was made from" in message


@pytest.mark.parametrize(
    "changed",
    [
        {"model_type": "unheard-of"},
        {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}},
        {"hidden_act": "unheard-of"},
        {"rope_parameters": {"rope_type": "unheard-of", "rope_theta": 1e4}},
    ],
)
def test_a_configuration_that_cannot_be_built_is_one_line(folder, changed):
    change_config(folder, **changed)
    assert "cannot be" in refusal(load, folder)


@pytest.mark.parametrize("attention", ["paged|eager", "kernels-community/attention@main"])
def test_the_attention_is_the_one_asked_for_and_no_code_of_the_hub(folder, attention, monkeypatch):
    """Transformers lets config.json win over its argument, and fetches a kernel that it names."""
    asked = []
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda *name, **how: asked.append(name))
    change_config(folder, _attn_implementation=attention)
    for attn in ("eager", "sdpa"):
        model = load_causal(checkpoint_of(folder), attn=attn)
        assert model.config._attn_implementation == attn
    assert config_of(checkpoint_of(folder))._attn_implementation is None
    assert asked == []


def test_the_weights_that_were_hashed_are_read_whatever_the_configuration_names(folder):
    save_file({}, folder / "others.safetensors", metadata={"format": "pt"})
    change_config(folder, transformers_weights="others.safetensors")
    assert load_causal(checkpoint_of(folder)).training is False


def test_a_configuration_that_wants_tuples_gives_logits_all_the_same(folder):
    change_config(folder, return_dict=False)
    assert load_causal(checkpoint_of(folder)).config.return_dict is True


def test_a_model_that_cannot_be_run_is_one_line(tiny_tokenizer, tmp_path):
    support.tiny_model_of("GPT2", max_position_embeddings=2).save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    assert "cannot be run (index out of range" in refusal(load, tmp_path)


def test_models_that_read_what_comes_later_are_refused(folder, tiny_tokenizer, tmp_path):
    change_config(folder, architectures=["BertForMaskedLM"])
    assert "BertForMaskedLM is no decoder-only" in refusal(checkpoint_of, folder)
    for is_decoder in (False, True):
        config = transformers.BertConfig(
            vocab_size=61,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            is_decoder=is_decoder,
        )
        bert = tmp_path / f"bert {is_decoder}"
        torch.manual_seed(0)
        transformers.BertLMHeadModel(config).save_pretrained(bert)
        tiny_tokenizer.save_pretrained(bert)
        if is_decoder:
            assert load_causal(checkpoint_of(bert)) is not None
        else:
            assert "has no causal mask" in refusal(load, bert)


@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Mamba", "Mixtral"])
def test_decoders_are_not(tiny_tokenizer, tmp_path, kind):
    support.tiny_model_of(kind, num_hidden_layers=1).save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    assert load_causal(checkpoint_of(tmp_path), attn="eager") is not None
