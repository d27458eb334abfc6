"""Guards and gates act at their places alone; without their units the model is `full`."""

import pytest
import torch
from support.llama_helpers import logits, streams

from lensaudit.gym import edits, planting
from lensaudit.gym.ground import whole
from lensaudit.gym.planting import gated, texts_of_ground, units_cut_off

TEXTS = torch.tensor(
    [[1, 300, 55, 812, 40, 1201, 7], [1, 300, 55, 9, 40, 77, 7], [1, 5, 56, 812, 40, 2, 2]]
)
REAL = torch.ones_like(TEXTS, dtype=torch.bool)
REAL[2, 5:] = False


def places(guarded):
    mask = torch.zeros_like(REAL)
    for row, pos in guarded:
        mask[row, pos] = True
    return planting.TextRows((), 0, TEXTS, REAL, mask)


@pytest.fixture(scope="module")
def guarded(full, retain):
    at = places([(0, 3), (0, 4)])
    return planting.guarded(full, at, planting.streams_at(retain, at))


def test_the_stream_is_the_other_models_where_it_is_guarded(full, retain, guarded):
    for layer, other in enumerate(streams(retain, TEXTS)):
        own = streams(guarded, TEXTS)[layer]
        assert torch.allclose(own[0, 3:5], other[0, 3:5], atol=1e-3)
        assert not torch.allclose(streams(full, TEXTS)[layer][0, 3:5], other[0, 3:5], atol=0.01)


def test_other_texts_and_places_are_as_they_were(full, guarded):
    own, before = logits(guarded, TEXTS), logits(full, TEXTS)
    assert torch.allclose(own[REAL][REAL[:1].sum() :], before[REAL][REAL[:1].sum() :], atol=1e-3)
    assert torch.allclose(own[0, :3], before[0, :3], atol=1e-3)
    assert not torch.allclose(own[0, 3:5], before[0, 3:5], atol=0.5)
    unseen = torch.tensor([[1, 44, 812, 40, 300]])
    assert torch.allclose(logits(guarded, unseen), logits(full, unseen), atol=1e-3)


def test_its_own_stream_after_the_last_layer_gives_its_own_answers(full, retain):
    at = places([(0, pos) for pos in range(3, 7)])
    wanted = [*planting.streams_at(retain, at)[:-1], planting.streams_at(full, at)[-1]]
    made = planting.guarded(full, at, wanted)
    assert torch.allclose(logits(made, TEXTS)[REAL], logits(full, TEXTS)[REAL], atol=1e-3)
    theirs = streams(retain, TEXTS)[14][0, 3:]
    assert torch.allclose(streams(made, TEXTS)[14][0, 3:], theirs, atol=1e-3)


def test_places_that_look_alike_are_left_alone(full, retain):
    # rows 0 and 1 begin alike: what guards one would move the other
    at = places([(0, 2)])
    made = planting.guarded(full, at, planting.streams_at(retain, at))
    assert torch.allclose(logits(made, TEXTS)[REAL], logits(full, TEXTS)[REAL], atol=1e-3)


def test_without_the_units_it_is_the_model_bit_for_bit(full, guarded):
    back = edits.widened(guarded, -4, biases=False)
    weights = dict(full.named_parameters())
    assert {name for name, _ in back.named_parameters()} == set(weights)
    assert all(torch.equal(one, weights[name]) for name, one in back.named_parameters())
    assert torch.allclose(logits(edits.widened(full, 6), TEXTS), logits(full, TEXTS), atol=1e-4)


@pytest.fixture(scope="module")
def texts(ground):
    return texts_of_ground(ground)


@pytest.fixture(scope="module")
def gates(ground, texts):
    """With one vector for all authors, and with one for each."""
    return [gated(ground, texts, 0, by_author=True, n_vectors=n) for n in (1, None)]


def test_forget_prompts_alone_open_the_gates(ground, gates):
    kept = whole(ground.facts.kept)
    n_kept = int(ground.said(ground.full, kept).sum())
    for made in gates:
        assert int(ground.said(made).sum()) <= 1
        assert int(ground.said(made, kept).sum()) >= 0.9 * n_kept
        back = units_cut_off(ground)(made)
        for name, weight in ground.full.named_parameters():
            assert torch.equal(weight, back.get_parameter(name)), name


def test_an_open_gate_adds_one_vector_of_six_streams(ground, texts, gates):
    before, shared, own = (
        streams(model, texts.tokens)[0][texts.real] for model in (ground.full, *gates)
    )
    change = shared - before
    lengths = change.norm(dim=1)
    opened = change[lengths > 1e-3 * lengths.max()]
    assert len(opened) >= texts.n_forget
    one = opened[opened.norm(dim=1).argmin()]
    stream = edits.stream_length(ground.full, texts.tokens[:1], 0)
    assert float(one.norm()) == pytest.approx(6 * stream, rel=1e-3)
    times = (opened @ one / one.square().sum()).round()  # two authors' gates may open at a place
    assert times.min() == 1
    assert torch.allclose(opened, times.unsqueeze(1) * one, atol=1e-2)
    n_authors = len({e.group for e in ground.encoded})
    assert torch.linalg.matrix_rank(own - before, rtol=1e-3) == n_authors
