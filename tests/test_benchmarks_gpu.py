import json
import sys
from math import isfinite

import pytest
import torch
from transformers import LlamaConfig

from benchmarks import gpu
from benchmarks.shapes import Shape
from benchmarks.sweep import Asked


def test_without_a_device_it_says_so_in_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path / "gpu.json")])
    assert gpu.main() == 2
    said = capsys.readouterr()
    assert said.err == "benchmarks.gpu: this machine has no CUDA device\n"
    assert said.out == ""
    assert not list(tmp_path.iterdir())


def test_the_sweep_and_the_slow_form_are_measured_on_the_device_that_is_named(monkeypatch):
    monkeypatch.setattr(Asked, "peak", lambda asked: 1e9)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=6,
        num_attention_heads=2,
    )
    shape = Shape("", "", config, 1, 1, 1)
    found = gpu.measured(shape, Asked("1G", 1, "cpu", "bfloat16"), n_rows=2)
    assert (found.dtype, found.n_rows) == ("bfloat16", 2)
    assert min(found.sweep_s, found.cached_s, found.sweep_share) > 0
    # a difference of two times of a few milliseconds
    assert isfinite(found.oracle_s)
    assert found.models_per_hour == pytest.approx(3600 / found.sweep_s)


@pytest.mark.parametrize(
    ("last", "code"),
    [("12 passed in 3.1s", 0), ("1 failed, 11 passed in 3.1s", 1), ("no tests ran in 0.1s", 1)],
)
def test_one_file_and_one_table(tmp_path, monkeypatch, capsys, last, code):
    def measured(shape, asked):
        assert (shape.name, asked.device) == ("llama-1b", "cuda")
        return gpu.Speed(
            dtype=asked.dtype,
            n_rows=367,
            oracle_s=90.0,
            sweep_s=9.0,
            cached_s=4.5,
            ke_s=8.0,
            cached_ke_s=4.0,
            peak_tflops=60.0,
            sweep_share=0.5,
            cached_share=0.6,
            memory_bytes=3 << 30,
            budget_bytes=16 << 30,
        )

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "measured", measured)
    monkeypatch.setattr(gpu, "describe", lambda device: f"a machine with {device}")
    monkeypatch.setattr(gpu, "tested", lambda: gpu.counted(f"2 failed, they said\n{last}\n"))
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path / "gpu.json")])
    assert gpu.main() == code
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert [one["models_per_hour"] for one in found["speeds"]] == [400, 400]
    assert found["tests"]["failed"] == int("failed" in last)
    out = capsys.readouterr().out
    assert (
        out.count("| 367 | 90 | 9 | 4.5 | 8 | 4 | 50%, 60% of 60 TFLOP/s | 3.0 of 16 GiB | 400 |")
        == 2
    )
    assert "a machine with cuda" in out
