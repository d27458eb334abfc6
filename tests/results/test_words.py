import pytest
from lensaudit.results.words import calibration_problem


@pytest.mark.parametrize(
    ("full", "retain", "sound"),
    [
        # the published code is off by 0.002
        (0.002, 1.0, True),
        (0.019, 0.981, True),
        (0.021, 1.0, False),
        (-0.021, 1.0, False),
        (0.0, 0.979, False),
        (None, 1.0, False),
    ],
)
def test_anchors_may_be_off_by_two_hundredths(full, retain, sound):
    assert (calibration_problem({"full": full, "retain": retain}) is None) == sound
