import contextlib
from dataclasses import replace

import pytest
import support
import torch
from support.audit_helpers import audit_in, run

from lensaudit.data.spans import make_batch
from lensaudit.errors import InputError, VerificationError
from lensaudit.models.bridge import bridge_from, residuals
from lensaudit.patching import preflight
from lensaudit.patching.layout import Rotation, schedule_of
from lensaudit.patching.options import ResolvedSettings
from lensaudit.patching.preflight import (
    PREFLIGHT_PASSES,
    check_component,
    check_model,
    usable_decoder,
)
from lensaudit.patching.scoring import score_all


def unturned(self, x):
    return x


@pytest.mark.parametrize("broken", ["rotation", "readout"])
def test_a_wrong_sweep_falls_back_to_the_oracle_with_a_notice(
    tiny_family, tmp_path, monkeypatch, broken
):
    if broken == "rotation":
        monkeypatch.setattr(Rotation, "turn", unturned)
    else:
        monkeypatch.setattr(
            "lensaudit.patching.wavefront.mean_per_example",
            lambda values, example, n: values.new_zeros(n),
        )
    audit, notices = audit_in(tiny_family, activations=tmp_path)
    found = run(audit)
    assert found.engine == "oracle"
    assert len(notices) == 1
    assert "misses the definition by" in notices[0]
    slow = run(audit_in(tiny_family, activations=tmp_path, engine="oracle")[0])
    assert torch.equal(found.s1, slow.s1)
    assert not list(tmp_path.glob("scores/*sweep*"))
    # a second run finds the oracle's scores, and still says who made them
    outcomes, _ = score_all(audit)
    assert outcomes[0].settings.engine == "oracle"


def test_rows_that_join_a_layer_late_are_noticed(tiny_family, tmp_path, monkeypatch):
    """A row that begins one block later, with what stood there, is right for full itself."""

    def late(layout, joins):
        plan = schedule_of(layout, joins.roll(1, dims=2))
        return replace(plan, row=(plan.row - 1) % joins.numel())

    monkeypatch.setattr("lensaudit.patching.wavefront.schedule_of", late)
    audit, notices = audit_in(tiny_family, activations=tmp_path)
    assert run(audit).engine == "oracle"
    assert ["misses the definition by" in said for said in notices] == [True]


def test_sound_models_pass(tiny_of, ragged):
    for architecture in support.ARCHITECTURES:
        check_model(tiny_of(architecture), ragged[0], "float32")


def test_a_plan_counts_the_passes_that_the_check_runs(tiny, ragged):
    model, ran = tiny(), list[None]()
    model.original_model.register_forward_hook(lambda *_: ran.append(None))
    check_model(model, ragged[0], "float32")
    assert len(ran) == PREFLIGHT_PASSES


def test_a_model_in_training_mode_is_refused(tiny, ragged):
    model = tiny()
    model.train()
    with pytest.raises(VerificationError, match=r"model\.eval"):
        check_model(model, ragged[0], "float32")


def test_a_readout_that_is_not_the_models_is_refused(tiny, ragged, monkeypatch):
    plain = preflight.unembedded
    monkeypatch.setattr(preflight, "unembedded", lambda model, resid: plain(model, resid) + 1)
    with pytest.raises(VerificationError, match="miss the logits"):
        check_model(tiny(), ragged[0], "float32")


def test_an_edit_that_only_a_patched_run_meets_is_refused(tiny, ragged):
    model, calls = tiny(), []

    def late(value, hook):
        # streams and logits are read first: they agree
        calls.append(1)
        return value * (1 + 1e-3 * (len(calls) > 3))

    model.add_hook("blocks.2.hook_in", late)
    with pytest.raises(VerificationError, match="patching full with itself changed a score"):
        check_model(model, ragged[0], "float32")


def test_hooks_are_named_and_refused(tiny, ragged):
    model, notices = tiny(), []
    options = ResolvedSettings(at_layers=(0,))
    assert usable_decoder(model, options, notices.append) is not None
    model.add_hook("blocks.2.hook_mlp_out", lambda value, hook: value)
    with pytest.raises(VerificationError, match=r"blocks\.2"):
        usable_decoder(model, options, notices.append)
    # they do fire in the hooked form
    batch = make_batch(ragged)
    before = residuals(model, batch.tokens)[0]
    model.add_hook("blocks.2.hook_mlp_out", lambda value, hook: value * 0)
    assert not torch.equal(residuals(model, batch.tokens)[0], before)
    assert notices == []


MLA = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 4,
}


def component(name, head=None):
    return ResolvedSettings(at_layers=(0,), component=name if head is None else f"{name}:{head}")


def test_heads_that_are_not_the_models_are_refused(tiny_of, tiny_tokenizer, ragged):
    """The bridge cuts DeepSeek's heads at the wrong places: a patch moved 3 nats, silently."""
    deepseek = bridge_from(support.tiny_model_of("DeepseekV3", **MLA), tiny_tokenizer)
    said = support.refusal(check_component, deepseek, ragged[0], component("head", 1))
    assert "heads of 6 x 4, the model has 4 x 6; choose" in said
    for architecture in ("Llama", "GPT-2", "Phi3", "GPT-NeoX"):
        check_component(tiny_of(architecture), ragged[0], component("head", 1))


@pytest.mark.parametrize("architecture", ["Gemma2", "GPT-2"])
def test_what_is_patched_in_between_the_halves_arrives_there(tiny_of, ragged, architecture):
    for name in ("attn", "mlp", "resid_mid"):
        check_component(tiny_of(architecture), ragged[0], component(name))


def test_a_patch_that_does_not_arrive_is_refused(tiny_of, ragged, monkeypatch):
    def nothing(model, interventions, *, component):
        return contextlib.nullcontext(model)

    monkeypatch.setattr(preflight, "intervening", nothing)
    with pytest.raises(InputError, match="does not arrive there on LlamaForCausalLM"):
        check_component(tiny_of("Llama"), ragged[0], component("resid_mid"))


def test_layers_without_attention_are_refused_in_one_line(tiny_tokenizer, ragged):
    layers = {"layer_types": ["conv", "full_attention"] * 2}
    hybrid = bridge_from(support.tiny_model_of("Lfm2", **layers), tiny_tokenizer)
    for name in ("attn", "resid_mid", "head"):
        with pytest.raises(InputError, match="has no hook blocks"):
            check_component(hybrid, ragged[0], component(name, 1 if name == "head" else None))
