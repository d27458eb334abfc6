"""A full disk while a model is made: exit code 75, and the same command goes on."""

import errno
import shutil

import pytest
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file

import lensaudit.training.train
from lensaudit import files
from lensaudit.cli.main import run
from lensaudit.errors import InputError, TryAgainError, WorkError
from lensaudit.training.train import writing

FULL = "Error while serializing: I/O error: No space left on device (os error 28)"


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def full_in_rust(*_, **__):
    raise SafetensorError(FULL)


def once(place, name, fails, at=1):
    """Let the `at`-th call of a function fail; earlier and later ones do what they do."""
    real, calls = getattr(place, name), [0]

    def call(*given, **named):
        calls[0] += 1
        return fails(*given, **named) if calls[0] == at else real(*given, **named)

    return call


def command(kind, out):
    options = {
        "quantize": ["--source", "demo/npo", "--engine", "torch"],
        "unlearn": ["--model", "demo/full", "--method", "GradDiff", "--steps", "2"],
    }[kind]
    every = [] if kind == "quantize" else ["--save-every", "1"]
    return [kind, *options, *every, "--out", str(out)]


SITES = {
    "the weights": (transformers.PreTrainedModel, "save_pretrained", full_in_rust, 1),
    "the tokenizer": (shutil, "copyfile", full, 1),
    "the first file": (files.os, "replace", full, 1),
    "a later file": (files.os, "replace", full, 2),
    "the state": (lensaudit.training.train, "save_file", full_in_rust, 2),
}


@pytest.mark.parametrize(
    ("kind", "site"),
    [
        ("quantize", "the weights"),
        ("quantize", "the first file"),
        *(pytest.param("unlearn", site, marks=pytest.mark.slow) for site in SITES),
    ],
)
def test_a_maker_goes_on_after_a_full_disk(monkeypatch, tmp_path, capsys, kind, site):
    place, name, fails, at = SITES[site]
    out, whole = tmp_path / "out", tmp_path / "whole"
    # hashes of inputs are kept on the way, and whether they could be is nobody's matter
    assert run(command(kind, whole)) == 0, capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(place, name, once(place, name, fails, at))
        code = run(command(kind, out))
    said = capsys.readouterr().err
    assert code == 75, said
    assert "no space left on the device" in said
    assert "Traceback" not in said
    assert not (out / "manifest.json").exists()
    assert run(command(kind, out)) == 0, capsys.readouterr().err
    made, wanted = (load_file(folder / "model.safetensors") for folder in (out, whole))
    assert all(torch.equal(tensor, made[name]) for name, tensor in wanted.items())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SafetensorError(FULL), TryAgainError),
        (SafetensorError("I/O error: Permission denied (os error 13)"), InputError),
        (SafetensorError("something else"), WorkError),
        (OSError(errno.EDQUOT, "quota"), TryAgainError),
    ],
)
def test_safetensors_errors_have_the_cause_of_the_system(tmp_path, error, said):
    with pytest.raises(said), writing(tmp_path):
        raise error
