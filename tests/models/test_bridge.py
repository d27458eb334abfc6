import contextlib
import copy
import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import support
import torch
from support import EMBEDDED, checkpoint_of
from support.frozen import embedded_forget
from transformer_lens.model_bridge.sources.transformers import source

import lensaudit as la
from lensaudit.association.run import is_held
from lensaudit.data.spans import make_batch
from lensaudit.errors import InputError, WorkError
from lensaudit.models import booting, bridge, linear
from lensaudit.models.booting import TransformerBridge
from lensaudit.models.bridge import (
    bridge_from,
    cached_logits,
    captured,
    check_finite,
    embedded,
    intervening,
    load,
    logits_of,
    n_bytes,
    opened_once,
    residuals,
    user_hooks,
)
from lensaudit.models.wrappers import SAME_BITS


def test_residuals_are_the_hidden_states_before_the_final_norm(tiny, ragged):
    model, tokens = tiny(), make_batch(ragged).tokens
    stack, final_norm = residuals(model, tokens)
    hf = model.original_model.model(tokens, output_hidden_states=True)
    for layer in range(2):
        assert torch.equal(stack[:, layer], hf.hidden_states[layer + 1])
    # transformers applies the final norm to its last hidden state
    assert torch.equal(final_norm, hf.hidden_states[3])
    assert not torch.allclose(stack[:, 2], hf.hidden_states[3], atol=1e-2)
    assert torch.equal(embedded(model, tokens), hf.hidden_states[0])


def test_logits_are_those_of_the_hugging_face_model():
    from transformers import AutoModelForCausalLM

    model, tokens = la.load_model("demo/full"), make_batch(embedded_forget()[:3]).tokens
    plain = AutoModelForCausalLM.from_pretrained(
        EMBEDDED / "full", attn_implementation="eager", dtype=torch.float32
    )
    assert torch.allclose(logits_of(model, tokens), plain(tokens).logits, atol=1e-5)


FALCON = {"num_attention_heads": 4}


@pytest.mark.parametrize("changes", [{}, {"new_decoder_architecture": True, "num_kv_heads": 1}])
def test_a_falcon_that_can_be_bridged_is_the_hugging_face_model(changes, tiny_tokenizer):
    model = support.tiny_model_of("Falcon", **FALCON | changes)
    tokens, kept = torch.arange(3, 11)[None], []
    block = model.transformer.h[1]
    handle = block.register_forward_hook(lambda module, given, out: kept.append(out[0]))
    plain = model(tokens).logits
    handle.remove()
    made = bridge_from(model, tiny_tokenizer)
    assert torch.allclose(logits_of(made, tokens), plain, atol=1e-4)
    found = captured(made, tokens, ["blocks.1.hook_out"])["blocks.1.hook_out"]
    assert torch.allclose(found, kept[0].reshape(found.shape), atol=1e-4)


@pytest.mark.parametrize("n_norms", [1, 2])
def test_falcons_new_decoder_with_several_key_heads_is_refused_in_one_line(n_norms, tiny_tokenizer):
    changes = {"new_decoder_architecture": True, "num_kv_heads": 2}
    model = support.tiny_model_of(
        "Falcon", **FALCON | changes | {"num_ln_in_parallel_attn": n_norms}
    )
    said = support.refusal(bridge_from, model, tiny_tokenizer)
    assert "FalconForCausalLM: TransformerLens cannot bridge it" in said


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("GPTNeoX", {"attention_bias": False}),
        ("GPTBigCode", {"n_head": 4, "n_embd": 32, "multi_query": False}),
        ("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    ],
)
def test_what_transformerlens_cannot_bridge_is_refused_in_one_line(kind, changes, tiny_tokenizer):
    """It asserts, or bridges a final norm that is not there and would be called."""
    model = support.tiny_model_of(kind, **{"num_hidden_layers": 1} | changes)
    said = support.refusal(bridge_from, model, tiny_tokenizer)
    assert f"{type(model).__name__}: TransformerLens cannot bridge it" in said


