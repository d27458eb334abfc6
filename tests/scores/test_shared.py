"""The direction that the others share, against a plain SVD."""

import pytest
import torch

from lensaudit.scores.alignment import shared_directions


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def folds(d: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Differences with an offset that all share, and streams, of folds of several sizes."""
    sizes = (1, 7, 40, 3)
    apart = [normal(at, n, d) + 2 * normal(9, d) / d**0.5 for at, n in enumerate(sizes)]
    return apart, [normal(20 + at, n, d) for at, n in enumerate(sizes)]


@pytest.mark.parametrize("d", [2, 5, 96])
def test_each_fold_is_given_the_first_singular_vector_of_all_others(d):
    apart, full = folds(d)
    for fold, one in enumerate(shared_directions(apart, full)):
        others = torch.cat([x for at, x in enumerate(apart) if at != fold])
        first = torch.linalg.svd(others, full_matrices=False).Vh[0]
        assert abs(float(first @ one.direction)) == pytest.approx(1, abs=1e-9)
        streams = torch.cat([y for at, y in enumerate(full) if at != fold])
        assert one.coefficient == pytest.approx(float((streams @ one.direction).mean()))


def test_taking_out_changes_nothing_across_the_direction_and_leaves_fulls_mean_along_it():
    apart, full = folds(8)
    one = shared_directions(apart, full)[2]
    resid = normal(50, 6, 8)
    moved = one.taken_out(resid)
    assert torch.allclose(moved @ one.direction, torch.full((6,), one.coefficient).double())
    across = torch.eye(8).double() - torch.outer(one.direction, one.direction)
    assert torch.allclose(moved @ across, resid @ across)
    assert torch.allclose(one.taken_out(moved), moved)
    assert one.taken_out(resid.bfloat16()).dtype == torch.bfloat16


def test_nothing_of_a_folds_own_rows_is_in_its_direction():
    apart, full = folds(6)
    before = shared_directions(apart, full)
    apart[1], full[1] = 100 * normal(60, 7, 6), 100 * normal(61, 7, 6)
    after = shared_directions(apart, full)
    assert abs(float(before[1].direction @ after[1].direction)) == pytest.approx(1)
    assert abs(after[1].coefficient) == pytest.approx(abs(before[1].coefficient))
    assert abs(float(before[2].direction @ after[2].direction)) < 0.99


def test_where_the_others_do_not_differ_nothing_is_taken_out():
    full = [normal(at, 3, 4) for at in range(2)]
    found = shared_directions([torch.zeros(3, 4), normal(5, 3, 4)], full)
    resid = normal(6, 2, 4)
    assert torch.equal(found[1].taken_out(resid), resid)
    assert not torch.equal(found[0].taken_out(resid), resid)


def test_one_fold_has_no_others():
    with pytest.raises(ValueError, match="1 fold, wanted 2"):
        shared_directions([normal(0, 3, 4)], [normal(1, 3, 4)])


def test_one_fold_that_differs_alone_shares_nothing_and_is_given_nothing():
    other, full = torch.zeros(4, 16).double(), [normal(at, 4, 16) for at in range(3)]
    for size in (1.0, 1e-11):
        found = shared_directions([size * normal(7, 4, 16), other, other], full)
        assert not found[0].direction.any()
        assert float(found[1].direction.norm()) == pytest.approx(1)
    noise = 1e-8 * normal(8, 4, 16)  # beside what cancels: rounding
    assert not shared_directions([normal(7, 4, 16), noise, noise], full)[0].direction.any()


def test_folds_that_lie_across_each_other_have_their_own_directions():
    basis, full = torch.eye(3).double(), [normal(at, 1, 3) for at in range(3)]
    found = shared_directions([9 * basis[:1], basis[1:2], basis[1:2]], full)
    assert found[0].direction.abs().tolist() == pytest.approx([0, 1, 0])
    assert found[1].direction.abs().tolist() == pytest.approx([1, 0, 0])
