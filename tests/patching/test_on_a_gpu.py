"""The same numbers on a CUDA device as on the processor: `make gpu`, or `pytest -m gpu`.

`GPU_TESTS_ON=cpu` rehearses them where there is none.
"""

import os

import pytest
import support
import torch
from support import checkpoint_of
from support.audit_helpers import audit_in, run, save_family, save_questions
from support.frozen import FEW, embedded_forget

import lensaudit as la
from lensaudit.activations.fill import fill, fingerprint_of_run
from lensaudit.activations.layers import ActivationStore
from lensaudit.data.spans import make_batch
from lensaudit.models.bridge import residuals
from lensaudit.patching.generation import generate
from lensaudit.scores.depth import mean_per_example

pytestmark = pytest.mark.gpu

DEVICE = os.environ.get("GPU_TESTS_ON", "cuda")
SWEPT = ("Llama-3.2", "Qwen3", "Gemma3", "OLMo2", "GPT-NeoX", "GPT-2", "Phi3", "Cohere", "Mixtral")
NATS = 1e-4
BFLOAT16_NATS = 0.25
"""On random models: kernels of half precision round by the shape of what they are given."""


def test_a_mean_over_a_long_span_is_the_same_each_time_and_on_the_processor():
    values, span = torch.randn(47), torch.zeros(47, dtype=torch.long)
    found = {float(mean_per_example(values.to(DEVICE), span.to(DEVICE), 1)[0]) for _ in range(50)}
    assert found == {float(mean_per_example(values, span, 1)[0])}


@pytest.mark.parametrize("architecture", SWEPT)
def test_sweep_and_oracle_on_the_device_are_those_of_the_processor(
    tmp_path, tiny_tokenizer, architecture
):
    kind, changes = support.ARCHITECTURES[architecture]
    names = ("full", "retain", "a")
    folder = save_questions(save_family(tmp_path, tiny_tokenizer, kind, names=names, **changes))
    found = {}
    for device, engine in (("cpu", "sweep"), (DEVICE, "sweep"), (DEVICE, "oracle")):
        audit, notices = audit_in(
            folder, activations=tmp_path / device, device=device, dtype="float32", engine=engine
        )
        found[device, engine] = run(audit)
        assert (found[device, engine].engine, notices) == (engine, [])
    wanted = found["cpu", "sweep"]
    for one in found.values():
        assert (one.s1 - wanted.s1).abs().max() <= NATS
        for name, s2 in wanted.s2.items():
            assert (one.s2[name] - s2).abs().max() <= NATS


def test_bfloat16_on_the_device_stays_near_its_oracle_and_the_processors(tmp_path, tiny_tokenizer):
    folder = save_questions(save_family(tmp_path, tiny_tokenizer, names=("full", "retain", "a")))
    found = [
        run(audit_in(folder, activations=tmp_path / name, **settings)[0])
        for name, settings in {
            "exact": {"device": "cpu", "dtype": "float32"},
            "sweep": {"device": DEVICE, "dtype": "bfloat16"},
            "oracle": {"device": DEVICE, "dtype": "bfloat16", "engine": "oracle"},
        }.items()
    ]
    for one in found[1:]:
        assert (one.s1 - found[0].s1).abs().max() <= BFLOAT16_NATS
        assert torch.isfinite(one.s1).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cache_made_on_the_device_holds_what_the_model_thought(tmp_path, dtype):
    encoded = embedded_forget()[FEW]
    checkpoint = checkpoint_of("demo/npo")
    model = la.load_model("demo/npo", dtype=dtype, device=DEVICE)
    fingerprint = fingerprint_of_run(
        checkpoint, encoded, positions="all", dtype=dtype, device=DEVICE, batch_size=1
    )
    made = {"name": "demo/npo", "load": lambda: model, "batch_size": 1}
    with fill(ActivationStore(tmp_path), fingerprint, encoded, **made) as cache:
        for e in encoded:
            stack, _ = residuals(model, make_batch([e]).tokens.to(DEVICE))
            assert torch.equal(cache.example(e.idx).resid, stack[0].cpu())


def test_what_is_generated_on_the_device_is_what_the_processor_says():
    prompts = [list(e.token_ids[: e.n_prompt]) for e in embedded_forget()[FEW]]
    said = [
        generate(la.load_model("demo/full", device=device), prompts, max_new_tokens=12, stop=end)
        for device in ("cpu", DEVICE)
        for end in [frozenset[int]()]
    ]
    assert said[0] == said[1]
