"""Caches of a bridge in memory: written, found, read and exported like those of a checkpoint."""

import re
import shutil

import h5py
import pytest
import safetensors.torch
import torch
from peft import LoraConfig
from support.pages import DOCS
from transformers import AutoModelForCausalLM, AutoTokenizer

import lensaudit as la
from lensaudit.errors import InputError
from lensaudit.models.registry import load_registry, resolve

TEXTS = ["The river ends", "Who are you?", "Question: Who?\nAnswer: It is Pico Ølmar"]


def _loaded():
    folder = resolve("demo/npo", load_registry()).local
    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return hf, AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def bridge():
    """A bridge as a reader makes one, of a model of their own."""
    return la.bridge_from(*_loaded()).eval()


def test_it_holds_what_run_with_cache_says_at_every_position(bridge, tmp_path):
    with la.cache_prompts(bridge, TEXTS, name="mine", root=tmp_path) as cache:
        assert sorted(cache.idx) == [0, 1, 2]
        for idx, text in enumerate(TEXTS):
            ids = bridge.tokenizer(text, return_tensors="pt")["input_ids"]
            _, seen = bridge.run_with_cache(ids)
            one = cache.example(idx)
            assert one.token_ids.tolist() == ids[0].tolist()
            for layer in range(cache.n_layers):
                stream = seen[f"blocks.{layer}.hook_resid_post"][0]
                assert torch.allclose(one.resid[layer], stream, atol=1e-5)


def test_it_is_found_again_by_weights_and_tokens_and_nothing_else(bridge, tmp_path, monkeypatch):
    with la.cache_prompts("demo/npo", TEXTS[0], root=tmp_path) as named:
        assert len(named) == 1  # a model by its name, one text
    with la.cache_prompts(bridge, TEXTS, name="mine", root=tmp_path) as first:
        folder = first.folder
    monkeypatch.setattr("lensaudit.activations.fill.residuals", lambda *a, **k: pytest.fail("ran"))
    with la.cache_prompts(bridge, TEXTS, name="mine", root=tmp_path) as again:
        assert again.folder == folder
    with pytest.raises(InputError, match="are there, called 'mine'; give that name"):
        la.cache_prompts(bridge, TEXTS, name="another name", root=tmp_path)
    with la.open_activations("mine", root=tmp_path) as named:
        assert named.folder == folder
    monkeypatch.undo()
    with la.cache_prompts(bridge, TEXTS[:2], name="fewer", root=tmp_path) as fewer:
        assert fewer.folder != folder
    with torch.no_grad():
        next(bridge.original_model.parameters())[0, 0] += 1e-3
    with la.cache_prompts(bridge, TEXTS, name="trained on", root=tmp_path) as other:
        assert other.folder != folder


