import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lensaudit.errors import InputError
from lensaudit.steer.interventions import add, clamp, project_out, project_out_span

seeds = st.integers(0, 10_000)


def draw(seed: int):
    generator = torch.Generator().manual_seed(seed)
    resid = torch.randn(2, 5, 8, generator=generator)
    direction = torch.randn(8, generator=generator)
    mask = torch.rand(2, 5, generator=generator) > 0.5
    return resid, direction, mask


@settings(deadline=None, derandomize=True)
@given(seeds)
def test_adding_is_undone_by_adding_the_opposite(seed):
    resid, direction, mask = draw(seed)
    there = add(direction, strength=3.0, mask=mask)(resid)
    back = add(direction, strength=-3.0, mask=mask)(there)
    assert torch.allclose(back, resid, atol=1e-5)
    assert torch.equal(there[~mask], resid[~mask])


@settings(deadline=None, derandomize=True)
@given(seeds)
def test_projecting_out_leaves_nothing_along_the_direction_and_is_idempotent(seed):
    resid, direction, _ = draw(seed)
    once = project_out(direction)(resid)
    assert (once @ (direction / direction.norm())).abs().max() < 1e-4
    assert torch.allclose(project_out(direction)(once), once, atol=1e-5)


@settings(deadline=None, derandomize=True)
@given(seeds)
def test_clamping_sets_the_component_and_nothing_else(seed):
    resid, direction, mask = draw(seed)
    unit = direction / direction.norm()
    found = clamp(direction, to=2.0, mask=mask)(resid)
    assert torch.allclose((found @ unit)[mask], torch.full((int(mask.sum()),), 2.0), atol=1e-4)
    assert torch.allclose(project_out(direction)(found), project_out(direction)(resid), atol=1e-4)


@pytest.mark.misuse
def test_a_number_may_be_a_tensor_without_axes():
    resid, direction, _ = draw(0)
    assert torch.equal(
        clamp(direction, to=torch.tensor(2.0))(resid), clamp(direction, to=2.0)(resid)
    )


@pytest.mark.parametrize("number", [0.0, torch.nan, torch.inf])
@pytest.mark.parametrize("edit", [project_out, lambda one: clamp(one, to=1.0)])
def test_a_direction_without_a_length_is_refused(edit, number):
    """Between equal streams there is none; it used to make every number NaN."""
    with pytest.raises(InputError, match="it points nowhere"):
        edit(torch.full((8,), number))


@pytest.mark.misuse
def test_rows_and_positions_of_another_pass_are_refused():
    resid, direction, mask = draw(0)
    for edit in (
        add(direction, strength=1.0, mask=mask[:, :1]),
        project_out_span(direction.unsqueeze(0), mask=mask[:1]),
    ):
        with pytest.raises(InputError, match="wanted the rows and positions of this pass"):
            edit(resid)


def test_interventions_do_not_write_into_the_stream():
    resid, direction, mask = draw(1)
    before = resid.clone()
    for edit in (
        add(direction, strength=1.0),
        project_out(direction, mask=mask),
        clamp(direction, to=1.0),
    ):
        edit(resid)
        assert torch.equal(resid, before)


def test_components_become_those_of_the_centre_and_the_rest_stays():
    resid = torch.tensor([[[3.0, -2.0, 4.0], [1.0, 1.0, 1.0]]])
    basis = torch.eye(3)[:2]
    centre = torch.tensor([5.0, 7.0, 9.0])
    set_to = project_out_span(basis, centre=centre)(resid)
    torch.testing.assert_close(set_to, torch.tensor([[[5.0, 7.0, 4.0], [5.0, 7.0, 1.0]]]))
    removed = project_out_span(basis)(resid)
    torch.testing.assert_close(removed, torch.tensor([[[0.0, 0.0, 4.0], [0.0, 0.0, 1.0]]]))
    # at the masked positions alone
    mask = torch.tensor([[False, True]])
    kept = project_out_span(basis, centre=centre, mask=mask)(resid)
    torch.testing.assert_close(kept, torch.stack((resid[0, 0], set_to[0, 1])).unsqueeze(0))
