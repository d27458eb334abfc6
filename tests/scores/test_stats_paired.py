import math

import numpy as np
import pytest

from lensaudit.scores.stats import Interval, clustered_bootstrap, clustered_bootstrap_of


def test_the_mean_of_one_column_has_the_interval_of_the_mean():
    values = np.arange(20.0)
    clusters = [n // 4 for n in range(20)]
    of_mean = clustered_bootstrap_of(lambda means: means[:, 0], values[:, None], clusters)
    assert of_mean == clustered_bootstrap(values, clusters)


def test_what_is_paired_stays_paired():
    # the second column is twice the first: their ratio cannot vary
    column = np.random.default_rng(0).random(30) + 1
    columns = np.stack([2 * column, column], axis=1)
    found = clustered_bootstrap_of(
        lambda means: means[:, 0] / means[:, 1], columns, list(range(30))
    )
    assert (found.low, found.high) == pytest.approx((2.0, 2.0))


def test_clusters_are_drawn_whole():
    # both clusters hold 0 and 1 alike, so that every resample has the mean 0.5
    columns = np.array([[0.0], [1.0], [0.0], [1.0]])
    found = clustered_bootstrap_of(lambda means: means[:, 0], columns, ["a", "a", "b", "b"])
    assert found == Interval(0.5, 0.5)


def test_a_statistic_that_is_undefined_in_a_resample_has_no_interval():
    found = clustered_bootstrap_of(
        lambda means: np.where(means[:, 0] > 0.4, means[:, 0], math.nan),
        np.array([[0.0], [1.0]]),
        [0, 1],
    )
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@pytest.mark.parametrize("columns", [np.zeros((0, 2)), np.zeros(3), np.zeros((3, 2))])
def test_rows_and_labels_must_agree(columns):
    with pytest.raises(ValueError, match="cluster labels"):
        clustered_bootstrap_of(lambda means: means[:, 0], columns, ["a", "b"])