def test_a_model_without_a_final_norm_runs_and_cannot_be_cached(tiny_tokenizer):
    changes = {"ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False}
    model = bridge_from(support.tiny_model_of("OPT", **changes), tiny_tokenizer)
    tokens = torch.arange(3, 9)[None]
    assert bool(logits_of(model, tokens).isfinite().all())
    assert "no hook ln_final.hook_out; it cannot be cached" in support.refusal(
        residuals, model, tokens
    )


def _not_generating(model, tokens) -> str:
    """Why it refuses to read on from a past."""
    where = {"mask": torch.ones_like(tokens), "positions": tokens - 3}
    return support.refusal(cached_logits, model, tokens, **where, n_logits=1)


@pytest.mark.parametrize("kind", ["Mamba", "Mamba2"])
def test_a_model_without_keys_and_values_generates_nothing(kind, tiny_tokenizer):
    """Without a past, each token would be read as the first one."""
    changes = {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8, "chunk_size": 4}
    made = support.tiny_model_of(kind, num_hidden_layers=1, **changes if kind == "Mamba2" else {})
    model, tokens = bridge_from(made, tiny_tokenizer), torch.arange(3, 9)[None]
    assert residuals(model, tokens)[0].shape == (1, 1, 6, 32)
    said = _not_generating(model, tokens)
    assert f"{kind}ForCausalLM keeps no keys and values" in said


def test_a_hybrid_of_attention_and_convolution_generates_nothing(tiny_tokenizer):
    """Of its cache no rows can be chosen: texts would be those of other prompts."""
    changes = {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
    model = bridge_from(support.tiny_model_of("Lfm2", **changes), tiny_tokenizer)
    tokens = torch.arange(3, 9)[None]
    assert residuals(model, tokens)[0].shape == (1, 2, 6, 32)
    said = _not_generating(model, tokens)
    assert "Lfm2ForCausalLM keeps more than keys and values" in said


def test_a_final_norm_that_reads_the_last_token_alone_is_refused(tiny_tokenizer):
    model = bridge_from(support.tiny_model_of("Bert", is_decoder=True), tiny_tokenizer)
    said = support.refusal(residuals, model, torch.arange(3, 9)[None])
    assert "its final norm reads the last token alone; it cannot be cached" in said


def test_a_stream_of_another_type_than_the_weights_is_refused(tiny_tokenizer):
    made = support.tiny_model_of("Mamba", num_hidden_layers=1).bfloat16()
    said = support.refusal(residuals, bridge_from(made, tiny_tokenizer), torch.arange(3, 9)[None])
    assert "its stream is torch.float32, its weights are torch.bfloat16; use --dtype" in said


def test_hooks_are_gone_afterwards_and_after_an_error(tiny, ragged):
    model, tokens = tiny(), make_batch(ragged).tokens
    plain = logits_of(model, tokens)
    with intervening(model, {0: lambda resid: resid * 2}):
        assert not torch.allclose(logits_of(model, tokens), plain)
        assert user_hooks(model) == ["blocks.0.hook_out"]
    assert torch.equal(logits_of(model, tokens), plain)

    def broken(resid):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), intervening(model, {0: broken}):
        logits_of(model, tokens)
    assert torch.equal(logits_of(model, tokens), plain)
    assert user_hooks(model) == []


def test_a_hook_of_pytorch_is_the_user_s_and_one_of_a_library_is_not(tiny, ragged):
    model, tokens = tiny(), make_batch(ragged).tokens
    model.original_model(tokens, output_hidden_states=True)  # hooks of transformers stay
    logits_of(model, tokens)
    assert user_hooks(model) == []
    block = model.blocks[1].original_component
    handles = [
        block.register_forward_pre_hook(lambda *_: None),
        block.mlp.original_component.register_forward_hook(lambda *_: None),
    ]
    under = "model.layers.1._original_component"
    assert user_hooks(model) == [under, f"{under}.mlp._original_component"]
    for one in handles:
        one.remove()
    assert user_hooks(model) == []


def test_hooks_that_transformerlens_sets_for_opt_are_not_the_user_s(tiny_tokenizer):
    changes = {"num_hidden_layers": 1, "ffn_dim": 48, "word_embed_proj_dim": 32}
    model = bridge_from(support.tiny_model_of("OPT", **changes), tiny_tokenizer)
    assert any(one.fwd_hooks for one in model.hook_points())
    for one in (model, copy.deepcopy(model)):
        assert user_hooks(one) == []
        with intervening(one, {0: lambda resid: resid}):
            assert user_hooks(one) == ["blocks.0.hook_out"]


@pytest.mark.parametrize("device", ["auto", torch.device("cpu")])
def test_a_device_is_a_word_of_the_settings_or_one_of_pytorch(device, tiny_checkpoint):
    wanted = la.load_model(tiny_checkpoint, device="cpu").cfg.device
    if device != "auto" or not torch.cuda.is_available():
        assert la.load_model(tiny_checkpoint, device=device).cfg.device == wanted


def test_threads_bridge_their_models_in_turn(tiny, monkeypatch):
    boot, plain = TransformerBridge.boot_transformers, source.load_modality_processor
    inside, most = [], []

    def slow(*args, **options):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        made = boot(*args, **options)
        inside.pop()
        return made

    monkeypatch.setattr(TransformerBridge, "boot_transformers", slow)
    with ThreadPoolExecutor(3) as threads:
        assert len(list(threads.map(tiny, range(3)))) == 3
    assert most == [1, 1, 1]
    assert source.load_modality_processor is plain


RUNS_BARE = {
    name: f"{kind.removesuffix('Text')}ForCausalLM"
    for name, (kind, changes) in support.ARCHITECTURES.items()
    if f"{kind.removesuffix('Text')}ForCausalLM" in SAME_BITS and "vision_config" not in changes
}


def test_every_architecture_that_runs_without_wrappers_is_compared():
    assert set(RUNS_BARE.values()) == SAME_BITS


@pytest.fixture(scope="module")
def short(tiny_tokenizer):
    """Bridged random models of two layers by architecture, made once."""

    @functools.cache
    def make(name):
        kind, changes = support.ARCHITECTURES[name]
        fewer = {} if "text_config" in changes else {"num_hidden_layers": 2, "layer_types": None}
        return bridge_from(support.tiny_model_of(kind, **changes | fewer), tiny_tokenizer)

    return make


def test_a_model_made_of_a_config_alone_is_bridged(tiny_tokenizer):
    made = support.tiny_model_of("Olmo2", num_hidden_layers=1)
    made.config.architectures = None  # which only a saved one has
    tokens = torch.arange(3, 11)[None]
    wanted = made(tokens).logits
    assert torch.allclose(logits_of(bridge_from(made, tiny_tokenizer), tokens), wanted, atol=1e-4)


FUSED = next(name for name, of in RUNS_BARE.items() if of == "GPTNeoXForCausalLM")


@pytest.mark.parametrize(
    ("name", "change"), [*((name, "edited") for name in RUNS_BARE), (FUSED, "trained")]
)
def test_a_model_whose_weights_change_is_one_model_with_wrappers_and_without(
    name, change, tiny_tokenizer
):
    """TransformerLens copies the fused query, key and value of GPT-NeoX: either could be edited."""
    kind, changes = support.ARCHITECTURES[name]
    made = support.tiny_model_of(kind, **changes | {"num_hidden_layers": 1, "layer_types": None})
    handles, tokens = list(made.parameters()), torch.arange(3, 19).reshape(2, 8)
    model = bridge_from(made, tiny_tokenizer)
    with torch.no_grad():
        before = model(tokens)
    if change == "edited":
        with torch.no_grad():
            for one in handles:
                one.add_(0.1 * torch.rand_like(one))
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(2):
            torch.nn.functional.cross_entropy(
                model(tokens).flatten(0, 1), tokens.flatten()
            ).backward()
            optimizer.step()
    with torch.no_grad():
        found = model(tokens)
        model.__class__ = TransformerBridge
        assert torch.equal(found, model(tokens))
    assert not torch.allclose(found, before, atol=1e-3)


@pytest.mark.parametrize("name", support.ARCHITECTURES)
def test_a_bridge_knows_every_hook_point_of_its_modules_and_their_classes(name, short):
    model = short(name)
    known = {name: (id(point), point.name) for name, point in model._hook_registry.items()}
    model._scan_existing_hooks(model, "")  # TransformerLens' own way, which reads all attributes
    after = {name: (id(point), point.name) for name, point in model._hook_registry.items()}
    assert list(after.items()) == list(known.items())
    assert {"blocks.0.hook_out", "blocks.0.hook_attn_out", "blocks.1.attn.hook_z"} <= after.keys()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_long_pass_of_half_precision_sums_attention_in_float32(dtype, short, monkeypatch):
    monkeypatch.setattr(booting, "LOOPED", {dtype})
    monkeypatch.setattr(linear, "LOOPED", {dtype})
    model = short("Llama")
    model.original_model.to(dtype)
    for n, attention in ((8, linear.Widened()), (7, contextlib.nullcontext())):
        tokens = torch.randint(1, 60, (n, 8), generator=torch.Generator().manual_seed(n))
        found = logits_of(model, tokens)
        model.__class__, bare = TransformerBridge, type(model)
        plain = logits_of(model, tokens)
        with attention:
            assert torch.equal(found, logits_of(model, tokens)), n
        model.__class__ = bare
    assert torch.equal(found, plain)
    assert model("w7 w9", return_type="logits").dtype is dtype


@pytest.mark.parametrize("name", RUNS_BARE)
def test_a_pass_without_idle_wrappers_has_the_bits_of_one_with_all(name, short, ragged):
    model, tokens = short(name), make_batch(ragged[:2]).tokens
    hf = model.original_model
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    padded = {"mask": mask, "positions": (mask.cumsum(1) - 1).clamp(min=0), "n_logits": 1}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        hf.to(dtype)
        found = logits_of(model, tokens), cached_logits(model, tokens, **padded)[0]
        model.__class__, bare = TransformerBridge, type(model)
        assert bare is not TransformerBridge
        wanted = logits_of(model, tokens), cached_logits(model, tokens, **padded)[0]
        model.__class__ = bare
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)


