"""Maps between streams, and the direction that others share, against their definitions."""

import math

import pytest
import torch

from lensaudit.scores.alignment import (
    LinearMap,
    Moments,
    fitted,
    r_squared,
    relative_distance,
    shared_directions,
    times_apart,
)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(seed: int, d: int) -> torch.Tensor:
    return torch.linalg.qr(normal(seed, d, d)).Q


def test_sums_of_parts_are_the_sums_of_the_whole():
    x, y = normal(0, 50, 4) + 1e3, normal(1, 50, 3)
    whole = Moments.of(x, y)
    parts = Moments.empty(4, 3)
    for start, end in ((0, 1), (1, 1), (1, 30), (30, 50)):
        parts = parts + Moments.of(x[start:end], y[start:end])
    for name in ("mean_x", "mean_y", "xx", "xy"):
        assert torch.allclose(getattr(parts, name), getattr(whole, name), atol=1e-9), name
    assert (parts.n, parts.yy) == (50, pytest.approx(whole.yy))
    assert torch.allclose(whole.xx / 50, torch.cov(x.T, correction=0))


@pytest.mark.parametrize("kind", ["procrustes", "affine"])
def test_a_turned_scaled_and_shifted_stream_comes_back(kind):
    y = normal(2, 400, 8) * torch.linspace(0.1, 3, 8)
    x = 2.5 * y @ rotation(3, 8) + 7
    found = fitted(Moments.of(x, y), kind)
    # the ridge keeps Q a little off in the directions with the least variance
    assert float((found(x) - y).norm() / y.norm()) < 1e-2
    assert r_squared(found, Moments.of(x, y)) > 0.9999


def test_shift_moves_the_mean_alone():
    x = normal(4, 30, 5)
    found = fitted(Moments.of(x, x + 3), "shift")
    assert torch.allclose(found(x), x + 3)
    turned = x @ rotation(5, 5)
    assert r_squared(fitted(Moments.of(turned, x), "shift"), Moments.of(turned, x)) < 0.5


def test_procrustes_is_the_best_turn():
    x, y = normal(6, 200, 6), normal(7, 200, 6)
    y = y + x @ rotation(8, 6)
    moments = Moments.of(x, y)
    best = r_squared(fitted(moments, "procrustes"), moments)
    for seed in range(20):
        other = LinearMap(moments.mean_x, moments.mean_y, rotation(seed, 6))
        assert r_squared(other, moments) <= best + 1e-3  # the ridge costs this much at most


def test_affine_fits_no_worse_than_a_turn_and_as_well_as_least_squares():
    x = normal(9, 300, 5)
    y = x @ normal(10, 5, 5) + 0.1 * normal(11, 300, 5)
    moments = Moments.of(x, y)
    affine = r_squared(fitted(moments, "affine"), moments)
    assert affine > r_squared(fitted(moments, "procrustes"), moments)
    centred = x - x.mean(0)
    left = y - y.mean(0) - centred @ torch.linalg.lstsq(centred, y - y.mean(0)).solution
    best = 1 - float((left**2).sum() / ((y - y.mean(0)) ** 2).sum())
    assert affine == pytest.approx(best, abs=1e-4)


def test_r_squared_of_moments_is_that_of_the_rows():
    x, y, x2, y2 = (normal(seed, 60, 4) + seed for seed in range(4))
    found = fitted(Moments.of(x, y), "affine")
    errors = ((y2 - found(x2)) ** 2).sum() / ((y2 - y2.mean(0)) ** 2).sum()
    assert r_squared(found, Moments.of(x2, y2)) == pytest.approx(1 - float(errors))


def test_directions_that_no_pair_shows_are_left_as_they_are():
    # x and y agree in 3 of 6 directions and are 0 in the others: Q is arbitrary there without ridge
    y = normal(13, 100, 6) * torch.tensor([1, 1, 1, 0, 0, 0])
    matrix = fitted(Moments.of(y, y), "procrustes").matrix
    assert torch.allclose(matrix, torch.eye(6, dtype=torch.float64), atol=1e-6)
    affine = fitted(Moments.of(y, y), "affine").matrix
    assert torch.allclose(affine, torch.eye(6, dtype=torch.float64), atol=1e-6)


def test_between_widths_affine_reads_the_narrow_stream():
    y = normal(14, 500, 8)
    wide = y @ torch.linalg.qr(normal(15, 12, 12)).Q[:8] + 0.5
    found = fitted(Moments.of(wide, y), "affine")
    assert r_squared(found, Moments.of(wide, y)) > 0.999
    with pytest.raises(ValueError, match="equal widths, found 12 and 8"):
        fitted(Moments.of(wide, y), "shift")


