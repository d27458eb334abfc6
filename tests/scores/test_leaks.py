"""Leakage by sampling: unbiased, also where the matcher errs, and its interval."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from lensaudit.scores.intervals import clustered_mean
from lensaudit.scores.leaks import leak_exact
from lensaudit.scores.sampled import Errors, leak_at_k, leak_corrected, never_hit_bound


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
