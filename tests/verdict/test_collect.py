"""Folders in, one word a model out, that nothing beside it changes."""

import json

import pytest
import verdict_support as made

from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.verdict.collect import verdicts

PARTIAL = made.summary(0.667, half=0.06, aligned=made.aligned(0.64, half=0.06), source="npo")
ERASED = made.summary(source="absent")


def codes(*places):
    return {one.source: one.code for one in verdicts(places).models}


def worst_folder(folder, n_out=40, *, source="x", weights="w", low=0.55, high=0.85, q=""):
    folder.mkdir(parents=True)
    content = {
        "kind": "worst",
        "source": source,
        "retain": ["retain"],
        "n_scored": 56,
        "authors": 8,
        "n_out": n_out,
        "expected": 2.0,
        "excess": (n_out - 2) / 56,
        "ci95": [low, high],
        "no_interval": None,
        "named": [],
        "facts": [{"idx": 0, "q": q}],
    }
    (folder / "summary.json").write_text(json.dumps(content))
    return made.seal(folder, "worst", ["summary.json"], source={"weights": weights})


def rtt_folder(folder, ratio, *, passed=True):
    folder.mkdir(parents=True)
    gate = {"passed": passed, "reason": "it never unlearned"}
    study = {"study_id": "s", "models": {"unlearned": "x"}, "gate": gate}
    study["main"] = {"recovery_adjusted": ratio}
    (folder / "summary.json").write_text(json.dumps([study]))
    return made.seal(folder, "rtt run", ["summary.json"], models={"x": "w"})


def test_a_model_has_one_word_whatever_is_named_beside_it(tmp_path):
    npo = made.save_run(tmp_path / "npo", PARTIAL, weights="npo")
    alone = codes(npo)
    for at in range(3):
        absent = {**ERASED, "source": f"absent {at}"}
        made.save_run(tmp_path / f"absent{at}", absent, weights=f"absent {at}")
    beside = verdicts([tmp_path])
    assert alone == {"npo": "partly_erased"}
    assert {one.source: one.code for one in beside.models}["npo"] == "partly_erased"
    one = next(one for one in beside.models if one.source == "npo")
    assert one.verdict == verdicts([npo]).models[0].verdict
    assert json.loads((npo / "summary.json").read_text())["verdict"] == one.verdict.document()


def test_a_lens_run_beside_it_adds_its_view_and_takes_none_away(tmp_path):
    patched = made.save_run(tmp_path / "patch", made.summary())
    none = {"uds": None, "weakest": None, "aligned": {"uds": None, "why": "streams are read out"}}
    read = made.summary(0.9) | none | {"score": "lens", "lens": 0.9, "outputs": made.said(0.9)}
    rows = [{"idx": idx, "lens": 0.9, "unscored": None} for idx in range(read["n_scored"])]
    rows = [row | {"baseline": -0.1, "s1": [2.0], "s2": [1.0], "ke": [0]} for row in rows]
    lens = made.save_run(tmp_path / "lens", read, rows=rows)
    (alone,), (both,) = verdicts([patched]).models, verdicts([patched, lens]).models
    assert both.code == alone.code == "erased"
    assert [one for one in both.views if one.name != "lens"] == alone.views
    assert {one.name for one in both.views} - {one.name for one in alone.views} == {"lens"}


def test_attacks_join_a_model_by_its_weights(tmp_path):
    made.save_run(tmp_path / "patch", made.summary())
    assert codes(tmp_path) == {"x": "erased"}
    worst_folder(tmp_path / "worst", source="another name of it")
    (one,) = verdicts([tmp_path]).models
    assert one.code == "partly_erased"
    assert "worst case" in one.verdict.sentence
    worst_folder(tmp_path / "other", source="another", weights="another")
    assert codes(tmp_path)["x"] == "partly_erased"
    assert codes(tmp_path)["another"] == "undecided"


