import shutil

import pytest
import torch
from rich.filesize import decimal

from lensaudit.errors import InputError
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.large import placement
from lensaudit.models.registry import resolve
from lensaudit.models.sizes import n_parameters


@pytest.fixture
def opened(tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    return open_checkpoint(resolve(str(folder), {}))


def refusal(opened, monkeypatch, free, **asked):
    """What is said with so many bytes free by device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: len(free) > 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free) - 1)
    monkeypatch.setattr(placement, "free_bytes", lambda device: free[device])
    with pytest.raises(InputError) as caught:
        load_causal(opened, **asked)
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    return said


def test_weights_are_counted_once(opened):
    model = load_causal(opened)
    assert n_parameters(opened.folder) == sum(one.numel() for one in model.parameters())
    (opened.folder / "consolidated.safetensors").write_bytes(b"another form of the same weights")
    assert n_parameters(opened.folder) == sum(one.numel() for one in model.parameters())


def test_a_device_too_small_is_told_what_would_do(opened, monkeypatch):
    n = n_parameters(opened.folder)
    cases = {
        "--dtype bfloat16 would do": {"cpu": 2 * n},
        "--device cuda:1 would do": {"cuda:0": 0, "cuda:1": 4 * n, "cpu": 9 * n},
        "--device cpu would do": {"cuda:0": 4 * n - 1, "cpu": 4 * n},
        "--device cpu --dtype bfloat16 would do": {"cuda:0": 2 * n - 1, "cpu": 4 * n - 1},
        "which then bring it block by block": {"cpu": 2 * n - 1},
        f"a device with {decimal(2 * n)} would do, with --dtype bfloat16": {"cpu": n // 2},
    }
    for wanted, free in cases.items():
        said = refusal(opened, monkeypatch, free, device=next(iter(free)))
        assert said.endswith(wanted)
        place, n_bytes = next(iter(free.items()))
        assert f"{decimal(n_bytes)} are free on {place}" in said
    assert "in bfloat16" in refusal(opened, monkeypatch, {"cpu": 2 * n - 1}, dtype=torch.bfloat16)


def test_what_fits_exactly_or_is_not_known_is_loaded(opened, monkeypatch):
    for free in (4 * n_parameters(opened.folder), None):
        monkeypatch.setattr(placement, "free_bytes", lambda device, free=free: free)
        assert load_causal(opened).training is False
