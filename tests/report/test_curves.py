"""Depth, utility and recovery by step: read, drawn, and on the page."""

import json

import pytest

import lensaudit as la
from lensaudit.errors import InputError
from lensaudit.report.assemble import assemble
from lensaudit.report.beside import points_of
from lensaudit.results.locate import Found
from lensaudit.sweep.watch import epoch_of

ROWS = [
    {"step": 10, "epoch": 0.5, "uds": 0.1, "model_utility": 0.8, "failure": None},
    {"step": 20, "epoch": 1.0, "uds": None, "model_utility": 0.7, "failure": None},
]
POINT = {"c": 0, "steps": 0, "tokens": 0, "flop": 0, "source": 0.5, "full": 1.0, "retain": 0.0}
ATTACK = {
    "schema": "effort/1",
    "model": "npo",
    "data": "demo",
    "readout": "said",
    "by": "lower limit",
    "notes": [],
    "arms": {
        "T": {
            "e50": 4,
            "e80": 8,
            "censored": {"e50": False, "e80": True},
            "lr": 1e-3,
            "trained_on": "other facts",
            "reason": "",
            "curve": [
                POINT | {"rho": 0.25, "low": 0.1},
                POINT | {"c": 4, "rho": None, "low": None},
                POINT | {"c": 8, "rho": 0.75, "low": None},
            ],
        }
    },
}


@pytest.fixture
def results(tmp_path):
    for name, content in (("watch/curve.json", ROWS), ("effort/summary.json", ATTACK)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def test_gaps_of_a_curve_are_left_out(results):
    points = points_of(Found("curve", results / "watch" / "curve.json").record, "watch")
    assert [(one.series, one.step, one.value, one.epoch) for one in points] == [
        ("uds", 10, 0.1, 0.5),
        ("model_utility", 10, 0.8, 0.5),
        ("model_utility", 20, 0.7, 1.0),
    ]


def test_training_and_attack_share_one_frame_and_one_picture(results):
    import matplotlib as mpl

    mpl.use("Agg")
    frame = la.frames.curves(results)
    assert set(frame["series"]) == {"uds", "model_utility", "recovery T"}
    assert list(frame[frame["series"] == "recovery T"]["step"]) == [0, 8]
    axes = la.plot.curve(results)
    assert len(axes.get_lines()) == 3
    attack = str(results / "effort")
    assert set(frame["folder"]) == {str(results / "watch"), attack}
    told = la.frames.efforts(results)[["folder", "weights"]].drop_duplicates()
    assert told.to_numpy().tolist() == [[attack, "npo"]]  # its name: no manifest has a hash
    assert [label.get_text() for label in axes.get_xticklabels()] == ["10\n(0.5)", "20\n(1)"]
    mpl.pyplot.close(axes.figure)


def test_the_page_holds_both(results):
    page = assemble([results])
    assert len(page.curves[0]["points"]) == 3
    assert page.attacks[0]["arms"]["T"]["e50"] == 4


def test_a_curve_with_text_for_a_number_is_refused(results):
    (results / "watch" / "curve.json").write_text(json.dumps([{"step": 1, "uds": "high"}]))
    with pytest.raises(
        InputError, match=r"curve\.json: 0\.metrics\.uds: found 'high', wanted a number"
    ):
        _ = Found("curve", results / "watch" / "curve.json").record


def test_epochs_are_the_trainers_own(tmp_path):
    assert epoch_of(tmp_path) is None
    (tmp_path / "manifest.json").write_text(json.dumps({"options": {"epoch": 2}}))
    assert epoch_of(tmp_path) == 2.0
    (tmp_path / "trainer_state.json").write_text(json.dumps({"epoch": 1.5, "global_step": 30}))
    assert epoch_of(tmp_path) == 1.5
    (tmp_path / "trainer_state.json").write_text("{")
    assert epoch_of(tmp_path) == 2.0
