"""A model larger than the memory of its process is audited block by block; it would not load."""

import json
import os
import re
import subprocess
import sys

import pytest
import support
import torch
from support.audit_helpers import save_family, save_questions

from lensaudit.activations.opening import open_activations
from lensaudit.errors import TryAgainError
from lensaudit.training.trainee import n_parameters

LIMITED = """
import resource, sys
import lensaudit.auditing.patch, lensaudit.doors.cache_fill
# what a run imports where it is needed is no part of what it takes
import lensaudit.models.booting, lensaudit.patching.controls, lensaudit.patching.wavefront
import scipy.stats, sklearn, transformers.models.llama.modeling_llama
import transformers.models.mixtral.modeling_mixtral
from lensaudit.cli.main import main
from lensaudit.models.large import placement
mb, unchecked = int(sys.argv[1]), sys.argv[2] == "unchecked"
if mb:
    used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + (mb << 20),) * 2)
if unchecked:
    placement.free_bytes = lambda device: None
sys.argv = ["lensaudit", *sys.argv[3:]]
main()
"""
LEFT_MB = 380
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""Freed memory counts as free, as that of real blocks does: over 32 MiB they are mapped anyway."""


def audited(folder, name, *words, mb=0, checked="checked"):
    how = ["--data", folder / "forget.json", "--memory", "256M", "--activations", folder / name]
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, str(mb), checked, *words, *map(str, how)],
            capture_output=True,
            text=True,
            cwd=folder,
            env=os.environ | GIVEN_BACK | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )
        # libraries keep now more, now less of what earlier models took: it says to run it again
        if done.returncode != TryAgainError.exit_code:
            break
        print("run again:", done.stderr[-400:])
    return done


@pytest.mark.slow
def test_a_model_larger_than_the_limit_of_its_process_is_audited_block_by_block(
    tmp_path, tiny_tokenizer
):
    save_family(
        save_questions(tmp_path),
        tiny_tokenizer,
        names=("full", "retain", "a"),
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=8,
    )
    assert 4 * n_parameters(tmp_path / "full") > 1.2 * (LEFT_MB << 20)
    cache = ["cache", "--model", tmp_path / "a", "--component", "resid", "--component", "mlp"]
    patch = [
        *("patch", "--full", tmp_path / "full", "--retain", tmp_path / "retain"),
        *("--source", tmp_path / "a"),
    ]
    for words in (cache, patch):
        out = ["--out", tmp_path / "out-part"] if words is patch else []
        part = audited(tmp_path, "part", *map(str, [*words, *out]), mb=LEFT_MB)
        assert part.returncode == 0, part.stderr
        out = ["--out", tmp_path / "out-whole"] if words is patch else []
        whole = audited(tmp_path, "whole", *map(str, [*words, *out]))
        assert whole.returncode == 0, whole.stderr
    caches = [seal.parent for seal in (tmp_path / "whole").glob("*/SEAL.json")]
    assert len(caches) >= 4
    for one in caches:
        with open_activations(one) as wanted, open_activations(tmp_path / "part" / one.name) as got:
            for idx in wanted.idx:
                both = got.example(idx).resid, wanted.example(idx).resid
                torch.testing.assert_close(*both, rtol=0, atol=1e-5)
    rows = [
        [json.loads(line) for line in (tmp_path / name / "results.jsonl").read_text().splitlines()]
        for name in ("out-part", "out-whole")
    ]
    assert len(rows[0]) == 9
    for mine, theirs in zip(*rows, strict=True):
        assert mine.keys() == theirs.keys()
        for key in ("s1", "s2"):
            assert mine[key] == pytest.approx(theirs[key], abs=1e-5, nan_ok=True)
    # without streaming it is refused, and where nobody asks it dies
    words = [*map(str, cache), "--device", "cpu"]
    refused = audited(tmp_path, "none", *words, mb=LEFT_MB)
    assert refused.returncode == 2
    weights = r"weights take 503\.9 MB in float32 \(\S+ MB in bfloat16\), free are .*cpu"
    assert re.search(weights, refused.stderr)
    dead = audited(tmp_path, "none", *words, mb=LEFT_MB, checked="unchecked")
    assert dead.returncode != 0
    assert "out of memory" in dead.stderr


@pytest.mark.slow
def test_experts_take_no_more_than_the_block_that_they_belong_to(tmp_path, tiny_tokenizer):
    sizes = {"hidden_size": 512, "intermediate_size": 3584, "num_hidden_layers": 2}
    support.tiny_model_of("Mixtral", **sizes, num_local_experts=8).save_pretrained(tmp_path / "a")
    tiny_tokenizer.save_pretrained(tmp_path / "a")
    # a block of 176 MiB, and 163 MiB for activations
    words = ["cache", "--model", str(tmp_path / "a")]
    part = audited(save_questions(tmp_path), "part", *words, mb=360)
    assert part.returncode == 0, part.stderr


@pytest.mark.slow
def test_weights_that_are_cast_take_what_they_take_when_cast(tmp_path, tiny_tokenizer):
    sizes = {"hidden_size": 1024, "intermediate_size": 5120, "num_attention_heads": 8}
    support.tiny_model_of("Llama", **sizes, num_key_value_heads=8).save_pretrained(tmp_path / "a")
    tiny_tokenizer.save_pretrained(tmp_path / "a")
    words = ["cache", "--model", str(tmp_path / "a"), "--dtype", "bfloat16"]
    # 152 MiB, of a file of 304, and 163 MiB for activations
    part = audited(save_questions(tmp_path), "part", *words, mb=420)
    assert part.returncode == 0, part.stderr
    assert "block by block" not in part.stdout + part.stderr
