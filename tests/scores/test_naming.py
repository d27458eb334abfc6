"""Naming facts: calibrated under the null, honest where it is out of reach; leakage by sampling."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from lensaudit.scores.intervals import clustered_mean
from lensaudit.scores.naming import (
    Errors,
    gaps,
    leak_at_k,
    leak_corrected,
    leak_exact,
    name_facts,
    never_hit_bound,
    strongest,
)


def null(n_facts, n_placebos, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1 + n_placebos, generator=generator) for _ in range(n_facts)]


def differences(source, retains):
    """D of every candidate."""
    return strongest(gaps(source, retains))


def test_strongest_worked_by_hand():
    # attack 0: mean 2, sd sqrt(2): z = (-1, 0, 1) * 1.2247; attack 1 scores nothing of the fact
    exposure = torch.tensor([[0.5, 2.0, 3.5], [torch.nan] * 3, [1.0, 1.0, 1.0]])
    assert strongest(exposure).tolist() == pytest.approx([0.0, 0.0, 1.2247], abs=1e-4)


def test_a_prior_that_both_arms_share_cancels():
    likely = torch.tensor([[9.0, 0.0, 1.0, 2.0]])
    assert differences(likely, [likely, likely]).tolist() == [0.0] * 4
    # the same entity, likelier in the source alone
    found = differences(
        torch.tensor([[9.0, 0.0, 1.0, 2.0]]), [torch.tensor([[1.5, 0.0, 1.0, 2.0]])]
    )
    assert found.argmax() == 0


def test_arms_are_compared_on_the_attacks_that_score_both():
    gap = torch.tensor([[5.0, 0.0, 1.0], [torch.nan] * 3])
    whole = torch.tensor([[5.0, 0.0, 1.0], [0.0, 7.0, 0.0]])
    assert differences(gap, [whole]).tolist() == [0.0] * 3


def test_an_attack_that_reads_nothing_does_not_drown_one_that_does():
    generator = torch.Generator().manual_seed(4)
    blind = [torch.randn(3, 100, generator=generator) for _ in range(2)]
    seen, prior = torch.randn(2, 1, 100, generator=generator)
    seen[0, 0] = prior[0, 0] + 8
    found = differences(torch.cat((blind[0], seen)), [torch.cat((blind[1], prior))])
    assert found.argmax() == 0
    # worked by hand: of the gaps between two standardised attacks, the larger standardised one
    own, other = torch.tensor([[4.0, 0.0, 2.0]]), torch.tensor([[0.0, 2.0, 4.0]])
    gap = (torch.tensor([2.0, -2, 0]) - torch.tensor([-2.0, 0, 2])) / (8 / 3) ** 0.5
    assert differences(own, [other]).tolist() == pytest.approx(
        ((gap - gap.mean()) / gap.std(correction=0)).tolist()
    )


def test_the_share_of_unknown_facts_sharpens_q():
    facts = null(20, 99, 2)
    for fact in facts[:15]:
        fact[0] = 99.0
    found = name_facts(facts)
    above = sum(p is not None and p > 0.5 for p in found.p)
    # 15 of p .01: q = n p / 15, times the estimated share of unknown facts
    assert found.q[0] == pytest.approx(20 * 0.01 / 15 * (1 + above) / 10)


def test_q_is_benjamini_hochberg():
    facts = null(4, 99, 0)
    for fact, rank in zip(facts, (0, 1, 3, 50), strict=True):
        fact[0] = fact[1:].sort(descending=True).values[rank] - 1e-4 if rank else 99.0
    found = name_facts(facts)
    # p = .01, .03, .05, .52 ... by rank + 1 placebos above; q_i = min over j >= i of n p_j / j
    expected = sorted(p for p in found.p if p is not None)
    by_hand = [min(4 * expected[j] / (j + 1) for j in range(i, 4)) for i in range(4)]
    assert sorted(q for q in found.q if q is not None) == pytest.approx(by_hand)


@pytest.mark.parametrize(("n_facts", "n_placebos"), [(56, 99), (40, 5)])
def test_nobody_is_named_where_nobody_knows(n_facts, n_placebos):
    runs = [any(name_facts(null(n_facts, n_placebos, seed)).named) for seed in range(300)]
    assert sum(runs) / len(runs) <= 0.1 + 2 * (0.1 * 0.9 / 300) ** 0.5


def test_what_is_known_is_named_and_little_else():
    shares = []
    for seed in range(100):
        facts = null(64, 99, seed)
        for fact in facts[:40]:
            fact[0] += 5
        named = name_facts(facts).named
        assert sum(named[:40]) >= 0.8 * 40
        shares.append(sum(named[40:]) / max(1, sum(named)))
    # the rate is .1 in expectation: what 100 runs may say
    assert np.mean(shares) <= 0.1 + 2 * np.std(shares) / len(shares) ** 0.5


def test_few_placebos_compete_with_a_decoy():
    facts = null(40, 5, 3)
    for fact in facts[:20]:
        fact[0] += 9
    found = name_facts(facts)
    assert found.method == "target-decoy"
    assert found.p == (None,) * 40
    assert sum(found.named[:20]) >= 18


def test_a_level_out_of_reach_and_facts_without_placebos_name_nobody():
    facts = null(9, 5, 0)
    for fact in facts:
        fact[0] = 99.0
    found = name_facts(facts)
    assert found.reason is not None
    assert not any(found.named)
    found = name_facts([*null(3, 99, 0), torch.zeros(1), None])
    assert found.p[3:] == (None, None)
    assert name_facts([torch.zeros(1), None]).reason == "no fact has a placebo"
    assert name_facts([None] * 3).reason == "no attack that counts compares candidates"


def test_leak_by_hand():
    assert leak_exact(0.0, 1) == 1.0
    assert leak_exact(-math.inf, 128) == 0.0
    # a tiny probability keeps its digits
    assert leak_exact(math.log(1e-18), 64) == pytest.approx(64e-18, rel=1e-9)
    # at 1 it is the rate, at n whether any hit
    assert leak_at_k(8, 3, 1) == pytest.approx(3 / 8)
    assert (leak_at_k(8, 0, 8), leak_at_k(8, 1, 8)) == (0.0, 1.0)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_what_has_no_value_is_refused(n, c, k):
    with pytest.raises(ValueError, match="leak"):
        leak_at_k(n, c, k)


@pytest.mark.parametrize("p", [0.0, 0.004, 0.01, 0.03, 0.3, 1.0])
@pytest.mark.parametrize("k", [1, 8, 64])
def test_the_estimate_is_unbiased(p, k):
    # the expectation is a finite sum: no simulation, no tolerance for luck
    n, truth = 100, 1 - (1 - p) ** k
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    mean = sum(w * leak_at_k(n, c, k) for c, w in enumerate(weights))
    assert mean == pytest.approx(truth, abs=1e-9)
    plugged = sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(weights))
    assert (p, k) != (0.01, 64) or abs(plugged - truth) > 0.02  # what is plugged in is biased


def test_coverage_of_the_interval_on_a_categorical_model():
    random = np.random.default_rng(0)
    n, k, n_authors, each = 128, 16, 20, 10
    truth = 1 - np.mean((1 - random.beta(0.3, 6, 200_000)) ** k)
    inside = 0
    n_runs = 400
    for _ in range(n_runs):
        p = random.beta(0.3, 6, n_authors * each)
        hits = random.binomial(n, p)
        values = [leak_at_k(n, int(c), k) for c in hits]
        found = clustered_mean(values, list(np.repeat(np.arange(n_authors), each)))
        assert found.ends
        inside += found.low <= truth <= found.high
    # two binomial standard errors below .95
    assert inside / n_runs >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / n_runs)


@pytest.mark.parametrize(("n", "k"), [(6, 1), (6, 4), (8, 8), (12, 5)])
@pytest.mark.parametrize("p", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("errors", [Errors(0.8, 0.95), Errors(1.0, 0.97), Errors(0.6, 1.0)])
def test_the_corrected_leak_is_unbiased_whatever_the_rate(n, k, p, errors):
    observed = p * errors.sensitivity + (1 - p) * (1 - errors.specificity)
    chances = binom.pmf(range(n + 1), n, observed)
    values = [leak_corrected(n, c, k, errors) for c in range(n + 1)]
    assert chances @ values == pytest.approx(1 - (1 - p) ** k, abs=1e-9)


def test_the_corrected_leak_worked_by_hand():
    # J = .5: a sample without a hit counts 1.5, one with a hit -.5; pairs of 3 samples, 1 a hit
    assert leak_corrected(3, 1, 2, Errors(0.75, 0.75)) == pytest.approx(
        1 - (1.5 * 1.5 + 2 * 1.5 * -0.5) / 3
    )
    assert leak_corrected(9, 2, 4, Errors(1.0, 1.0)) == pytest.approx(leak_at_k(9, 2, 4))
    assert Errors(1.0, 0.99).false_leak(64) == pytest.approx(0.4744, abs=1e-4)
    with pytest.raises(ValueError, match="above 1"):
        Errors(0.5, 0.5)  # no better than a coin


def test_bound_of_a_fact_that_never_came_out():
    # (1 - p)^m = alpha / N
    assert (1 - never_hit_bound(200, 367)) ** 200 == pytest.approx(0.05 / 367)
