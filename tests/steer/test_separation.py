"""Classification scores against scikit-learn and by hand."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from lensaudit.steer.estimators import Separation, effect_size, mean_separation, separation


def test_scores_agree_with_scikit_learn_and_the_overlap_with_an_integral():
    rng = np.random.default_rng(0)
    positive, negative = rng.normal(1.2, 1, 60).tolist(), rng.normal(0, 1, 40).tolist()
    found = separation(positive, negative, threshold=0.6)
    labels, values = [1] * 60 + [0] * 40, positive + negative
    assert found.auc == pytest.approx(roc_auc_score(labels, values))
    right = np.mean([(value > 0.6) == label for value, label in zip(values, labels, strict=True)])
    assert found.accuracy == pytest.approx(right)
    shared, _ = quad(lambda x: min(norm.pdf(x), norm.pdf(x, found.effect_size)), -9, 12, limit=200)
    assert found.overlap == pytest.approx(shared, abs=1e-5)


def test_effect_sizes_by_hand():
    # means 3 and 1, squares 2 + 2 over 2 degrees of freedom: 2 / sqrt(2)
    assert effect_size([2.0, 4.0], [0.0, 2.0]) == pytest.approx(2**0.5)
    assert math.isnan(effect_size([1.0, 1.0], [0.0, 0.0]))
    assert math.isnan(effect_size([1.0], [0.0]))


def test_folds_are_averaged_where_they_have_a_number():
    folds = [Separation(1.0, 1.0, math.nan, math.nan), Separation(0.5, 0.5, 2.0, 0.3)]
    assert mean_separation(folds) == Separation(0.75, 0.75, 2.0, 0.3)
    with pytest.raises(ValueError, match="at least one"):
        mean_separation([])
