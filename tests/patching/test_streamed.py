from dataclasses import replace

import pytest
import support
import torch
from support import checkpoint_of
from support.audit_helpers import audit_in, run, save_family, save_questions
from support.wavefront_helpers import examples, source_stack, swept

from lensaudit.data.spans import make_batch
from lensaudit.models import causal
from lensaudit.models.bridge import bridge_from, logits_of, residuals
from lensaudit.models.causal import load_causal
from lensaudit.models.conditions import EAGER
from lensaudit.models.large import placement
from lensaudit.models.large.placement import DISK, all_on, stored_tensors
from lensaudit.models.large.streaming import streamed

RAGGED = examples([(5, 5, 8, 12), (9, 8, 26, 30), (3, 4, 9, 10)])
FEW = ("Llama, tied", "Phi3", "Mixtral")
"""Plain; with joint projections that TransformerLens slices; with experts that are put together."""


@pytest.fixture
def with_little(monkeypatch):
    """Memory for the least that a model takes, and no more."""

    def set_free(folder, leave=0):
        least = all_on("cpu", stored_tensors(folder), torch.float32).least
        monkeypatch.setattr(placement, "free_bytes", lambda device: least + leave)

    return set_free


@pytest.mark.parametrize(
    "architecture",
    [
        name if name in FEW else pytest.param(name, marks=pytest.mark.slow)
        for name in support.ARCHITECTURES
    ],
)
def test_blocks_brought_one_by_one_compute_what_they_do_together(
    architecture, tiny_tokenizer, tmp_path, with_little
):
    kind, changes = support.ARCHITECTURES[architecture]
    support.tiny_model_of(kind, **changes).save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    whole = bridge_from(load_causal(checkpoint_of(tmp_path), attn=EAGER), tiny_tokenizer)
    with_little(tmp_path)
    part = bridge_from(load_causal(checkpoint_of(tmp_path), attn=EAGER, spread=0), tiny_tokenizer)
    brings = streamed(part.original_model)
    assert brings is not None
    assert brings.placement.blocks == (DISK,) * 4
    tokens = make_batch(RAGGED).tokens
    for one, other in zip(residuals(part, tokens), residuals(whole, tokens), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(logits_of(part, tokens), logits_of(whole, tokens))
    stacks, before = [source_stack(whole, RAGGED).roll(1, 1)], brings.n_brought
    with torch.inference_mode():
        wanted = swept(whole, stacks, RAGGED).patched
        assert torch.equal(swept(part, stacks, RAGGED).patched, wanted)
    # one pass for the clean run, one for what enters block 0, one for the sweep
    assert brings.n_brought <= before + 4 + 1 + 4
    # and so they do where a thread reads the next one
    brings.placement = replace(brings.placement, ahead=True)
    assert torch.equal(residuals(part, tokens)[0], residuals(whole, tokens)[0])
    with torch.inference_mode():
        assert torch.equal(swept(part, stacks, RAGGED).patched, wanted)
    assert len(brings._rooms) == 2


CHOOSING = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
IN_FLOAT32 = {
    # a buffer
    "DeepseekV3": (
        torch.bfloat16,
        CHOOSING
        | {"q_lora_rank": None, "kv_lora_rank": 16, "v_head_dim": 8, "num_key_value_heads": 4}
        | {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8},
    ),
    # norms; in bfloat16 they are as the rest
    "GptOss": (
        torch.float16,
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "rope_parameters": None},
    ),
}
"""What transformers keeps in float32 beside weights of another type."""


@pytest.mark.parametrize("kind", IN_FLOAT32)
def test_weights_that_stay_in_float32_do_so_where_blocks_are_brought(
    kind, tiny_tokenizer, tmp_path, with_little
):
    dtype, changes = IN_FLOAT32[kind]
    model = support.tiny_model_of(kind, **changes)
    for name, buffer in model.named_buffers():
        if "e_score" in name:  # in bfloat16 they are all 1
            buffer.copy_(1 + torch.arange(len(buffer)).flip(0) * 1e-3)
    model.save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    how = {"dtype": dtype, "attn": EAGER}
    whole = load_causal(checkpoint_of(tmp_path), **how)
    with_little(tmp_path)
    part = load_causal(checkpoint_of(tmp_path), **how, spread=0)
    assert DISK in streamed(part).placement.blocks
    kept = {name for name, one in whole.state_dict().items() if one.dtype == torch.float32}
    assert kept == {name for name, one in part.state_dict().items() if one.dtype == torch.float32}
    assert any(".layers.1." in name for name in kept)
    tokens = make_batch(RAGGED).tokens
    with torch.no_grad():
        assert torch.equal(part(tokens).logits, whole(tokens).logits)


@pytest.mark.parametrize("component", ["resid", pytest.param("mlp", marks=pytest.mark.slow)])
def test_scores_of_models_brought_block_by_block_are_those_of_whole_ones(
    component, tiny_tokenizer, tmp_path, with_little, monkeypatch
):
    save_questions(save_family(tmp_path, tiny_tokenizer, names=("full", "retain", "a")))

    def scores(name):
        return run(audit_in(tmp_path, activations=tmp_path / name, component=component)[0])

    with_little(tmp_path / "full", 2 << 30)
    plain, brought = causal.load_placed, []
    monkeypatch.setattr(causal, "load_placed", lambda *a, **k: brought.append(1) or plain(*a, **k))
    part = scores("part")
    assert len(brought) == 3
    monkeypatch.undo()
    whole = scores("whole")
    assert part.engine == whole.engine == "sweep"
    name = str(tmp_path / "a")
    for one, other in ((part.s1, whole.s1), (part.s2[name], whole.s2[name])):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert float(whole.s1.abs().max()) > 0.1
