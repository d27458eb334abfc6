"""Intervals of an AUC and thresholds between two pools, against slow and obvious forms."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from lensaudit.scores.pools import Threshold, auc_interval, best_threshold
from lensaudit.scores.stats import auc

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


def test_one_value_has_no_threshold():
    assert best_threshold([0.5, 0.5], [0.5]) is None
    assert best_threshold([0.5, math.nan], [0.1]) is None


def test_the_interval_agrees_with_resampling_one_model_at_a_time():
    rng = random.Random(3)
    knows = [rng.gauss(0.5, 1) for _ in range(12)]
    forgot = [rng.gauss(0, 1) for _ in range(9)]
    areas = []
    for _ in range(600):
        a, b = rng.choices(knows, k=12), rng.choices(forgot, k=9)
        areas.append(roc_auc_score([1] * 12 + [0] * 9, a + b))
    low, high = np.quantile(areas, [0.025, 0.975])
    found = auc_interval(knows, forgot)
    assert found.low == pytest.approx(low, abs=0.03)
    assert found.high == pytest.approx(high, abs=0.03)
    assert found.low < auc(knows, forgot) < found.high
    assert high - low > 0.1


def test_the_interval_is_the_same_again_and_has_no_width_between_separate_pools():
    assert auc_interval([1.0, 2.0, 4.0], [0.0, 3.0]) == auc_interval([1.0, 2.0, 4.0], [0.0, 3.0])
    separate = auc_interval([2.0, 3.0], [0.0, 1.0])
    assert (separate.low, separate.high) == (1.0, 1.0)
    tied = auc_interval([1.0, 1.0], [1.0, 1.0])
    assert (tied.low, tied.high) == (0.5, 0.5)


def test_nan_gives_no_interval_and_bad_options_are_refused():
    assert math.isnan(auc_interval([1.0, math.nan], [0.0]).low)
    with pytest.raises(ValueError, match="n_resamples"):
        auc_interval([1.0], [0.0], n_resamples=0)
    with pytest.raises(ValueError, match="rows"):
        auc_interval([], [0.0])