def test_streams_without_numbers_or_variance_are_refused():
    x = normal(16, 10, 3)
    with pytest.raises(ValueError, match="not finite"):
        Moments.of(x.where(x < 1, torch.nan), x)
    with pytest.raises(ValueError, match="same at every token"):
        fitted(Moments.of(torch.ones(10, 3), x), "procrustes")
    assert math.isnan(
        r_squared(fitted(Moments.of(x, x), "shift"), Moments.of(x, torch.ones(10, 3)))
    )
    with pytest.raises(ValueError, match="1 fold, wanted 2"):
        shared_directions([x], [x])


def folds(d: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Differences with an offset that all share, and streams, of folds of several sizes."""
    sizes = (1, 7, 40, 3)
    apart = [normal(at, n, d) + 2 * normal(9, d) / d**0.5 for at, n in enumerate(sizes)]
    return apart, [normal(20 + at, n, d) for at, n in enumerate(sizes)]


@pytest.mark.parametrize("d", [2, 5, 96])
def test_each_fold_is_given_the_first_singular_vectors_of_all_others(d):
    apart, full = folds(d)
    n = min(d // 2, 6)
    for fold, one in enumerate(shared_directions(apart, full, n)):
        others = torch.cat([x for at, x in enumerate(apart) if at != fold])
        first = torch.linalg.svd(others, full_matrices=False).Vh[:n]
        # of length 1, one across the other, and they span the same
        eye = torch.eye(n).double()
        assert torch.allclose(one.directions @ one.directions.T, eye, atol=1e-9)
        assert torch.allclose(first.T @ first, one.directions.T @ one.directions, atol=1e-9)
        streams = torch.cat([y for at, y in enumerate(full) if at != fold])
        assert torch.allclose(one.coefficients, (streams @ one.directions.T).mean(0))


def test_taking_out_changes_nothing_across_the_direction_and_leaves_fulls_mean_along_it():
    apart, full = folds(8)
    one = shared_directions(apart, full, 3)[2]
    resid = normal(50, 6, 8)
    moved = one.taken_out(resid)
    assert torch.allclose(moved @ one.directions.T, one.coefficients.expand(6, 3))
    across = torch.eye(8).double() - one.directions.T @ one.directions
    assert torch.allclose(moved @ across, resid @ across)
    assert torch.allclose(one.taken_out(moved), moved)
    assert one.taken_out(resid.bfloat16()).dtype == torch.bfloat16


def test_nothing_of_a_folds_own_rows_is_in_its_direction():
    apart, full = folds(6)
    before = shared_directions(apart, full)
    apart[1], full[1] = 100 * normal(60, 7, 6), 100 * normal(61, 7, 6)
    after = shared_directions(apart, full)
    assert abs(float(before[1].directions[0] @ after[1].directions[0])) == pytest.approx(1)
    assert float(after[1].coefficients.abs()) == pytest.approx(float(before[1].coefficients.abs()))
    assert abs(float(before[2].directions[0] @ after[2].directions[0])) < 0.99


def test_where_the_others_do_not_differ_nothing_is_taken_out():
    full = [normal(at, 3, 4) for at in range(2)]
    found = shared_directions([torch.zeros(3, 4), normal(5, 3, 4)], full)
    resid = normal(6, 2, 4)
    assert torch.equal(found[1].taken_out(resid), resid)
    assert not torch.equal(found[0].taken_out(resid), resid)


def test_one_fold_that_differs_alone_shares_nothing_and_is_given_nothing():
    other, full = torch.zeros(4, 16).double(), [normal(at, 4, 16) for at in range(3)]
    for size in (1.0, 1e-11):
        found = shared_directions([size * normal(7, 4, 16), other, other], full)
        assert not found[0].directions.any()
        assert float(found[1].directions.norm()) == pytest.approx(1)
    noise = 1e-8 * normal(8, 4, 16)  # beside what cancels: rounding
    assert not shared_directions([normal(7, 4, 16), noise, noise], full)[0].directions.any()


def test_folds_that_lie_across_each_other_have_their_own_directions():
    basis, full = torch.eye(3).double(), [normal(at, 1, 3) for at in range(3)]
    found = shared_directions([9 * basis[:1], basis[1:2], basis[1:2]], full)
    assert found[0].directions[0].abs().tolist() == pytest.approx([0, 1, 0])
    assert found[1].directions[0].abs().tolist() == pytest.approx([1, 0, 0])


def test_what_was_added_is_counted_in_distances_of_a_model_that_never_knew():
    full = normal(1, 2, 5, 8)  # layers, positions
    never, pushed = full * 1.5, full + 2 * full.roll(1, dims=-1)
    near = relative_distance(never, full).mean(1)
    assert near.tolist() == pytest.approx([0.5, 0.5])
    # a vector twice as long as the stream lies four times as far
    found = times_apart(relative_distance(pushed, full).mean(1), near)
    assert found.tolist() == pytest.approx([4, 4])
    # where both differ by rounding alone nothing was added
    assert times_apart(torch.tensor([1e-4]), torch.tensor([1e-7])).item() == pytest.approx(0.01)
