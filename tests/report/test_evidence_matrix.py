"""The evidence matrix says what each view found of each model, and nothing of the rest."""

import json
from dataclasses import replace

import pytest
from report_cases import eval_run, patch_run, write

from lensaudit.report.assemble import assemble
from lensaudit.report.evidence import VIEWS, evidence_of


@pytest.fixture
def results(tmp_path):
    """Two audited models; one of them was attacked, too."""
    for name, held in (("npo", 0.2), ("idk", 0.9)):
        patch_run(tmp_path / name, name, held=held)
        eval_run(tmp_path / "eval" / name, name, model_utility=0.5 + held / 10)
    eval_run(tmp_path / "eval" / "retain", "retain", model_utility=0.7)
    summary = json.loads((tmp_path / "npo" / "summary.json").read_text())
    summary["aligned"] = {"uds": 0.7, "ci95": [0.6, 0.8], "d_share": 0.02}
    summary["validity"] = {"d_share": 0.03}
    summary["outputs"] = {"source": 0.1, "full": 1.0, "retain": 0.05, "n": 24}
    write(tmp_path / "npo" / "summary.json", summary)
    shifts = [
        {"model": "npo", "before": {"prob": 0.2}, "after": {"prob": 0.5}},
        {"model": "retain", "before": {"prob": 0.2}, "after": {"prob": 0.3}},
    ]
    write(tmp_path / "relearned" / "audit.json", {"shifts": shifts})
    return tmp_path


def lines_of(document):
    return {line["label"]: line for line in evidence_of(document)["lines"]}


def test_each_view_stands_under_its_model(results):
    found = lines_of(assemble([results]))
    npo = found["npo"]["cells"]
    assert (npo["aligned"]["value"], npo["aligned"]["low"], npo["aligned"]["high"]) == (
        0.7,
        0.6,
        0.8,
    )
    assert npo["unread"]["value"] == 0.03
    assert (npo["says"]["value"], npo["says"]["n"]) == (0.1, 24)
    assert npo["utility"]["value"] == pytest.approx(0.52)
    # what one pass adds beyond what it adds to retain
    assert npo["gain"]["value"] == pytest.approx(0.3 - 0.1)
    assert set(found["idk"]["cells"]) == {"uds", "utility"}
    assert found["idk"]["cells"]["uds"]["value"] < npo["uds"]["value"]


def test_anchors_are_the_control_of_a_column(results):
    found = lines_of(assemble([results]))
    full, retain = found["full"], found["retain"]
    assert (full["role"], full["cells"]["uds"]["value"], full["cells"]["says"]["value"]) == (
        *("full", pytest.approx(0, abs=1e-3)),
        1.0,
    )
    assert retain["role"] == "retain"
    assert set(retain["cells"]) == {"uds", "says", "utility"}
    assert "gain" not in retain["cells"]


def test_what_relearning_adds_needs_no_page_of_retain(tmp_path):
    patch_run(tmp_path / "npo", "npo")
    shifts = [
        {"model": "npo", "before": {"prob": 0.2}, "after": {"prob": 0.5}},
        {"model": "control", "before": {"prob": 0.2}, "after": {"prob": 0.3}},
    ]
    write(tmp_path / "relearned" / "audit.json", {"shifts": shifts})
    assert lines_of(assemble([tmp_path]))["npo"]["cells"]["gain"]["value"] == pytest.approx(0.2)
    # without a score of retain there is nothing to be above
    for scores in ({"prob": None}, {}):
        shifts[1] |= {"before": scores, "after": scores}
        write(tmp_path / "relearned" / "audit.json", {"shifts": shifts})
        document = assemble([tmp_path])
        assert len(document.attacks) == 1
        assert evidence_of(document) is None


def test_columns_are_those_that_were_measured_in_one_order(results):
    columns = [one["id"] for one in evidence_of(assemble([results]))["views"]]
    assert columns == [name for name in VIEWS if name in columns]
    assert "rtt" not in columns
    assert "lens" not in columns


def test_one_view_is_no_matrix(tmp_path):
    patch_run(tmp_path / "npo", "npo")
    assert evidence_of(assemble([tmp_path])) is None


def test_attacks_are_joined_by_name_and_keep_why_they_are_not_to_be_read(results):
    document = assemble([results])
    fact = {"idx": 0, "group": 0, "entity": "x", "attacks": "", "q": "", "unscored": ""}
    attacks = [
        {
            "kind": "rtt",
            "model": "npo",
            "gate": "the facts were never known",
            "ratios": [{"name": "recovery_adjusted", "value": 0.4, "low": 0.1, "high": 0.7}],
        },
        {
            "kind": "worst",
            "source": "npo",
            "excess": 0.25,
            "ci95": [0.1, 0.4],
            "facts": [fact, fact | {"unscored": "a coin would hit it"}],
        },
    ]
    npo = lines_of(replace(document, attacks=attacks))["npo"]["cells"]
    assert (npo["rtt"]["value"], npo["rtt"]["why"]) == (0.4, "the facts were never known")
    assert (npo["worst"]["value"], npo["worst"]["n"]) == (0.25, 1)
