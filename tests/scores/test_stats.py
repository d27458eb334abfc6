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

from lensaudit.scores.stats import (
    Interval,
    auc,
    clustered_bootstrap,
    harmonic_mean,
    ks_two_sample,
    wilson,
)

PUBLISHED = GOLDEN / "published" / "method_results.json"
quick = settings(deadline=None, derandomize=True, max_examples=60)
positive = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20)
scores = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=25)


@quick
@given(positive)
def test_harmonic_mean_equals_scipy(values):
    assert harmonic_mean(values) == pytest.approx(scipy_stats.hmean(values), rel=1e-12)


@quick
@given(positive, st.randoms(use_true_random=False))
def test_harmonic_mean_lies_between_the_extremes_in_any_order(values, random):
    shuffled = random.sample(values, len(values))
    mean = harmonic_mean(values)
    assert min(values) * (1 - 1e-12) <= mean <= max(values) * (1 + 1e-12)
    assert harmonic_mean(shuffled) == pytest.approx(mean, rel=1e-12)


def test_harmonic_mean_adds_eps_to_each_term():
    # 2 / (1 / (0 + 1e-12) + 1 / (1 + 1e-12))
    assert harmonic_mean([0.0, 1.0], eps=1e-12) == pytest.approx(2e-12, rel=1e-9)


def test_one_zero_makes_the_harmonic_mean_zero():
    assert harmonic_mean([0.0, 1.0, 1.0]) == 0.0
    assert harmonic_mean([5e-324, 1.0]) == 0.0


def test_harmonic_mean_of_nan_is_nan():
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


@quick
@given(scores, scores)
def test_auc_of_reversed_scores_is_one_minus_auc(knows, forgot):
    reverse = auc([-score for score in knows], [-score for score in forgot])
    assert reverse == pytest.approx(1 - auc(knows, forgot), abs=1e-12)
    assert auc(forgot, knows) == pytest.approx(1 - auc(knows, forgot), abs=1e-12)


def test_auc_worked_by_hand():
    # pairs (3,1) (3,2) (2,1) count 1 each, the tie (2,2) counts 1/2: 3.5 of 4
    assert auc([3, 2], [1, 2]) == 0.875
    assert math.isnan(auc([1.0, math.nan], [0.0]))


def test_auc_refuses_an_empty_pool():
    with pytest.raises(ValueError, match="samples of 0"):
        auc([], [1.0])


@quick
@given(scores, scores)
@pytest.mark.filterwarnings("ignore:ks_2samp")
def test_ks_equals_scipy(a, b):
    test, expected = ks_two_sample(a, b), scipy_stats.ks_2samp(a, b)
    assert (test.statistic, test.p_value) == (expected.statistic, expected.pvalue)
    assert (test.n_a, test.n_b) == (len(a), len(b))
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


def test_bootstrap_of_single_row_clusters_agrees_with_scipy():
    values = np.random.default_rng(3).normal(size=300)
    ours = clustered_bootstrap(values, range(300), n_resamples=4000)
    theirs = scipy_stats.bootstrap(
        (values,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(9)
    ).confidence_interval
    assert ours.low == pytest.approx(theirs.low, abs=0.01)
    assert ours.high == pytest.approx(theirs.high, abs=0.01)


def test_bootstrap_resamples_clusters_not_rows():
    # two authors, 0 and 1 throughout: half of the resamples draw one author only
    interval = clustered_bootstrap([0.0] * 50 + [1.0] * 50, ["a"] * 50 + ["b"] * 50)
    assert interval == Interval(0.0, 1.0)
    rows = clustered_bootstrap([0.0] * 50 + [1.0] * 50, range(100))
    assert 0.35 < rows.low < rows.high < 0.65


def test_bootstrap_averages_rows_so_large_clusters_weigh_more():
    # drawing (a, b) gives (0 * 1 + 1 * 3) / 4 = 0.75, the only mean between 0 and 1
    interval = clustered_bootstrap([0.0, 1.0, 1.0, 1.0], "abbb", level=0.01)
    assert interval == Interval(0.75, 0.75)


def test_bootstrap_of_one_cluster_is_the_mean_twice():
    assert clustered_bootstrap([0.0, 1.0], ["a", "a"]) == Interval(0.5, 0.5)


def test_bootstrap_repeats_under_a_seed_and_leaves_the_global_generator_alone():
    np.random.seed(0)  # noqa: NPY002 - the global generator is what is watched
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    values = np.random.default_rng(0).normal(size=40)
    first = clustered_bootstrap(values, range(40))
    assert clustered_bootstrap(values, range(40)) == first
    assert clustered_bootstrap(values, range(40), seed=1) != first
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_bootstrap_in_parts_covers_the_mean(monkeypatch):
    monkeypatch.setattr("lensaudit.scores.stats._DRAWS_AT_ONCE", 100)
    values = np.random.default_rng(0).normal(size=40)
    interval = clustered_bootstrap(values, range(40), n_resamples=501)
    assert interval.low < values.mean() < interval.high


def test_bootstrap_of_nan_is_nan_and_of_mismatched_rows_an_error():
    assert math.isnan(clustered_bootstrap([1.0, math.nan], "ab").low)
    for values, clusters, options in [
        ([], [], {}),
        ([1.0], "ab", {}),
        ([1.0], "a", {"level": 1.0}),
        ([1.0], "a", {"n_resamples": 0}),
    ]:
        with pytest.raises(ValueError, match="bootstrap"):
            clustered_bootstrap(values, clusters, **options)


@quick
@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_equals_its_formula(counts):
    k, n = counts
    z, p = scipy_stats.norm.ppf(0.975), k / n
    middle = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    interval = wilson(k, n)
    assert interval.low == pytest.approx(max(0, middle - half), abs=1e-9)
    assert interval.high == pytest.approx(min(1, middle + half), abs=1e-9)


@pytest.mark.parametrize(("k", "n"), [(0, 0), (3, 2), (-1, 2)])
def test_wilson_refuses_impossible_counts(k, n):
    with pytest.raises(ValueError, match=r"wilson|k"):
        wilson(k, n)
