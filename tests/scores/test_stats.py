"""Means, areas, distances and thresholds, against SciPy, scikit-learn and slow forms."""

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from sklearn.metrics import roc_auc_score
from support import GOLDEN

from lensaudit.scores.kolmogorov import ks_two_sample
from lensaudit.scores.means import harmonic_mean
from lensaudit.scores.separation import auc
from lensaudit.scores.threshold import Threshold, best_threshold

PUBLISHED = GOLDEN / "published" / "method_results.json"
quick = settings(deadline=None, derandomize=True, max_examples=60)
positive = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20)
scores = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=25)


@quick
@given(positive)
def test_harmonic_mean_equals_scipy(values):
    assert harmonic_mean(values) == pytest.approx(scipy_stats.hmean(values), rel=1e-12)


def test_harmonic_mean_by_hand():
    # 2 / (1 / (0 + 1e-12) + 1 / (1 + 1e-12))
    assert harmonic_mean([0.0, 1.0], eps=1e-12) == pytest.approx(2e-12, rel=1e-9)
    # one zero makes it zero
    assert harmonic_mean([0.0, 1.0, 1.0]) == 0.0
    assert harmonic_mean([5e-324, 1.0]) == 0.0
    assert math.isnan(harmonic_mean([1.0, math.nan]))


@pytest.mark.parametrize(("values", "eps"), [([], 0.0), ([0.5, -0.1], 0.0), ([0.5], -1.0)])
def test_harmonic_mean_refuses_no_values_and_negative_ones(values, eps):
    with pytest.raises(ValueError, match="harmonic mean"):
        harmonic_mean(values, eps=eps)


def test_published_aggregates_are_reproduced_to_the_bit():
    rows = json.loads(PUBLISHED.read_text())["models"]
    for row in rows:
        overall = [row["mem"], row["privacy"], row["utility_rel"]]
        assert harmonic_mean([row["privacy_mia"], row["uds"]], eps=1e-12) == row["privacy"]
        assert harmonic_mean(overall, eps=1e-12) == row["overall"]
    assert len(rows) == 152


@quick
@given(scores, scores)
def test_auc_equals_sklearn_with_ties(knows, forgot):
    labels = [1] * len(knows) + [0] * len(forgot)
    assert auc(knows, forgot) == pytest.approx(roc_auc_score(labels, knows + forgot), abs=1e-12)


def test_auc_worked_by_hand():
    # pairs (3,1) (3,2) (2,1) count 1 each, the tie (2,2) counts 1/2: 3.5 of 4
    assert auc([3, 2], [1, 2]) == 0.875
    assert math.isnan(auc([1.0, math.nan], [0.0]))
    with pytest.raises(ValueError, match="samples of 0"):
        auc([], [1.0])


@quick
@given(scores, scores)
@pytest.mark.filterwarnings("ignore:ks_2samp")
def test_ks_equals_scipy(a, b):
    test, expected = ks_two_sample(a, b), scipy_stats.ks_2samp(a, b)
    assert (test.statistic, test.p_value) == (expected.statistic, expected.pvalue)
    assert test.log10_p == pytest.approx(math.log10(test.p_value), abs=1e-12)


def log10(number: Fraction) -> float:
    """Of a fraction far below the smallest float."""
    digits = len(str(number.denominator)) - len(str(number.numerator))
    return math.log10(number * 10**digits) - digits


@pytest.mark.parametrize(("n_a", "n_b"), [(400, 400), (1000, 1000), (700, 900)])
def test_log_p_of_separated_samples_is_the_floor(n_a, n_b):
    test = ks_two_sample(np.arange(n_a), np.arange(n_b) + 1e6)
    assert test.statistic == 1
    assert test.log10_p == pytest.approx(log10(Fraction(2, math.comb(n_a + n_b, n_a))), rel=1e-9)


def test_log_p_below_the_smallest_float_is_the_exact_one():
    # 950 of 1000 rows separated; P(D >= h/n) = 2 sum_j (-1)^(j-1) C(2n, n - j h) / C(2n, n)
    n, h = 1000, 950
    test = ks_two_sample(np.arange(n), np.arange(n) + h)
    exact = Fraction(2 * math.comb(2 * n, n - h), math.comb(2 * n, n))
    assert test.p_value < 1e-300
    assert test.log10_p == pytest.approx(log10(exact), rel=1e-9)


def test_log_p_of_unequal_sizes_is_finite_and_falls_with_distance():
    near = ks_two_sample(np.arange(3000), np.arange(2000) + 2700)
    far = ks_two_sample(np.arange(3000), np.arange(2000) + 2900)
    assert -math.inf < far.log10_p < near.log10_p < -300


def test_ks_of_nan_is_nan_and_of_nothing_an_error():
    test = ks_two_sample([1.0, math.nan], [1.0])
    assert all(math.isnan(x) for x in (test.statistic, test.p_value, test.log10_p))
    with pytest.raises(ValueError, match="ks"):
        ks_two_sample([1.0], [])


POOL = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=7)


def by_hand(knows, forgot):
    """Every midpoint tried in turn, the first best kept."""
    distinct = sorted({*knows, *forgot})
    best = None
    for low, high in itertools.pairwise(distinct):
        t = (low + high) / 2
        right = sum(v >= t for v in knows) + sum(v < t for v in forgot)
        if best is None or right > best[1]:
            best = (t, right)
    return best and Threshold(best[0], best[1] / (len(knows) + len(forgot)))


@given(POOL, POOL)
@settings(deadline=None, derandomize=True)
def test_the_threshold_is_the_first_midpoint_of_highest_accuracy(knows, forgot):
    assert best_threshold(knows, forgot) == by_hand(knows, forgot)


@pytest.mark.parametrize(
    ("low", "high"),
    [(1e308, 1.7e308), (1.0, math.nextafter(1.0, 2.0)), (0.0, 5e-324), (-math.inf, 1.0)],
)
def test_neighbours_and_scores_at_the_end_of_floats_are_told_apart(low, high):
    found = best_threshold([high, high], [low])
    assert found.accuracy == 1.0
    assert low < found.at <= high
    assert best_threshold([math.inf], [-math.inf]) == Threshold(0.0, 1.0)


def test_one_value_has_no_threshold():
    assert best_threshold([0.5, 0.5], [0.5]) is None
    assert best_threshold([0.5, math.nan], [0.1]) is None
