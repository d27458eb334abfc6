import shutil

import pytest
import torch
from rich.filesize import decimal
from support import checkpoint_of, refusal

from lensaudit.models.causal import load_causal
from lensaudit.models.large import placement
from lensaudit.training.trainee import n_parameters


@pytest.fixture
def opened(tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    return checkpoint_of(folder)


def refused(opened, monkeypatch, free, **asked):
    """What is said with so many bytes free by device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: len(free) > 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free) - 1)
    monkeypatch.setattr(placement, "free_bytes", lambda device: free[device])
    return refusal(load_causal, opened, **asked)


def test_weights_are_counted_once(opened):
    model = load_causal(opened)
    assert n_parameters(opened.folder) == sum(one.numel() for one in model.parameters())
    (opened.folder / "consolidated.safetensors").write_bytes(b"another form of the same weights")
    assert n_parameters(opened.folder) == sum(one.numel() for one in model.parameters())


def test_a_device_too_small_is_told_with_what_is_free_elsewhere(opened, monkeypatch):
    n = n_parameters(opened.folder)
    said = refused(opened, monkeypatch, {"cpu": 4 * n - 1})
    assert f"take {decimal(4 * n)} in float32 ({decimal(2 * n)} in bfloat16), free are" in said
    free = {"cuda:0": 0, "cuda:1": 4 * n, "cpu": 9 * n}
    said = refused(opened, monkeypatch, free, device="cuda:0")
    there = f"{decimal(4 * n)} on cuda:1, {decimal(9 * n)} on cpu"
    assert f"free are 0 bytes on cuda:0, {there}" in said
    assert "in bfloat16" in refused(opened, monkeypatch, {"cpu": 2 * n - 1}, dtype=torch.bfloat16)


def test_what_fits_exactly_or_is_not_known_is_loaded(opened, monkeypatch):
    for free in (4 * n_parameters(opened.folder), None):
        monkeypatch.setattr(placement, "free_bytes", lambda device, free=free: free)
        assert load_causal(opened).training is False
