"""What a score means, as metrics of the suite: the same numbers as `lensaudit patch` gives."""

import pytest

import lensaudit as la


@pytest.mark.parametrize(
    "source", ["demo/masked_readout", pytest.param("demo/never", marks=pytest.mark.slow)]
)
def test_aligned_depth_and_validity_are_those_of_patch(source, tmp_path):
    shared = {"limit": 16, "activations": tmp_path / "activations"}
    patched = la.patch(source, tmp_path / "patch", **shared)
    metrics = ("uds_aligned", "uds_validity")
    found = la.evaluate(
        source, tmp_path / "eval", metrics=metrics, retain="demo/retain", data="demo", **shared
    )
    aligned = patched.summary["aligned"]["uds"]
    # a model that full reads needs no alignment: its depth is the number
    assert found.summary["uds_aligned"] == pytest.approx(
        patched.uds if aligned is None else aligned
    )
    assert found.summary["uds_validity"] == pytest.approx(patched.summary["validity"]["d_share"])
    assert (aligned is None) == (source == "demo/masked_readout")
