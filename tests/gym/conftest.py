"""The embedded `full` and `retain`, the ground that recipes are given, and a few tokens."""

import pytest
import torch


@pytest.fixture(scope="session")
def full():
    return _loaded("full")


@pytest.fixture(scope="session")
def retain():
    return _loaded("retain")


def _loaded(name):
    from lensaudit.models.causal import load_causal
    from lensaudit.models.checkpoint import open_model

    return load_causal(open_model(f"demo/{name}"))


@pytest.fixture(scope="session")
def text():
    return torch.tensor([[1, 300, 55, 812, 40, 1201, 7]])


@pytest.fixture(scope="session")
def ground(tmp_path_factory):
    """On 16 facts; nothing of it may be changed."""
    from lensaudit.gym.make import open_pair
    from lensaudit.gym.settings import MakeSettings

    settings = MakeSettings(limit=16, out=tmp_path_factory.mktemp("ground"))
    return open_pair(settings, print).ground
