"""Directions from two sets of activations."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score

from lensaudit.steer.estimators import (
    Separation,
    direction_of,
    effect_size,
    first_component,
    gradient,
    mean_difference,
    mean_separation,
    probe,
    separation,
    top_share,
)
from lensaudit.steer.settings import Method

METHODS = get_args(Method)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def planted(n=40, d_model=16, gap=3.0, seed=0):
    """Two clouds that differ along one axis, which no coordinate names."""
    draw = generator(seed)
    axis = torch.randn(d_model, generator=draw)
    axis = axis / axis.norm()
    common = torch.randn(n, d_model, generator=draw)
    noise = [0.2 * torch.randn(n, d_model, generator=draw) for _ in range(2)]
    return common + noise[0] + gap * axis, common + noise[1], axis


def cosine(a, b):
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


@pytest.mark.parametrize("method", METHODS[:-1])
def test_a_planted_axis_is_found_and_turns_round_with_the_sides(method):
    positive, negative, axis = planted()
    found = direction_of(method, positive, negative, paired=True, generator=generator(1))
    assert cosine(found, axis) > 0.9
    there = direction_of(method, positive, negative, paired=True, generator=generator())
    back = direction_of(method, negative, positive, paired=True, generator=generator())
    assert cosine(there, back) < -0.99


@pytest.mark.parametrize("method", METHODS)
def test_every_direction_is_as_long_as_the_mean_difference(method):
    positive, negative, _ = planted()
    found = direction_of(method, positive, negative, paired=True, generator=generator())
    wanted = mean_difference(positive, negative).norm()
    assert float(found.norm()) == pytest.approx(float(wanted), rel=1e-5)


def test_pca_is_scikit_learns_on_differences_that_are_not_centred():
    positive, negative, _ = planted(gap=0.5)
    gaps = (positive - negative).double()
    # mirrored, the differences have mean 0, and centring changes nothing
    axis = PCA(1).fit(torch.cat((gaps, -gaps)).numpy()).components_[0]
    found = first_component(positive, negative, paired=True)
    assert abs(cosine(found.double(), torch.from_numpy(axis))) > 0.99999


def test_pca_of_unpaired_rows_takes_its_sign_from_the_means():
    positive, negative, axis = planted(gap=12.0)
    assert cosine(first_component(positive, negative[:30], paired=False), axis) > 0.9
    with pytest.raises(ValueError, match="wanted pairs"):
        first_component(positive, negative[:30], paired=True)


def test_the_probe_does_not_care_for_the_length_of_rows():
    positive, negative, _ = planted()
    longer = torch.linspace(1, 9, len(positive)).unsqueeze(1)
    assert cosine(probe(positive, negative), probe(positive * longer, negative)) > 0.9999


def test_the_gradient_ends_at_the_mean_difference():
    positive, negative, _ = planted()
    found = gradient(positive, negative, generator=generator(5))
    assert cosine(found, mean_difference(positive, negative)) > 0.98


def test_rows_without_a_difference_have_no_direction():
    rows = torch.ones(3, 4)
    with pytest.raises(ValueError, match="same mean"):
        direction_of("mean_diff", rows, rows, paired=True, generator=generator())
    with pytest.raises(ValueError, match="wanted >= 1"):
        direction_of("mean_diff", rows, rows[:0], paired=False, generator=generator())


def test_one_outlier_dimension_is_seen_in_the_share_of_the_largest_three():
    vector = torch.ones(100)
    assert top_share(vector) == pytest.approx(0.03)
    vector[7] = 100.0
    assert top_share(vector) > 0.99


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
    # means 3 and 1, squares 2 + 2 over 2 degrees of freedom: 2 / sqrt(2)
    assert effect_size([2.0, 4.0], [0.0, 2.0]) == pytest.approx(2**0.5)
    assert math.isnan(effect_size([1.0, 1.0], [0.0, 0.0]))
    assert math.isnan(effect_size([1.0], [0.0]))
    folds = [Separation(1.0, 1.0, math.nan, math.nan), Separation(0.5, 0.5, 2.0, 0.3)]
    assert mean_separation(folds) == Separation(0.75, 0.75, 2.0, 0.3)
