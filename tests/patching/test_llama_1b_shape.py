"""Llama-3.2-1B's exact shape with random weights: does an audit stay within memory?"""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SHAPE = {
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "head_dim": 64,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}

MAKE = """
import json, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
folder, seed, shape = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
torch.manual_seed(seed)
torch.set_default_dtype(torch.bfloat16)
LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(folder)
"""

RUN = """
import resource, sys
from lensaudit.cli.main import run
code = run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""

KIB_PER_GIB = 1 << 20


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_tokenizer):
    folder = tmp_path_factory.mktemp("llama-1b")
    for seed, name in enumerate(("full", "retain", "source")):
        subprocess.run(
            [sys.executable, "-c", MAKE, str(folder / name), str(seed), json.dumps(SHAPE)],
            check=True,
        )
        tiny_tokenizer.save_pretrained(folder / name)
    rows = [
        {
            "idx": i,
            "question": " ".join(f"w{3 + (7 * i + k) % 50}" for k in range(20)),
            "answer": " ".join(f"w{5 + (3 * i + k) % 50}" for k in range(18)),
            "prefix": " ".join(f"w{5 + (3 * i + k) % 50}" for k in range(12)),
            "entity": " ".join(f"w{5 + (3 * i + k) % 50}" for k in range(12, 16)),
        }
        for i in range(4)
    ]
    (folder / "forget.json").write_text(json.dumps(rows))
    return folder


@pytest.mark.parametrize(("dtype", "limit_gib"), [("float32", 12), ("bfloat16", 7)])
def test_an_audit_of_four_examples_fits(models, tmp_path, dtype, limit_gib):
    arguments = [
        "patch",
        "--source",
        models / "source",
        "--full",
        models / "full",
        "--retain",
        models / "retain",
        "--data",
        models / "forget.json",
        "--dtype",
        dtype,
        "--activations",
        tmp_path / "activations",
        "--out",
        tmp_path / "out",
    ]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr
    peak_kib = int(done.stderr.splitlines()[-1])
    assert peak_kib < limit_gib * KIB_PER_GIB
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["n"] == 4
    assert len(summary["per_layer"]) == 16
