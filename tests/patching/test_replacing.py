import pytest
import torch

from lensaudit.errors import InputError
from lensaudit.patching.interventions import replace_at


def draw():
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(2, 5, 8, generator=generator),
        torch.rand(2, 5, generator=generator) > 0.5,
    )


def test_replacing_takes_the_source_where_the_mask_holds_and_writes_nothing_into_the_stream():
    resid, mask = draw()
    before = resid.clone()
    found = replace_at(resid + 1, mask)(resid)
    assert torch.equal(found[mask], resid[mask] + 1)
    assert torch.equal(found[~mask], resid[~mask])
    assert torch.equal(resid, before)


@pytest.mark.misuse
def test_rows_and_positions_of_another_pass_are_refused():
    resid, mask = draw()
    for edit in (
        replace_at(resid[:1], mask),
        replace_at(resid[:, :1], mask),
        replace_at(resid, mask[:1]),
    ):
        with pytest.raises(InputError, match="wanted the rows and positions of this pass"):
            edit(resid)
