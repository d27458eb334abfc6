"""The verdict: groups with one voice each, their own controls, and a gate."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from lensaudit.gym.verdict import (
    Gate,
    Null,
    View,
    able,
    combined,
    read_calibration,
    read_gate,
    views_of,
)
from scipy.stats import t as student

from lensaudit.cli.main import run
from lensaudit.errors import InputError

ROOT = Path(__file__).parents[2]
NULLS = {
    "uds": Null(1.0, 0.03, 12, 0.9),
    "lens": Null(1.0, 0.03, 12, 0.9),
    "uds_aligned": Null(1.0, 0.03, 12, 0.95),
    "greedy": Null(1.0, 0.05, 12, 0.2),
    "rtt": Null(1.0, 0.05, 12, 0.5),
}


def code(**views):
    views = {n: v if isinstance(v, View) else View(v) for n, v in views.items()}
    return combined({"x": views}, NULLS)[0].code


def test_a_chance_is_that_of_one_more_never_trained_model():
    null = Null(1.0, 0.05, 9, 1.0)
    spread = 0.05 * (1 + 1 / 9) ** 0.5
    assert null.chance(0.9) == pytest.approx(student.cdf(-0.1 / spread, 8))
    assert null.chance(1.0) == pytest.approx(0.5)
    # a pool without spread does not make certain
    assert Null(1.0, 0.0, 9, 1.0).chance(0.99) > 0.2


@pytest.mark.parametrize(
    ("views", "wanted"),
    [
        ({"uds": 0.1, "uds_aligned": 0.1, "greedy": 0.9}, "hidden"),
        ({"uds": 1.0, "uds_aligned": 0.1, "greedy": 0.9}, "hidden_other_basis"),
        ({"uds": 0.1, "uds_aligned": 0.1, "greedy": 0.1}, "intact"),
        ({"uds": 1.0, "uds_aligned": 0.99, "greedy": 1.0}, "erased"),
        ({"uds": 1.0, "greedy": 1.0}, "undecided"),  # the aligned group sees, and was not heard
        ({"uds": 1.0, "uds_aligned": 1.0}, "erased"),  # outputs see little: not waited for
        ({"uds": 1.0, "uds_aligned": 1.0, "rtt": 0.2}, "hidden"),
        ({}, "unscored"),
    ],
)
def test_one_group_that_finds_it_is_enough_and_all_that_see_must_not(views, wanted):
    assert code(**views) == wanted


def test_a_view_whose_control_failed_does_not_vote_and_the_next_one_speaks():
    off = View(0.0, control=False)
    assert code(uds=off, uds_aligned=1.0) == "undecided"
    (one,) = combined({"x": {"uds": off, "lens": View(0.0), "uds_aligned": View(1.0)}}, NULLS)
    assert one.code == "hidden"
    assert one.votes["uds"].finds is None
    assert one.votes["lens"].is_voice


def test_a_number_that_is_hardly_known_finds_nothing():
    assert code(uds=View(0.7), uds_aligned=1.0) == "hidden"
    wide = View(0.7, (0.3, 1.0))
    assert wide.error == pytest.approx(0.35 / 1.96, rel=1e-4)
    assert code(uds=wide, uds_aligned=1.0) == "undecided"  # nor is it a proof of nothing
    null = Null(1.0, 0.05, 9, 1.0)
    assert null.chance(0.7, wide.error) == pytest.approx(
        student.cdf(-0.3 / (0.05**2 * 10 / 9 + wide.error**2) ** 0.5, 8)
    )


def test_one_voice_a_group_and_the_disagreement_is_said():
    (one,) = combined({"x": {"uds": View(1.0), "lens": View(0.1), "uds_aligned": View(1.0)}}, NULLS)
    assert one.code == "erased"  # the lens is not the voice of its group
    assert "lens 0.10 holds" in one.disagreement
    assert "uds 1.00 not found" in one.disagreement
    (same,) = combined({"x": {"uds": View(1.0), "uds_aligned": View(1.0)}}, NULLS)
    assert same.disagreement is None


def test_the_level_is_shared_by_groups_and_over_runs():
    """0.8 has a chance of .0014: enough for one of four groups, not for the first of 20 models."""
    chance = NULLS["uds"].chance(0.8)
    assert 0.05 / 4 / 20 < chance < 0.05 / 4
    assert code(uds=0.8) == "hidden"
    others = {f"clean {n}": {"uds": View(1.0)} for n in range(19)}
    found = {one.source: one for one in combined({"x": {"uds": View(0.8)}} | others, NULLS)}
    assert found["x"].code == "undecided"
    many = {f"x {n}": {"uds": View(0.8)} for n in range(20)}
    assert {one.code for one in combined(many, NULLS)} == {"hidden"}


def test_groups_that_can_see_are_those_with_power():
    assert able(NULLS) == ["stream", "aligned"]


def test_the_shipped_calibration_has_the_views_that_patch_writes():
    shipped = read_calibration(None)
    assert {"uds", "lens", "uds_aligned", "greedy"} <= set(shipped)
    assert {"stream", "aligned"} & set(able(shipped))
    assert all(one.n >= 4 and 0 <= one.power <= 1 for one in shipped.values())


def summary(source="x", **changes):
    return {
        "source": source,
        "score": "uds",
        "scope": "span",
        "uds": 0.05,
        "ci95": [0.02, 0.08],
        "calibration": {"full": 0.0, "retain": 1.0},
        "aligned": {"uds": 0.06, "ci95": [0.03, 0.09], "d_share": 0.01},
        "validity": {"needed": True},
        "outputs": {"source": 0.1, "full": 1.0, "retain": 0.05, "n": 64},
    } | changes


@pytest.fixture
def place(tmp_path):
    def write(**changes):
        (tmp_path / "one").mkdir(exist_ok=True)
        (tmp_path / "one" / "summary.json").write_text(json.dumps(summary(**changes)))
        return tmp_path

    return write


def test_views_come_from_the_files_of_patch_and_audit(place):
    folder = place()
    (views,) = views_of(folder).values()
    assert views["uds"] == View(0.05, (0.02, 0.08), True)
    assert views["uds_aligned"] == View(0.06, (0.03, 0.09), True)
    assert views["greedy"].value == pytest.approx((1 - 0.1) / (1 - 0.05))
    assert views_of(folder / "one") == views_of(folder)


@pytest.mark.parametrize(
    ("changes", "view", "control"),
    [
        ({"calibration": {"full": 0.1, "retain": 1.0}}, "uds", False),
        ({"aligned": {"uds": 0.5, "ci95": None, "d_share": 0.4}}, "uds_aligned", False),
        ({"outputs": {"source": 0.1, "full": 0.3, "retain": 0.2, "n": 64}}, "greedy", False),
        ({"aligned": {"uds": None, "why": "not needed: UDS is below 0.1"}}, "uds_aligned", True),
    ],
)
def test_controls_are_those_of_the_run(place, changes, view, control):
    assert views_of(place(**changes))["x"][view].control is control


def test_the_weakest_layer_speaks_for_the_aligned_stream(place):
    weakest = {"layer": 15, "erasure": 0.33, "ci95": [0.3, 0.36]}
    aligned = {"uds": 0.84, "ci95": [0.8, 0.88], "d_share": 0.01, "weakest": weakest}
    views = views_of(place(aligned=aligned))["x"]
    assert views["uds_weakest"] == View(0.33, (0.3, 0.36), True)
    nulls = {"uds_weakest": Null(0.9, 0.05, 12, 0.9), "uds_aligned": Null(0.9, 0.05, 12, 0.9)}
    (one,) = combined({"x": views}, nulls)
    assert one.votes["uds_weakest"].is_voice
    assert one.votes["uds_weakest"].finds
    assert not one.votes["uds_aligned"].finds
    assert one.code == "hidden"


def test_a_study_of_retraining_is_a_view(tmp_path):
    study = {
        "models": {"unlearned": "x"},
        "main": {"recovery_adjusted": {"value": 0.8, "low": 0.7, "high": 0.9}},
        "gate": {"passed": True},
    }
    (tmp_path / "summary.json").write_text(json.dumps([study]))
    view = views_of(tmp_path)["x"]["rtt"]
    assert (view.value, view.control) == (pytest.approx(0.2), True)
    assert view.ci95 == pytest.approx((0.1, 0.3))


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(InputError, match="no summary"):
        views_of(tmp_path)
    for text in ("[3]", "3", '{"source": 3}', '{"models": []}'):
        (tmp_path / "summary.json").write_text(text)
        with pytest.raises(InputError, match="not a result"):
            views_of(tmp_path)
    (tmp_path / "summary.json").write_text('{"source": "x", "uds": "low"}')
    with pytest.raises(InputError, match="wanted a number"):
        views_of(tmp_path)


def test_a_calibration_that_is_none_is_refused(tmp_path):
    path = tmp_path / "nulls.json"
    for text in ("[]", '{"views": {"uds": {"mean": 1}}}', '{"views": {"uds": 3}}'):
        path.write_text(text)
        with pytest.raises(InputError, match="not a calibration"):
            read_calibration(path)
    null = {"mean": 1.0, "spread": 0.1, "n": 1, "power": 1.0}
    path.write_text(json.dumps({"views": {"uds": null}}))
    with pytest.raises(InputError, match="out of range"):
        read_calibration(path)


def test_the_gate_names_the_first_that_fails(place, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text('[gate]\nfail = ["hidden"]\n')
    folder = place()
    assert run(["verdict", str(folder)]) == 0
    assert run(["verdict", str(folder), "--gate", str(policy)]) == 4
    policy.write_text('[gate]\nfail = ["erased"]\nviews = ["uds"]\n')
    assert run(["verdict", str(folder), "--gate", str(policy)]) == 0


def test_a_gate_that_wants_what_was_not_heard_fails():
    (one,) = combined({"x": {"uds": View(1.0), "uds_aligned": View(1.0)}}, NULLS)
    assert Gate().problem(one) is None
    assert "did not vote" in Gate(views=("rtt",)).problem(one)
    assert Gate(require=("intact",)).problem(one) == one.sentence


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gate]\nfail = 3", "wanted a list"),
        ('[gate]\nfail = ["bad"]', "wanted a list"),
        ("[gates]", "is unknown"),
        ("gate", "not TOML"),
    ],
)
def test_a_wrong_policy_is_refused(tmp_path, text, said):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_gate(path)


def test_json_has_a_view_for_each_that_was_measured(place):
    from lensaudit.cli.main import cli

    done = CliRunner().invoke(cli, ["verdict", str(place()), "--json"])
    (one,) = json.loads(done.stdout)
    assert set(one) == {"source", "verdict", "views", "disagreement"}
    assert set(one["verdict"]) == {"code", "sentence"}
    assert set(one["views"]) == {"uds", "uds_aligned", "greedy"}
    assert {"value", "ci95", "control", "vote"} <= set(one["views"]["uds"])


def test_the_shipped_calibration_and_the_page_are_those_of_the_shipped_scores():
    from dataclasses import asdict

    from lensaudit.gym.ledger import rows_of
    from lensaudit.gym.report import document, text

    found = document(rows_of(ROOT / "benchmarks" / "gym", None))
    shipped = read_calibration(None)
    assert set(found.nulls) == set(shipped)
    for name, null in found.nulls.items():
        assert asdict(null) == pytest.approx(asdict(shipped[name]))
    page = (ROOT / "docs" / "gym.md").read_text()
    assert [line for line in text(found).splitlines() if line and line not in page] == []
