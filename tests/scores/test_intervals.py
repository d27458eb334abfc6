import math

import numpy as np
import pytest
from scipy.stats import fisher_exact, norm
from scipy.stats import t as student

from lensaudit.scores.areas import clustered_auc_limits
from lensaudit.scores.estimate import NO_ROWS, Estimate
from lensaudit.scores.excess import clustered_excess
from lensaudit.scores.intervals import (
    FEWEST_GROUPS,
    chance_of_more,
    clustered_mean,
    clustered_ratio,
    exact_excess,
)
from lensaudit.scores.pools import auc_limits
from lensaudit.scores.separation import auc


def interval(found) -> Estimate:
    assert found.why is None, found
    assert found.ends
    return found


def no_interval(found, why="") -> bool:
    return found.ends is None and found.one_sided is None and why in found.why


def cr2_by_matrices(rows: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """Variance and Satterthwaite degrees of freedom as Bell and McCaffrey write them."""
    n, x = len(rows), np.ones((len(rows), 1))
    hat = x @ x.T / n
    residuals = rows - rows.mean()
    forms = []
    for group in np.unique(groups):
        own = groups == group
        values, vectors = np.linalg.eigh(np.eye(own.sum()) - hat[np.ix_(own, own)])
        adjusted = vectors @ np.diag(values**-0.5) @ vectors.T
        forms.append((np.eye(n) - hat)[:, own] @ adjusted @ x[own, 0] / n)
        assert np.isclose(forms[-1] @ rows, adjusted.sum(0) @ residuals[own] / n)
    forms = np.stack(forms)
    alike = (groups[:, None] == groups[None, :]).astype(float)
    middle = forms @ alike @ forms.T
    return float(((forms @ rows) ** 2).sum()), float(np.trace(middle) ** 2 / (middle**2).sum())


@pytest.mark.parametrize("seed", range(5))
def test_the_t_interval_is_cr2_with_satterthwaites_degrees_of_freedom(seed):
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(6), rng.integers(1, 9, size=6))
    rows = rng.normal(size=len(groups))
    variance, df = cr2_by_matrices(rows, groups)
    half = student.ppf(0.975, df) * math.sqrt(variance)
    found = interval(clustered_mean(rows, groups.tolist(), bounds=None))
    assert (found.low, found.high) == pytest.approx((rows.mean() - half, rows.mean() + half))


def test_rows_of_their_own_and_equal_groups_give_the_textbook_interval():
    rows = [0.1, 0.4, 0.35, 0.8, 0.75, 0.5]
    half = student.ppf(0.975, 5) * np.std(rows, ddof=1) / math.sqrt(6)
    found = interval(clustered_mean(rows, range(6), bounds=None))
    assert found.high - found.low == pytest.approx(2 * half)
    one_sided = student.ppf(0.95, 5) * np.std(rows, ddof=1) / math.sqrt(6)
    assert found.upper - found.lower == pytest.approx(2 * one_sided)
    assert (found.value, found.n) == (np.mean(rows), 6)


