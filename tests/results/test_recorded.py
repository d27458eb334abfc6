"""One record in one folder: what is replaced stays until what replaces it is there."""

from dataclasses import dataclass

import pytest

from lensaudit.errors import WorkError
from lensaudit.results.recorded import in_folder
from lensaudit.results.run_folder import RunFolder


@dataclass(frozen=True)
class Counted:
    """How many."""

    n: int


def recorded(folder, n, *, computed=lambda: None, **how):
    identity = {"command": "worst", "n": n}
    run = RunFolder(usual=folder, command="worst", key=str(n), force=True)
    return in_folder(
        run,
        identity,
        Counted,
        lambda: Counted(n),
        options={},
        inputs={},
        device="cpu",
        files=("summary.json",),
        computed=computed,
        **how,
    )


@pytest.mark.parametrize(("n", "fresh"), [(1, True), (2, False)])
def test_what_is_replaced_stays_until_what_replaces_it_is_there(tmp_path, n, fresh):
    def broken():
        raise WorkError("a logit is not finite")

    recorded(tmp_path, 1)
    before = {one: one.read_bytes() for one in tmp_path.iterdir()}
    with pytest.raises(WorkError):
        recorded(tmp_path, n, fresh=fresh, computed=broken)
    assert {one: one.read_bytes() for one in tmp_path.iterdir()} == before
    assert recorded(tmp_path, n, fresh=fresh) == Counted(n)
    assert recorded(tmp_path, n, computed=broken) == Counted(n)  # it is only read
