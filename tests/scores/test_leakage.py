"""Leakage by sampling, against a categorical model whose probability is known."""

import math

import numpy as np
import pytest

from lensaudit.scores.intervals import clustered_mean
from lensaudit.scores.naming import (
    Errors,
    leak_at_k,
    leak_corrected,
    leak_exact,
    never_hit_bound,
)


def test_leak_of_a_certain_and_of_an_impossible_span():
    assert leak_exact(0.0, 1) == 1.0
    assert leak_exact(-math.inf, 128) == 0.0


def test_a_tiny_probability_keeps_its_digits():
    assert leak_exact(math.log(1e-18), 64) == pytest.approx(64e-18, rel=1e-9)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_what_has_no_value_is_refused(n, c, k):
    with pytest.raises(ValueError, match="leak"):
        leak_at_k(n, c, k)


def test_leak_at_1_is_the_rate_and_at_n_whether_any_hit():
    assert leak_at_k(8, 3, 1) == pytest.approx(3 / 8)
    assert (leak_at_k(8, 0, 8), leak_at_k(8, 1, 8)) == (0.0, 1.0)


@pytest.mark.parametrize("p", [0.0, 0.004, 0.03, 0.3, 1.0])
@pytest.mark.parametrize("k", [1, 8, 64])
def test_the_estimate_is_unbiased(p, k):
    # the expectation is a finite sum: no simulation, no tolerance for luck
    n = 100
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    mean = sum(w * leak_at_k(n, c, k) for c, w in enumerate(weights))
    assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-9)


def test_plugging_the_rate_in_is_biased():
    n, k, p = 100, 64, 0.01
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    plugged = sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(weights))
    assert abs(plugged - (1 - (1 - p) ** k)) > 0.02


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


def test_rogan_gladen_undoes_the_errors_per_draw():
    errors, p = Errors(0.8, 0.95), 0.2
    observed = p * 0.8 + (1 - p) * 0.05
    assert errors.corrected(observed) == pytest.approx(p)
    assert Errors(1.0, 1.0).corrected(0.3) == pytest.approx(0.3)


def test_the_correction_comes_before_the_power():
    # 1 of 100 draws is what a matcher of specificity .99 finds of nothing
    assert leak_corrected(100, 1, 64, Errors(1.0, 0.99)) == pytest.approx(0.0, abs=1e-9)
    assert Errors(1.0, 0.99).false_leak(64) == pytest.approx(0.4744, abs=1e-4)


def test_errors_no_better_than_a_coin_are_refused():
    with pytest.raises(ValueError, match="above 1"):
        Errors(0.5, 0.5)


def test_bound_of_a_fact_that_never_came_out():
    # (1 - p)^m = alpha / N
    assert (1 - never_hit_bound(200, 367)) ** 200 == pytest.approx(0.05 / 367)
