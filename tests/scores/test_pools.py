"""Thresholds between two pools, against a slow and obvious form."""

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from lensaudit.scores.stats import Threshold, best_threshold

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
