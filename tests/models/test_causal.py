"""A checkpoint is loaded whole or not at all."""

import shutil

import pytest
from safetensors.torch import load_file, save_file

from lensaudit.errors import InputError
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.registry import Registry, resolve

LOST = "model.layers.1.mlp.down_proj.weight"


def opened(folder):
    return open_checkpoint(resolve(str(folder), Registry({})))


def test_weights_that_lack_a_tensor_are_refused_by_its_name(tiny_checkpoint, tmp_path):
    """Transformers would fill it at random, and warn."""
    assert load_causal(opened(tiny_checkpoint)).training is False
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "cut")
    tensors = load_file(folder / "model.safetensors")
    del tensors[LOST]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=rf"lack 1 tensors .*first {LOST}"):
        load_causal(opened(folder))
