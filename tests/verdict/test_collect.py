"""Folders in, one word a model out, that nothing beside it changes."""

import json

import pytest
import verdict_support as made

from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.scores.intervals import exact_excess
from lensaudit.verdict.attacks import _null_of
from lensaudit.verdict.collect import verdicts
from lensaudit.verdict.views import LEVEL, read_calibration

PARTIAL = made.summary(0.667, half=0.06, aligned=made.aligned(0.64, half=0.06), source="npo")
ERASED = made.summary(source="absent")


def codes(*places):
    return {one.source: one.code for one in verdicts(places).models}


def worst_folder(
    folder, n_out=40, *, source="x", weights="w", low=0.55, high=0.85, q="", expected=2.0
):
    folder.mkdir(parents=True)
    content = {
        "kind": "worst",
        "source": source,
        "retain": ["retain"],
        "n_scored": 56,
        "authors": 8,
        "n_out": n_out,
        "expected": expected,
        "excess": (n_out - expected) / 56,
        "ci95": None if low is None else [low, high],
        "no_interval": None if low is not None else "every author has the same mean",
        "named": [],
        "facts": [{"idx": 0, "q": q}],
    }
    (folder / "summary.json").write_text(json.dumps(content))
    return made.seal(folder, "worst", ["summary.json"], source={"weights": weights})


def sample_folder(folder, *rows, authors=8):
    """Leak@k as (temperature, k, source, retain, low, high); no limits where authors agree."""
    folder.mkdir(parents=True)
    leak = [
        {"temperature": at, "top_p": 1.0, "k": k, "source": own, "retain": arm, "low": low}
        | {"high": high, "excess": None if own is None else own - arm, "corrected": None}
        | {"false_leak": 0.0, "reason": None}
        for at, k, own, arm, low, high in rows
    ]
    content = {"kind": "sample", "source": "x", "retain": ["retain"], "n_scored": 56}
    content |= {"samples": 64, "authors": authors, "leak": leak}
    (folder / "summary.json").write_text(json.dumps(content))
    return made.seal(folder, "sample", ["summary.json"], source={"weights": "w"})


def rtt_folder(folder, ratio, *, passed=True, **accuracies):
    folder.mkdir(parents=True)
    gate = {"passed": passed, "reason": "it never unlearned"}
    study = {"study_id": "s", "models": {"unlearned": "x"}, "gate": gate}
    read = {name: {"value": one, "n": 64} for name, one in accuracies.items()}
    study["main"] = {"recovery_adjusted": ratio, "accuracies": read}
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


@pytest.mark.parametrize(
    ("n_out", "expected", "finds"), [(56, 0, True), (47, 0, True), (5, 1, False), (1, 0, False)]
)
def test_a_leak_that_all_authors_share_is_found_by_exact_counts(tmp_path, n_out, expected, finds):
    """56 of 56 against 0 has no scatter between authors: there is nothing that is more evidence."""
    worst_folder(tmp_path / "a", n_out, expected=expected, low=None)
    view = verdicts([tmp_path / "a"]).models[0].views[0]
    assert view.finds is finds
    assert view.held.ends is not None
    made.save_run(tmp_path / "a" / "patch", made.summary())
    assert (codes(tmp_path / "a") == {"x": "erased"}) is not finds


def test_rows_of_few_authors_are_worth_few_in_exact_counts(tmp_path):
    """12 of 56 against 1: of as many people .001, of 8 authors 5 against 1 of 25."""
    assert exact_excess(12, 1, 56, 1)[1] < LEVEL < exact_excess(12, 1, 56, 7)[1]
    worst_folder(tmp_path / "a", 12, expected=1, low=None)
    assert not verdicts([tmp_path / "a"]).models[0].views[0].finds


def test_where_authors_differ_the_more_careful_of_two_chances_counts(tmp_path):
    """So narrow an interval would find 3 of 56 against 0; the counts do not."""
    worst_folder(tmp_path / "a", 3, expected=0, low=0.05, high=0.057)
    view = verdicts([tmp_path / "a"]).models[0].views[0]
    assert view.chance == pytest.approx(exact_excess(3, 0, 56, 7)[1])


def test_samples_that_all_say_the_facts_are_found(tmp_path):
    sample_folder(tmp_path / "a", (1.0, 64, 1.0, 0.0, None, None))
    (view,) = verdicts([tmp_path / "a"]).models[0].views
    assert view.finds
    assert codes(tmp_path / "a") == {"x": "answers"}


def test_a_retraining_that_brings_all_back_of_every_author_is_found(tmp_path):
    """B is C on every row: the ratio is 1 without an interval; 64 of 64 against 24 of 64."""
    ratio = {"value": 1.0, "interval": None, "interval_why": "every author has the same ratio"}
    rtt_folder(tmp_path / "a", ratio, B=1.0, C=1.0, N=0.375)
    rtt_folder(tmp_path / "b", ratio, B=0.4, C=0.4, N=0.375)
    for name, finds in (("a", True), ("b", False)):
        (view,) = verdicts([tmp_path / name]).models[0].views
        assert view.finds is finds


def test_a_stand_in_lends_its_spread_and_not_its_mean():
    """The worst case of models that never knew lies at -.2: its list elicits more from retain."""
    nulls = read_calibration()
    lent = _null_of("effort", nulls)
    assert nulls["worst_case"].mean < -0.1
    assert (lent.mean, lent.spread) == (0.0, nulls["worst_case"].spread)
    assert _null_of("worst_case", nulls) == nulls["worst_case"]


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
