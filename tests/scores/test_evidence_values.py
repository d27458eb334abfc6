"""Evidence values: fair under ignorance, named by e-BH, bits with limits at any time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lensaudit.scores.assignment import (
    bits,
    candidates_wanted,
    evidence,
    named_facts,
    prior_of,
)


def test_evidence_has_mean_one_where_the_prior_is_the_law_of_the_ignorant():
    draw = torch.Generator().manual_seed(0)
    prior = torch.rand(6, generator=draw).softmax(0)
    read = torch.randn(3, 6, generator=draw).softmax(1)
    # the truth is any candidate with its chance; the true one stands first
    mean = sum(float(prior[at]) * evidence(read.roll(-at, 1), prior.roll(-at)) for at in range(6))
    assert mean == pytest.approx(1.0, abs=1e-6)


def test_the_largest_of_two_priors_makes_evidence_at_most_one_under_a_mixture_of_them():
    draw = torch.Generator().manual_seed(1)
    one, other = torch.randn(2, 6, generator=draw).softmax(1)
    read, law = torch.randn(1, 6, generator=draw).softmax(1), 0.3 * one + 0.7 * other
    prior = prior_of([one, other])
    mean = sum(float(law[at]) * evidence(read.roll(-at, 1), prior.roll(-at)) for at in range(6))
    assert mean <= 1.0


def test_a_floor_keeps_evidence_below_fifty_times_the_candidates():
    prior = prior_of([torch.tensor([0.0, 1.0])])
    assert evidence(torch.tensor([[1.0, 0.0]]), prior) == pytest.approx(100.0)


def test_bits_are_bounded_below_and_those_of_a_sure_reader_are_those_of_the_prior():
    prior = torch.full((16,), 1 / 16)
    sure, wrong = torch.eye(16)[:1], torch.eye(16)[1:2]
    assert bits(sure, prior) == pytest.approx(math.log2(0.1 + 0.9 * 16))
    assert bits(wrong, prior) == pytest.approx(math.log2(0.1))


@settings(deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_named_facts_are_the_definition_of_e_bh(values):
    e = dict(enumerate(values))
    ordered = sorted(values, reverse=True)
    k = max((k for k in range(1, len(e) + 1) if ordered[k - 1] >= len(e) / (0.1 * k)), default=0)
    assert len(named_facts(e, 0.1)) == k


def test_false_discoveries_stay_below_the_level_under_dependence():
    draw, shares = np.random.default_rng(0), []
    for _ in range(400):
        common = draw.exponential()  # ten facts with one and the same evidence
        e = dict.fromkeys(range(10), common) | dict.fromkeys(range(10, 14), 100.0)
        named = named_facts(e, 0.2)
        shares.append(sum(idx < 10 for idx in named) / max(1, len(named)))
    assert np.mean(shares) <= 0.2


def test_fewer_candidates_than_wanted_can_name_nothing():
    wanted = candidates_wanted(64, 6, 0.1)
    assert wanted == 107
    knows = dict.fromkeys(range(6), 1.0) | dict.fromkeys(range(6, 64), 0.0)
    assert len(named_facts({idx: wanted * one for idx, one in knows.items()}, 0.1)) == 6
    assert named_facts({idx: (wanted - 1) * one for idx, one in knows.items()}, 0.1) == []
