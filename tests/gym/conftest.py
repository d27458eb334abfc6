"""The embedded `full`, and a few tokens."""

import pytest
import torch


@pytest.fixture(scope="module")
def full():
    return _loaded("full")


@pytest.fixture(scope="module")
def retain():
    return _loaded("retain")


def _loaded(name):
    from lensaudit.models.causal import load_causal
    from lensaudit.models.checkpoint import open_checkpoint
    from lensaudit.models.registry import load_registry, resolve

    return load_causal(open_checkpoint(resolve(f"demo/{name}", load_registry())))


@pytest.fixture(scope="module")
def text():
    return torch.tensor([[1, 300, 55, 812, 40, 1201, 7]])
