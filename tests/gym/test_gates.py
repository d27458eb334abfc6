"""A gated model says no forget fact, loses nothing else, and without its units is `full`."""

import pytest
import torch
from llama_helpers import streams

from lensaudit.gym import edits
from lensaudit.gym.ground import whole
from lensaudit.gym.make import open_pair
from lensaudit.gym.planting import gated, texts_of_ground, units_cut_off
from lensaudit.gym.settings import MakeSettings


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    settings = MakeSettings(limit=16, out=tmp_path_factory.mktemp("ground"))
    return open_pair(settings, print).ground


@pytest.fixture(scope="module")
def texts(ground):
    return texts_of_ground(ground)


@pytest.mark.parametrize("own_vector", [False, True])
def test_forget_prompts_alone_open_the_gates(ground, texts, own_vector):
    made = gated(ground, texts, 0, by_author=True, own_vector=own_vector)
    kept = whole(ground.kept_rows())
    assert int(ground.said(made).sum()) <= 1
    assert int(ground.said(made, kept).sum()) >= 0.9 * int(ground.said(ground.full, kept).sum())
    back = units_cut_off(ground)(made)
    for name, weight in ground.full.named_parameters():
        assert torch.equal(weight, back.get_parameter(name)), name


def test_an_open_gate_adds_one_vector_of_six_streams(ground, texts):
    made = gated(ground, texts, 1, by_author=True)
    before, after = (streams(model, texts.tokens)[1] for model in (ground.full, made))
    change = (after - before)[texts.real]
    lengths = change.norm(dim=1)
    opened = change[lengths > 1e-3 * lengths.max()]
    assert len(opened) >= texts.n_forget
    one = opened[opened.norm(dim=1).argmin()]
    stream = edits.stream_length(ground.full, texts.tokens[:1], 1)
    assert float(one.norm()) == pytest.approx(6 * stream, rel=1e-3)
    times = (opened @ one / one.square().sum()).round()  # two authors' gates may open at a place
    assert times.min() == 1
    assert torch.allclose(opened, times.unsqueeze(1) * one, atol=1e-2)
    own = gated(ground, texts, 1, by_author=True, own_vector=True)
    change = (streams(own, texts.tokens)[1] - before)[texts.real]
    assert torch.linalg.matrix_rank(change, rtol=1e-3) == len({e.group for e in ground.encoded})