def test_a_name_opens_streams_of_the_weights_that_lie_there_now(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(resolve("demo/npo", load_registry()).local, "ck")
    la.cache_prompts("ck", TEXTS[0], root="kept").close()
    la.open_activations("ck", root="kept", positions="all").close()
    weights = safetensors.torch.load_file("ck/model.safetensors")
    changed = {name: one / 2 for name, one in weights.items()}
    safetensors.torch.save_file(changed, "ck/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="cached of other weights"):
        la.open_activations("ck", root="kept", positions="all")


def test_a_key_is_that_of_all_that_decides_what_is_computed(bridge, tmp_path):
    hf = bridge.original_model
    attn, mlp = (getattr(bridge.blocks[3], one).original_component for one in ("attn", "mlp"))
    keys = []
    changes = (
        lambda: None,
        lambda: hf.config.update({"_name_or_path": "elsewhere"}),
        lambda: hf(torch.tensor([[5, 6]]), output_hidden_states=True),  # whose hooks edit nothing
        lambda: hf.model.rotary_emb.inv_freq.mul_(2),
        lambda: hf.config.update({"rms_norm_eps": 0.1}),
        lambda: setattr(mlp, "act_fn", torch.nn.ReLU().eval()),
        lambda: setattr(attn, "scaling", attn.scaling * 4),
        lambda: setattr(mlp, "steer", {3: 1.0}),
        lambda: setattr(mlp, "direction", torch.ones(2)),
    )
    for change in changes:
        change()
        with la.cache_prompts(bridge, TEXTS[0], name="mine", root=tmp_path) as cache:
            keys.append(cache.fingerprint.weights)
    assert keys[0] == keys[1] == keys[2]
    assert len({*keys}) == len(changes) - 2


def test_an_adapter_that_is_switched_off_is_another_model(tmp_path):
    hf, tokenizer = _loaded()
    hf.add_adapter(LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    bridge = la.bridge_from(hf, tokenizer)

    def stream():
        with la.cache_prompts(bridge, TEXTS[0], name="mine", root=tmp_path) as cache:
            return cache.example(0).resid

    adapted = stream()
    hf.disable_adapters()
    with la.cache_prompts("demo/npo", TEXTS[0], root=tmp_path) as plain:
        assert torch.equal(stream(), plain.example(0).resid)
    hf.enable_adapters()
    assert torch.equal(stream(), adapted)
    assert len({*tmp_path.iterdir()}) == 3


def test_safetensors_hold_the_same(bridge, tmp_path):
    with la.cache_prompts(bridge, TEXTS * 12, name="mine", root=tmp_path / "a") as cache:
        files = la.export_safetensors(cache, tmp_path / "out")
        assert [one.name for one in files] == [
            f"shard-{number:06d}.safetensors" for number in range(2)
        ]
        found = {}
        for one in files:
            found |= safetensors.torch.load_file(one)
        assert len(found) == 3 * len(cache)
        for one in cache.examples():
            assert torch.equal(found[f"{one.idx}.resid"], one.resid)
            assert torch.equal(found[f"{one.idx}.positions"], one.positions)


def test_a_shard_has_the_arrays_that_its_page_names(bridge, tmp_path):
    _, _, said = (DOCS / "doors" / "caches.md").read_text().partition("while it is open here")
    said = said.partition(": ")[2]
    named = set(re.findall(r"`(\w+)`", said.partition(";")[0]))
    with la.cache_prompts(bridge, TEXTS, name="mine", root=tmp_path) as cache:
        (path,) = cache.folder.glob("*.h5")
    with h5py.File(path) as file:
        assert len(named) == 8
        assert named <= set(file)
        assert "about" in file.attrs


@pytest.mark.parametrize(
    ("spoil", "prompts", "said"),
    [
        (lambda one: one.train(), TEXTS, "training mode; call model.eval"),
        (lambda one: one.original_model.train(), TEXTS, "training mode; call model.eval"),
        (lambda one: one.add_hook("blocks.1.hook_out", lambda x, hook: x), TEXTS, "carries hooks"),
        (
            lambda one: one.original_model.model.layers[3].register_forward_hook(lambda *_: None),
            TEXTS,
            r"carries hooks \(model.layers.3\)",
        ),
        (
            lambda one: setattr(one.blocks[3].mlp.original_component, "forward", lambda x: x * 0),
            TEXTS,
            "layers.3.* has another forward than its class",
        ),
        (lambda one: None, [], "found no prompt"),
        (lambda one: None, ["I", "a " * 600], r"prompt 1 has \d+ tokens, longer than the model's"),
        (lambda one: one.to(torch.float64), TEXTS, "weights of torch.float64"),
    ],
    ids=[
        "training",
        "training underneath",
        "hooks",
        "torch hooks",
        "forward",
        "no prompt",
        "long",
        "double",
    ],
)
def test_what_cannot_be_kept_is_one_line(bridge, tmp_path, spoil, prompts, said):
    spoil(bridge)
    with pytest.raises(InputError, match=said):
        la.cache_prompts(bridge, prompts, name="mine", root=tmp_path)
    assert not list(tmp_path.iterdir())