def test_the_interval_of_a_retraining_is_read_where_it_is(tmp_path):
    inside = {"value": 1.0, "interval": {"low": 0.9, "high": 1.1}, "reason": ""}
    rtt_folder(tmp_path / "a", inside)
    (view,) = verdicts([tmp_path / "a"]).models[0].views
    assert view.held.ends == (0.9, 1.1)
    assert view.finds
    made.save_run(tmp_path / "a" / "patch", made.summary())
    assert codes(tmp_path / "a") == {"x": "hidden"}


def test_a_study_whose_gate_failed_finds_nothing(tmp_path):
    ratio = {"value": 1.0, "interval": {"low": 0.9, "high": 1.1}}
    rtt_folder(tmp_path / "a", ratio, passed=False)
    (view,) = verdicts([tmp_path / "a"]).models[0].views
    assert (view.says, view.reason) == ("cannot tell", "it never unlearned")


def test_named_facts_find_by_their_least_q_alone(tmp_path):
    worst_folder(tmp_path / "a", 3, low=-0.05, high=0.1, q="0.09")
    worst_folder(tmp_path / "b", 3, low=-0.05, high=0.1, q="0.001")
    for name, finds in (("a", False), ("b", True)):
        views = {view.name: view for view in verdicts([tmp_path / name]).models[0].views}
        assert views["named"].finds is finds
        assert not views["worst_case"].finds


def test_the_stronger_of_two_attacks_counts(tmp_path):
    worst_folder(tmp_path / "a" / "found")
    worst_folder(tmp_path / "a" / "missed", 2, low=-0.05, high=0.05)
    (one,) = verdicts([tmp_path / "a"]).models
    assert one.views[0].finds


def test_of_several_sets_of_rows_the_worst_counts_and_all_are_listed(tmp_path):
    made.save_run(tmp_path / "all", made.summary())
    low = made.summary(0.1, aligned={"uds": None, "why": "not needed: low"})
    made.save_run(tmp_path / "few", low, examples="others")
    (one,) = verdicts([tmp_path]).models
    assert one.code == "hidden"
    assert [judged.verdict.code for judged in one.judged] == ["hidden", "erased"]
    assert [other["verdict"]["code"] for other in one.document()["other_rows"]] == ["erased"]


def test_one_digit_that_was_edited_is_told(tmp_path):
    run_folder = made.save_run(tmp_path / "a", PARTIAL)
    attack = worst_folder(tmp_path / "b")
    for folder, digit, other in ((run_folder, "0.667", "0.967"), (attack, "56", "66")):
        text = (folder / "summary.json").read_text()
        (folder / "summary.json").write_text(text.replace(digit, other, 1))
        with pytest.raises(InputError, match="was changed after the run wrote it"):
            verdicts([folder])
        assert run(["verdict", str(folder)]) == 2


def test_a_folder_that_yields_no_view_is_refused_by_name(tmp_path):
    made.save_run(tmp_path / "a", made.summary())
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match=r"b: holds nothing that a verdict is made of"):
        verdicts([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(InputError, match="no such file"):
        verdicts([tmp_path / "gone"])


def test_q_is_over_the_models_and_changes_no_code(tmp_path):
    names = [f"m{at}" for at in range(4)]
    for name in names:
        made.save_run(tmp_path / name, {**PARTIAL, "source": name}, weights=name)
    found = verdicts([tmp_path])
    assert {one.code for one in found.models} == {"partly_erased"}
    assert all(one["q"] == pytest.approx(found.models[0].chance) for one in found.document())
    assert "q" not in verdicts([tmp_path / "m0"]).document()[0]


def test_json_is_a_list_of_source_verdict_and_views(tmp_path, capsys):
    folder = made.save_run(tmp_path / "a", made.summary())
    assert run(["verdict", str(folder), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert {"source", "verdict", "views"} <= set(one)
    assert set(one["verdict"]) == {"code", "sentence", "because"}
    assert {"value", "ci95", "control", "vote", "group", "chance", "n", "why"} <= set(
        one["views"]["uds"]
    )
