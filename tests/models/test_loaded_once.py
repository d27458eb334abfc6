"""What tests share is what would be read or said anew: by the bytes of files and of weights."""

import functools
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import checkpoint_of
from support.answers import key_of, of_pass
from support.loaded import share_loaded
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from lensaudit.models.causal import load_causal


@pytest.fixture
def folder(tiny_checkpoint, tmp_path):
    """A checkpoint that a test may change; everything is shared already."""
    share_loaded()
    return shutil.copytree(tiny_checkpoint, tmp_path / "own")


def test_everybody_gets_a_copy_of_its_own(folder):
    for kind in (AutoConfig, AutoTokenizer, GenerationConfig, AutoModelForCausalLM):
        assert kind.from_pretrained(folder) is not kind.from_pretrained(folder)
    first, second = (AutoModelForCausalLM.from_pretrained(folder) for _ in range(2))
    with torch.no_grad():
        first.lm_head.weight.zero_()
    assert second.lm_head.weight.any()
    assert AutoModelForCausalLM.from_pretrained(folder).lm_head.weight.any()


def test_a_folder_that_was_changed_is_read_again(folder):
    before = checkpoint_of(folder), load_causal(checkpoint_of(folder))
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"rms_norm_eps": 0.5}))
    assert AutoConfig.from_pretrained(folder).rms_norm_eps == 0.5
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"] * 2
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    after = load_causal(checkpoint_of(folder))
    assert torch.equal(after.lm_head.weight, before[1].lm_head.weight * 2)
    assert after.config.rms_norm_eps == 0.5
    assert load_causal(before[0], dtype=torch.float16).dtype == torch.float16


def test_an_answer_hangs_on_weights_settings_padding_and_the_code_that_runs(folder, monkeypatch):
    model = load_causal(checkpoint_of(folder))
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=2)
    asked = SimpleNamespace(tokenizer=tokenizer, mask="true")
    key = functools.partial(of_pass, model, asked, [(1, 2)])
    found = [key(batch_size=1), key(batch_size=2)]
    asked.mask = "upstream"
    found.append(key(batch_size=1))
    model.generation_config.repetition_penalty = 1.5
    found.append(key(batch_size=1))
    model.lm_head.requires_grad_(False)
    found.append(key(batch_size=1))
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    found.append(key(batch_size=1))
    assert None not in found
    assert len({*found}) == len(found)
    handle = model.lm_head.register_forward_hook(lambda *_: None)
    assert key_of(model, [], ()) is None
    handle.remove()
    assert key_of(model, [], ()) is not None
    monkeypatch.setattr(type(model), "forward", lambda *_, **__: None)
    assert key_of(model, [], ()) is None
