"""Do the commands still say and write what they did? Made by `golden/make_commands.py`."""

import pytest
from command_cases import CASES, ENVIRONMENT
from command_golden import GOLDEN, Stage, difference, same_text, stored


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """All cases play in one folder and share what they build on."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with Stage(tmp_path_factory.mktemp("commands"), CASES) as opened:
            yield opened


SLOWER = {
    "refused",
    "demo",
    "patch_prefix",
    "sweep_run",
    "sweep_verify",
    "watch",
    "patch_two",
    "patch_oracle",
    "patch_uds_lens",
    "patch_boundary",
}
"""Variants of what another golden holds, or tens of seconds: run under `slow`."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(c.name, marks=[pytest.mark.slow] if c.slow or c.name in SLOWER else [])
        for c in CASES.values()
    ],
)
def test_a_command_says_and_writes_what_it_did(stage, name):
    assert difference(stored(name), stage.play(name), name) is None


def test_every_golden_has_its_case():
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(CASES)


def test_only_decimals_may_differ_and_only_in_the_seventh_place():
    assert same_text('"uds": 0.90936951, "n": 4', '"uds": 0.90936952, "n": 4')
    assert not same_text('"uds": 0.909369', '"uds": 0.909379')
    assert not same_text('"n": 4', '"n": 5')
    assert not same_text("erased 0.5", "held 0.5")


def test_the_first_difference_is_named():
    wanted = {"exit": 0, "files": {"a.csv": ["x,y", "1,0.5"]}}
    assert difference(wanted, wanted) is None
    assert "line 2" in (difference(wanted, {"exit": 0, "files": {"a.csv": ["x,y", "1,0.6"]}}) or "")
    assert "a.csv" in (difference(wanted, {"exit": 0, "files": {}}) or "")
    assert "exit" in (difference(wanted, {"exit": 4, "files": wanted["files"]}) or "")
    assert "no line" in (difference(wanted, {"exit": 0, "files": {"a.csv": ["x,y"]}}) or "")