def test_fewer_than_five_authors_have_no_interval_and_it_says_so():
    found = clustered_mean([0.1, 0.2, 0.3], ["a", "b", "b"])
    assert no_interval(found, "2 authors: no interval")
    assert no_interval(clustered_mean([0.1], ["a"], unit="question"), "1 question: no interval")
    rows, authors = [0.1, 0.2, 0.3, 0.4, 0.2], ["a", "b", "c", "d", "d"]
    assert len(set(authors)) == FEWEST_GROUPS - 1
    assert no_interval(clustered_mean(rows, authors))
    interval(clustered_mean([0.1, 0.2, 0.3, 0.4, 0.5], range(5)))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_an_end_of_the_scale_is_no_proof_of_it(value):
    found = interval(clustered_mean([value] * 64, [row // 4 for row in range(64)]))
    # 64 rows of 16 authors whose rows correlate by .2: worth 64 / (1 + 3 * .2) = 40 coins
    square = student.ppf(0.975, 15) ** 2
    width = square / (40 + square)
    assert (found.low, found.high) == pytest.approx(
        (value * (1 - width), value + (1 - value) * width)
    )


def test_equal_rows_inside_the_scale_have_no_interval():
    assert no_interval(clustered_mean([0.5] * 10, range(10)))
    assert no_interval(clustered_mean([0.0] * 10, range(10), bounds=(-1.0, 1.0)))


@pytest.mark.parametrize("value", [0.1, 0.3, 0.6, 0.7])
@pytest.mark.parametrize("n", [20, 40, 56, 367])
def test_what_rounding_leaves_of_equal_rows_is_no_spread(value, n):
    rows, groups = [value] * n, [at % 20 for at in range(n)]
    for bounds in ((0.0, 1.0), (-1.0, 1.0), None):
        assert no_interval(clustered_mean(rows, groups, bounds=bounds), "the same mean")
    pairs = clustered_mean([0.1, 0.2] * 20, [at // 2 for at in range(40)], bounds=(-1.0, 1.0))
    assert no_interval(pairs, "the same mean")


def test_limits_hold_their_mean_where_rows_are_near_an_end():
    draw = np.random.default_rng(3)
    for scale in (1e-6, 3e-6, 1e-4):
        rows = scale * (1 + 0.1 * draw.random(20))
        found = clustered_mean(rows, range(20))
        assert found.ends is None or found.ends[0] <= rows.mean() <= found.ends[1]


def test_limits_stay_on_the_scale_and_turn_with_it():
    rows, groups = [0.9, 1.0, 0.99, 1.0, 0.95, 0.97, 0.6, 1.0], [0, 0, 1, 2, 3, 4, 5, 6]
    up = interval(clustered_mean(rows, groups))
    down = interval(clustered_mean([1 - one for one in rows], groups))
    assert 0 <= up.low < np.mean(rows) < up.high <= 1
    assert (down.low, down.high) == pytest.approx((1 - up.high, 1 - up.low))
    longer = clustered_mean([100 * one for one in rows], groups, bounds=(0.0, 100.0))
    assert interval(longer).ends == pytest.approx((100 * up.low, 100 * up.high))


def by_part(*parts):
    """Rows, groups of two, and weights with which each part counts alike."""
    rows = [float(one) for part in parts for one in part]
    groups = [(at, row // 2) for at, part in enumerate(parts) for row in range(len(part))]
    return rows, groups, [1 / len(part) for part in parts for _ in part]


def test_weights_are_no_spread():
    for rows in ([0.2, 0.7, 1.0, 0.0] * 6, [1.0] * 24, [0.0] * 24):
        same, groups, _ = by_part(rows[:12], rows[12:])
        assert clustered_mean(same, groups, weights=[3.0] * 24) == clustered_mean(same, groups)
    alike, fewer = (
        interval(clustered_mean(rows, groups, weights=weights))
        for rows, groups, weights in (by_part([1] * 12, [1] * n) for n in (12, 10))
    )
    assert fewer.value == alike.value == fewer.high == 1
    assert fewer.low < alike.low  # less was seen
    # 22 rows, half the weight on 10 of them: worth 4 / (1/12 + 1/10), in pairs of correlation .2
    square, worth = student.ppf(0.975, 10) ** 2, 4 / (1 / 12 + 1 / 10) / 1.2
    assert fewer.low == pytest.approx(1 - square / (worth + square), abs=2e-3)


def test_limits_with_weights_turn_with_the_scale():
    rows, groups, weights = by_part([0] * 2 + [1] * 11, [1] * 9 + [0] * 3)
    up, down = (
        interval(clustered_mean(ones, groups, weights=weights))
        for ones in (rows, [1 - one for one in rows])
    )
    assert up.value == pytest.approx((11 / 13 + 9 / 12) / 2)
    assert up.low < up.value < up.high < 1
    assert (down.low, down.high) == pytest.approx((1 - up.high, 1 - up.low))


def test_limits_with_weights_hold_the_truth():
    """Five parts, one of them shorter, as of a retraining; authors of two rows."""
    rng, sizes, truth = np.random.default_rng(0), (8, 8, 8, 8, 7), 0.9
    missed = 0
    for _ in range(400):
        parts = [np.repeat(rng.beta(3.6, 0.4, (n + 1) // 2), 2)[:n] > rng.random(n) for n in sizes]
        rows, groups, weights = by_part(*parts)
        found = interval(clustered_mean(rows, groups, weights=weights))
        missed += not found.low <= truth <= found.high
    assert missed <= 0.05 * 400


def test_a_mean_of_floats_may_lie_past_the_end_by_rounding():
    assert interval(clustered_mean([1.0 + 1e-7] * 6, range(6))).high == 1


def test_values_off_the_scale_and_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="outside"):
        clustered_mean([0.5, 1.2], [0, 1])
    with pytest.raises(ValueError, match="2 values, 1 group"):
        clustered_mean([0.5, 0.2], [0])
    assert clustered_mean([], []) == clustered_ratio([], [], []) == NO_ROWS
    assert no_interval(clustered_mean([math.nan] * 6, range(6), bounds=None))


@pytest.mark.parametrize("end", ["low", "high"])
def test_a_ratio_on_its_limit_is_just_rejected(end):
    rng = np.random.default_rng(5)
    groups = np.repeat(np.arange(8), 4).tolist()
    top, bottom = rng.normal(1, 0.3, size=32), rng.normal(2, 0.3, size=32)
    limit = getattr(interval(clustered_ratio(top, bottom, groups)), end)
    gap = interval(clustered_mean(top - limit * bottom, groups, bounds=None))
    # the t interval of the difference at the limit ends at 0; its df are those of the groups
    assert min(abs(gap.low), abs(gap.high)) == pytest.approx(0, abs=1e-9)


def test_a_denominator_near_zero_has_no_ratio():
    rng = np.random.default_rng(6)
    found = clustered_ratio(rng.normal(size=40), rng.normal(size=40), list(range(10)) * 4)
    assert no_interval(found, "the divisor cannot be told from 0: no interval")


@pytest.mark.parametrize("ratio", [0.0, 1.0, 0.3])
def test_equal_ratios_of_all_authors_are_no_proof_of_that_ratio(ratio):
    rng = np.random.default_rng(7)
    bottom, groups = rng.normal(2, 0.3, size=32), list(range(8)) * 4
    found = clustered_ratio(ratio * bottom, bottom, groups)
    assert no_interval(found, "every author has the same ratio: no interval")
    # a difference that can be seen is one, however small
    seen = interval(clustered_ratio(ratio * bottom + rng.normal(0, 1e-3, size=32), bottom, groups))
    assert seen.low < ratio < seen.high


def test_an_area_solves_newcombes_equation():
    knows, forgot = [3.0, 2.0, 4.0, 1.5], [1.0, 2.5, 0.5]
    found, estimate = interval(auc_limits(knows, forgot)), auc(knows, forgot)
    for area in (found.low, found.high):
        extra = (4 + 3) / 2 - 1
        spread = 1 + extra * ((1 - area) / (2 - area) + area / (1 + area))
        variance = area * (1 - area) * spread / 12
        assert (estimate - area) ** 2 == pytest.approx(norm.ppf(0.975) ** 2 * variance)
    assert found.low < estimate < found.high


def test_separated_pools_are_no_proof_of_an_area_of_one():
    few, many = auc_limits(range(10, 22), range(3)), auc_limits(range(100, 200), range(90))
    assert interval(few).high == interval(many).high == 1
    assert interval(few).low < 0.7 < 0.9 < interval(many).low
    turned = interval(auc_limits(range(3), range(10, 22)))
    assert (turned.low, turned.high) == pytest.approx((0, 1 - interval(few).low))


def test_an_area_over_rows_of_their_own_is_newcombes():
    rng = np.random.default_rng(8)
    # every row its own author, and so many that Student's quantile is the normal one
    knows, forgot = rng.normal(1, size=400), rng.normal(size=400)
    by_row = interval(clustered_auc_limits(knows, forgot, range(400), range(400)))
    models = interval(auc_limits(knows, forgot))
    assert (by_row.low, by_row.high) == pytest.approx((models.low, models.high), abs=2e-3)


def test_an_area_over_copies_says_no_more_than_one_of_each():
    rng = np.random.default_rng(9)
    knows, forgot = rng.normal(1, size=12), rng.normal(size=12)
    once = interval(clustered_auc_limits(knows, forgot, range(12), range(12)))
    both = list(range(12)) * 10
    copies = interval(clustered_auc_limits(np.tile(knows, 10), np.tile(forgot, 10), both, both))
    assert (copies.low, copies.high) == pytest.approx((once.low, once.high), abs=2e-2)
    as_rows = interval(auc_limits(np.tile(knows, 10), np.tile(forgot, 10)))
    assert as_rows.high - as_rows.low < 0.5 * (copies.high - copies.low)


def test_separated_texts_of_few_authors_are_no_proof_of_an_area_of_one():
    five = [row // 20 for row in range(100)]
    few = interval(clustered_auc_limits(range(200, 300), range(100), five, five))
    rows = interval(auc_limits(range(200, 300), range(100)))
    assert few.high == rows.high == 1
    assert few.low < 0.85 < rows.low
    none = clustered_auc_limits(range(4), range(9, 13), range(4), range(4))
    assert no_interval(none, "4 authors: no interval")


@pytest.mark.parametrize(("k", "n", "other_k", "other_n"), [(8, 8, 0, 8), (9, 64, 4, 40)])
def test_the_chance_of_more_is_fishers_exact_one(k, n, other_k, other_n):
    table = [[k, n - k], [other_k, other_n - other_k]]
    wanted = fisher_exact(table, alternative="greater").pvalue
    assert chance_of_more(k, n, other_k, other_n) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("kind", ["normal", "beta(.3, .3)", "90 % zeros, ones"])
def test_it_covers_where_the_bootstrap_did_not(kind):
    from benchmarks.coverage import WANTED, covered

    hit, _, _ = covered(kind, 5, (2, 20), 0.2, runs=400)
    # three standard errors of 400 runs below what is wanted
    assert hit > WANTED.get(kind, 0.88) - 0.04


def test_an_excess_covers_and_rules_nothing_out_too_often():
    from benchmarks.coverage import excesses

    hit, below, _ = excesses(8, 7, 0.4, (0.2, 0.0), runs=400)
    # a t interval of the differences has .88 and .12
    assert (hit > 0.93, below < 0.06) == (True, True)


@pytest.mark.parametrize("size", [1, 2, 5, 7])
def test_the_more_comes_out_the_less_is_ruled_out(size):
    groups = [author for author in range(8) for _ in range(size)]
    upper = []
    for k in range(size + 1):  # of one author: what follows spreads otherwise
        own = [1.0] * k + [0.0] * (len(groups) - k)
        found = clustered_excess(own, [0.0] * len(groups), groups)
        upper.append(found.one_sided[1])
    assert upper == sorted(upper)


def test_an_excess_inside_the_scale_has_the_limits_of_counts():
    found = clustered_excess([0.5] * 8, [0.25] * 8, [*range(8)])
    assert found == exact_excess(4, 2, 8, 1)[0]


def test_no_limit_hangs_on_rounding():
    """Rows that are all 0 up to the noise of a kernel; the score interval is free of scale."""
    noise = np.random.default_rng(0).random((3, 64)) * 2e-7
    groups = [row % 8 for row in range(64)]
    exact = clustered_mean([0.0] * 64, groups)
    for rows in noise:
        assert clustered_mean(rows, groups).ends == exact.ends
        gaps = clustered_mean(rows - noise[0], groups, bounds=(-1.0, 1.0))
        assert gaps.ends is None  # as where nothing differs
    half = [clustered_mean(0.5 + rows, groups).ends for rows in noise]
    assert half == [None, None, None]


@pytest.mark.parametrize("seed", range(3))
def test_rounding_of_float32_is_no_spread_of_a_ratio(seed):
    # a stream that full reads as its own loses 0, or 1e-8 under another processor's kernels
    rng = np.random.default_rng(seed)
    worst, groups = rng.uniform(0.5, 2.0, 24), [*range(8)] * 3
    found = clustered_ratio(rng.normal(0.0, 3e-8, 24), worst, groups)
    assert found.ends is None
    assert found.why == clustered_ratio(np.zeros(24), worst, groups).why
    assert clustered_ratio(rng.normal(0.0, 3e-4, 24), worst, groups).ends is not None