def test_only_wrappers_at_which_nobody_listens_are_left_out(tiny, ragged, monkeypatch):
    model, tokens = tiny(), make_batch(ragged).tokens
    before, passed = dict(model.original_model.named_modules()), []
    for kind in ("BlockBridge", "LinearBridge", "PositionEmbeddingsAttentionBridge"):
        cls = next(type(one) for one in before.values() if type(one).__name__ == kind)
        run = cls.forward
        note = lambda self, *a, run=run, **o: passed.append(self.name) or run(self, *a, **o)  # noqa: E731
        monkeypatch.setattr(cls, "forward", note)

    def names(*heard):
        passed.clear()
        with model.hooks(fwd_hooks=[(one, lambda value, hook: None) for one in heard]):
            logits_of(model, tokens)
        return set(passed)

    assert names() == set()
    assert names("blocks.1.hook_out") == {"model.layers.1"}
    inside = {"model.layers.0", "self_attn", "q_proj", "o_proj", "gate_proj", "down_proj"}
    assert names("blocks.0.hook_attn_out") >= inside
    assert "model.layers.1" not in passed
    handle = model.blocks[2].register_forward_hook(lambda block, given, out: None)
    assert names() == {"model.layers.2"}
    handle.remove()
    with (
        pytest.raises(ZeroDivisionError),
        model.hooks(fwd_hooks=[("blocks.1.hook_out", lambda value, hook: 1 // 0)]),
    ):
        logits_of(model, tokens)
    after = dict(model.original_model.named_modules())
    assert list(after) == list(before)
    assert all(after[name] is one for name, one in before.items())


def test_a_pass_of_another_thread_waits_for_wrappers_that_are_left_out(tiny, ragged):
    model, tokens = tiny(), make_batch(ragged).tokens
    reached, onward, edits = threading.Event(), threading.Event(), {1: lambda resid: resid * 2}

    def stop(value, hook):
        reached.set()
        onward.wait(20)

    def edited():
        with intervening(model, edits):
            return logits_of(model, tokens)

    def held():
        with model.hooks(fwd_hooks=[("blocks.0.hook_out", stop)]):
            logits_of(model, tokens)

    alone = edited()
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(held)
        reached.wait(20)
        other = threads.submit(edited)
        time.sleep(0.05)
        onward.set()
        one.result()
        assert torch.equal(other.result(), alone)


def test_a_bridge_that_ran_can_be_copied(tiny, ragged):
    model, tokens = tiny(), make_batch(ragged).tokens
    plain = logits_of(model, tokens)
    copied = copy.deepcopy(model)
    assert torch.equal(logits_of(copied, tokens), plain)
    assert booting._turn(copied) is not booting._turn(model)


def test_a_module_that_was_exchanged_is_the_one_that_runs(tiny, ragged):
    model, tokens = tiny(), make_batch(ragged).tokens
    plain = logits_of(model, tokens)
    layer = model.original_model.model.layers[1].original_component
    layer.mlp = torch.nn.Identity()
    changed = logits_of(model, tokens)
    assert not torch.allclose(changed, plain)
    assert torch.equal(TransformerBridge.forward(model, tokens).detach(), changed)


def test_two_layers_can_be_edited_at_once(tiny, ragged):
    model, tokens = tiny(), make_batch(ragged).tokens
    seen = []
    edits = {layer: lambda resid, at=layer: seen.append(at) or resid for layer in (2, 0)}
    with intervening(model, edits):
        logits_of(model, tokens)
    assert seen == [0, 2]


def test_replacing_resid_mid_replaces_what_the_block_returns(tiny, ragged):
    model, tokens = tiny(), make_batch(ragged).tokens
    plain = captured(model, tokens, ["blocks.1.hook_out"])["blocks.1.hook_out"]
    assert plain.abs().max() > 1e-2
    with intervening(model, {1: torch.zeros_like}, component="resid_mid"):
        out = captured(model, tokens, ["blocks.1.hook_out"])["blocks.1.hook_out"]
    # with a zero stream in between, the block returns the MLP of a normed zero: zero
    assert out.abs().max() < 1e-5


@pytest.mark.parametrize("component", ["resid", "resid_mid"])
@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (lambda resid: None, "None"),
        (lambda resid: resid.double(), "torch.float64 of"),
        (lambda resid: resid[:, :1], r"torch.float32 of \(5, 1, 32\)"),
    ],
    ids=["nothing", "type", "shape"],
)
def test_an_edit_that_returns_no_stream_is_refused(tiny, ragged, component, edit, found):
    model, tokens = tiny(), make_batch(ragged).tokens
    refused = pytest.raises(InputError, match=f"intervention at layer 1 returned {found}")
    with refused, intervening(model, {1: edit}, component=component):
        logits_of(model, tokens)
    assert user_hooks(model) == []


@pytest.mark.misuse
@pytest.mark.parametrize("layer", [3, -1, 1.0, "1", True])
def test_a_layer_the_model_lacks_is_refused(tiny, layer):
    refused = pytest.raises(InputError, match=f"layer {layer!r}: the model has layers 0 to 2")
    with refused, intervening(tiny(), {layer: torch.relu}):
        pass


def test_an_unknown_hook_is_refused(tiny, ragged):
    with pytest.raises(InputError, match="no hook blocks"):
        captured(tiny(), make_batch(ragged).tokens, ["blocks.0.nonsense"])


def test_a_nan_names_its_example():
    stack = torch.zeros(2, 3, 4, 5)
    stack[1, 0, 0, 0] = torch.nan
    check_finite(stack[:1], (7,), "m")
    with pytest.raises(WorkError, match="example 9"):
        check_finite(stack, (7, 9), "m")


def test_a_model_with_eyes_is_bridged_without_network_or_installation(tiny_tokenizer, monkeypatch):
    """TransformerLens' own way fetches an image processor and runs `pip install torchvision`."""
    asked = []
    monkeypatch.setattr(source, "load_modality_processor", lambda *args: asked.append(args))
    kind, changes = support.ARCHITECTURES["Gemma3 with eyes"]
    bridge_from(support.tiny_model_of(kind, **changes), tiny_tokenizer)
    assert asked == []
    source.load_modality_processor(1)
    assert asked == [(1,)]


def test_a_model_that_several_questions_are_asked_is_loaded_once(monkeypatch):
    npo, full = (checkpoint_of(name) for name in ("demo/npo", "demo/full"))
    loaded, plain = [], bridge.load_causal

    def noted(checkpoint, **how):
        loaded.append((checkpoint.spec.name, how["dtype"]))
        return plain(checkpoint, **how)

    monkeypatch.setattr(bridge, "load_causal", noted)
    single = ("demo/npo", torch.float32)
    with opened_once():
        one = load(npo)
        assert load(npo, spread=10**9) is one
        assert is_held(one)
        assert loaded == [single]
        load(npo, dtype=torch.bfloat16)
        load(full)
        load(npo)
        assert loaded == [single, ("demo/npo", torch.bfloat16), ("demo/full", torch.float32)]
    assert not is_held(one)
    load(npo)
    load(npo)
    assert loaded[3:] == [single, single]
    monkeypatch.setattr(bridge, "OPENED_BYTES", n_bytes(one))
    with opened_once():
        assert is_held(load(npo))
        assert load(full) is not None
        load(full)
        assert loaded[5:] == [single, *[("demo/full", torch.float32)] * 2]
