"""The assignment test: exact against a list of all permutations, uniform under ignorance."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from lensaudit.association.assignment import (
    assignment_test,
    bits,
    double_centred,
    evidence,
    gamma_of,
    named_facts,
    prior_of,
    tilted_p,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def noise(n, *, readings=1, seed=0, known=0.0):
    table = torch.randn(readings, n, n, generator=torch.Generator().manual_seed(seed))
    return table + known * torch.eye(n)


def test_p_is_the_share_of_all_assignments_that_are_as_large():
    table = double_centred(noise(5, known=0.5))
    traces = [float(table[0, range(5), list(pi)].sum()) for pi in permutations(range(5))]
    wanted = sum(one >= traces[0] - 1e-6 for one in traces) / math.factorial(5)
    found = assignment_test([table], generator=rng())
    assert (found.p, found.n_permutations, found.exact) == (pytest.approx(wanted), 120, True)
    assert found.z == pytest.approx(traces[0] / np.std(traces), rel=1e-5)


def test_drawn_permutations_agree_with_all_of_them():
    table = double_centred(noise(7, known=0.4, seed=3))
    listed = assignment_test([table], generator=rng())
    twice = [table, torch.zeros(1, 3, 3)]  # a stratum without a difference changes no trace
    drawn = assignment_test(twice, generator=rng(), n_draws=20_000)
    assert not drawn.exact
    assert drawn.p == pytest.approx(listed.p, abs=4 * math.sqrt(listed.p / 20_000))


def test_two_strata_are_permuted_apart():
    parts = [double_centred(noise(3, seed=s, known=0.3)) for s in (1, 2)]
    sums = [
        float(parts[0][0, range(3), list(a)].sum() + parts[1][0, range(3), list(b)].sum())
        for a in permutations(range(3))
        for b in permutations(range(3))
    ]
    found = assignment_test(parts, generator=rng())
    assert found.n_permutations == 36
    assert found.p == pytest.approx(sum(one >= sums[0] - 1e-6 for one in sums) / 36)


def test_p_is_uniform_where_nothing_is_bound():
    found = [
        assignment_test(
            [double_centred(noise(8, readings=3, seed=seed))], generator=rng(seed), n_draws=400
        ).p
        for seed in range(300)
    ]
    assert kstest(found, "uniform").pvalue > 0.01
    assert np.mean(np.array(found) <= 0.05) <= 0.05 + 2.6 * math.sqrt(0.05 * 0.95 / 300)


def test_the_largest_of_two_readings_finds_what_one_of_them_does_not_show():
    known = double_centred(noise(8, known=3.0))
    both = torch.cat((double_centred(noise(8, seed=9)), known))
    found = assignment_test([both], generator=rng())
    assert (found.reading, found.p <= 1e-3) == (1, True)
    # the price of a second reading is paid: p of the one alone is not larger
    assert assignment_test([known], generator=rng()).p <= found.p


def test_how_easy_a_value_is_and_how_sure_a_prompt_is_change_nothing():
    table = noise(6).double()
    moved = table + torch.randn(6, generator=torch.Generator().manual_seed(1)).double()
    moved = moved + torch.arange(6).double().unsqueeze(1)
    assert torch.allclose(double_centred(moved), double_centred(table))


def test_one_subject_has_one_assignment_and_p_is_1():
    for strata in ([torch.ones(1, 1, 1)], []):
        found = assignment_test(strata, generator=rng())
        assert (found.p, found.z, found.n_permutations, found.exact) == (1.0, 0.0, 1, True)


def test_tilted_p_worked_by_hand():
    # one pair, true assignment better: B = 1 with chance gamma^2 / (1 + gamma^2)
    table = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert tilted_p([table], 1.0, generator=rng()) == pytest.approx(1 / 2)
    assert tilted_p([table], 2.0, generator=rng()) == pytest.approx(4 / 5)
    assert tilted_p([-table], 2.0, generator=rng()) == pytest.approx(1.0)
    assert tilted_p([1e-10 * table], 1.0, generator=rng()) == pytest.approx(1 / 2)


def test_four_pairs_bear_no_tilt_and_forty_do():
    few = double_centred(noise(8, known=9.0))[0]
    many = double_centred(noise(80, known=9.0))[0]
    assert gamma_of([few], 0.05, generator=rng()) == 0.0  # the least p is 1/16
    assert tilted_p([few], 1.0, generator=rng()) == pytest.approx(1 / 16)
    gamma = gamma_of([many], 0.05, generator=rng())
    assert gamma > 3  # .05^(1/40) = .93 = gamma^2 / (1 + gamma^2)
    assert tilted_p([many], 1.1 * gamma, generator=rng(5)) > 0.05


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


def test_evidence_and_bits_are_bounded():
    floored = prior_of([torch.tensor([0.0, 1.0])])
    assert evidence(torch.tensor([[1.0, 0.0]]), floored) == pytest.approx(100.0)
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
