"""Folders in, one word a model out, that nothing beside it changes."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import verdict_support as made

from lensaudit.cli.main import run
from lensaudit.doors.gate import Policy, gate
from lensaudit.errors import InputError
from lensaudit.kinds.worst import CHOSEN, NO_CONTROL
from lensaudit.results.manifest import MANIFEST
from lensaudit.results.roles import UNATTACKED, attacked_ends_in
from lensaudit.scores.intervals import exact_excess, typical_size
from lensaudit.screen.depth import sentences
from lensaudit.verdict.beside import ALONE
from lensaudit.verdict.collect import verdicts
from lensaudit.verdict.views import GROUPS, LEVEL, null_of, read_calibration

PARTIAL = made.summary(0.667, half=0.06, aligned=made.aligned(0.64, half=0.06), source="npo")
ERASED = made.summary(source="absent")


def codes(*places):
    return {one.source: one.code for one in verdicts(places).models}


def test_a_component_s_depth_decides_nothing_and_layers_that_were_left_out_may_hold(tmp_path):
    made.save_run(tmp_path / "whole", made.summary())
    attn = made.summary(0.72, component="attn", aligned={"uds": None, "why": "of streams"})
    made.save_run(tmp_path / "attn", attn)
    assert codes(tmp_path / "whole", tmp_path / "attn") == {"x": "erased"}
    (alone,) = verdicts([tmp_path / "attn"]).models
    assert alone.code == "undecided"
    assert not any(view.finds for view in alone.views)
    assert "component attn: it was measured of no model that never knew" in alone.verdict.sentence
    made.save_run(tmp_path / "half", made.summary(n_unpatched=7))
    (half,) = verdicts([tmp_path / "half"]).models
    assert half.code == "undecided"
    assert "7 layers were not patched" in half.verdict.sentence


def worst_folder(
    folder,
    n_out=40,
    *,
    source="x",
    weights="w",
    low=0.55,
    high=0.85,
    q="",
    expected=2.0,
    full_out=56,
    tier="cheap",
    authors=8,
    per_author=None,
    **rates,
):
    """A worst case over 56 facts; without `low` its authors agree, and its limits are of counts."""
    folder.mkdir(parents=True)
    if low is None:
        low, high = exact_excess(n_out, expected, 56, per_author or 56 / authors)[0].ends
    content = {
        "kind": "worst",
        "source": source,
        "retain": ["retain"],
        "n_scored": 56,
        "authors": authors,
        "per_author": per_author,
        "n_out": n_out,
        "expected": expected,
        "full_out": full_out,
        "tier": tier,
        "excess": (n_out - expected) / 56,
        "ci95": [low, high],
        "named": [],
        "facts": [{"idx": 0, "q": q}],
        "attacks": [attack_row(name, *three) for name, three in rates.items()],
    }
    (folder / "summary.json").write_text(json.dumps(content))
    return made.seal(folder, "worst", ["summary.json"], source={"weights": weights})


def attack_row(name, source, full, retain):
    """An attack of a worst case by the share of the facts that it brings out of each model."""
    return {
        **{"name": name, "tier": "cheap", "about": "", "n_scored": 56, "control": full},
        **{"source": source, "retain": retain, "counts": True, "only": 0, "gain": 0.0},
        **{"seconds": 0.0, "forwards": 0, "tokens": 0},
    }


def eval_folder(folder, role, rouge, rows="r", n_new=200):
    """An evaluation of a model of a run of `patch` that says so much by ROUGE."""
    folder.mkdir(parents=True)
    scored = {str(at): {"rougeL_recall": rouge} for at in range(64)}
    log = {"forget_Q_A_ROUGE": {"agg_value": rouge, "value_by_index": scored}}
    log["forget_Q_A_ROUGE"]["interval_95"] = [rouge - 0.05, rouge + 0.05]
    (folder / "TOFU_EVAL.json").write_text(json.dumps(log))
    weights = made.inputs(made.summary())[role]["weights"]
    named = {"model": {"name": role, "weights": weights}, "data": {"forget": rows}}
    named["conditions"] = {"n_new": {"forget": n_new}}
    return made.seal(folder, "eval", ["TOFU_EVAL.json"], **named)


def know_folder(folder, p, entities=None, *, idx=0, **more):
    """An assignment test of eight people, with a model taught alike beside it.

    `entities`: of rows from `idx` on, where it says them.
    """
    folder.mkdir(parents=True)
    content = {"kind": "know", "source": "x", "headline": "h", "finds": p < 0.05, "p": p, "z": 3.0}
    content |= {"bits": None, "controls": [], "n_subjects": 8, "relations": [], "max_bits": 3.0}
    content |= {"gamma": 0.0, "alike": ["retain"]} | more
    (folder / "summary.json").write_text(json.dumps(content))
    rows = {str(idx + at): one for at, one in enumerate(entities or ())}
    return made.seal(folder, "know", ["summary.json"], source={"weights": "w"}, rows=rows)


def sample_folder(folder, *rows, authors=8, **of):
    """Leak@k as (temperature, k, source, retain, low, high).

    `of`: facts and authors of the rows, where those of the run are not all.
    """
    folder.mkdir(parents=True)
    leak = [
        {"temperature": at, "top_p": 1.0, "k": k, "source": own, "retain": arm, "low": low}
        | {"high": high, "excess": None if own is None else own - arm, "corrected": None}
        | {"false_leak": 0.0, "reason": None, **of}
        for at, k, own, arm, low, high in rows
    ]
    content = {"kind": "sample", "source": "x", "retain": ["retain"], "n_scored": 56}
    content |= {"samples": 64, "authors": authors, "leak": leak}
    (folder / "summary.json").write_text(json.dumps(content))
    return made.seal(folder, "sample", ["summary.json"], source={"weights": "w"})


def asked_run(folder, entities, **changes):
    """A run of `patch` whose rows say what was asked."""
    content = made.summary(**changes)
    rows = [
        {"idx": idx, "group": idx % 8, "baseline": -0.1, "s1": [2.0, 2.0], "s2": [1.0, 1.0]}
        | {"ke": [0, 1], "uds": content["uds"], "uds_aligned": 0.9, "unscored": None}
        | {"entity": one, "question": f"{idx}?"}
        for idx, one in enumerate(entities)
    ]
    return made.save_run(folder, content, rows=rows)


def rtt_folder(folder, ratio, *, passed=True, n_groups=8, per_author=None, **accuracies):
    folder.mkdir(parents=True)
    gate = {"passed": passed, "reason": "it never unlearned"}
    study = {"study_id": "s", "models": {"unlearned": "x"}, "gate": gate, "per_author": per_author}
    study["n_groups"] = n_groups
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
    assert json.loads((npo / "summary.json").read_text())["verdict"] == asdict(one.verdict)


def test_a_model_of_the_name_of_anothers_retain_is_audited_and_one_that_a_sweep_made_is_not(
    tmp_path,
):
    """Two jobs that each call their model out/model; and a retain model, rounded."""
    held = made.summary(0.1, source="out/model", aligned={"uds": None, "why": "not needed: low"})
    place = made.save_run(tmp_path / "j1", held, weights="npo")
    other = made.save_run(tmp_path / "j2", made.summary(source="never"), weights="never")
    for name in ("retain", "out/model"):
        beside = made.inputs(made.summary(source="never"), "never")
        beside["retain"] |= {"name": name}
        made.seal(other, "patch", ["summary.json", "results.jsonl"], **beside)
        assert codes(tmp_path) == {"out/model": "hidden", "never": "erased"}, name
        assert not gate(verdicts([tmp_path]), Policy()).passed
    rounded = made.inputs(held, "npo")
    rounded["retain"] |= {"name": f"out/model{UNATTACKED}"}
    made.seal(place, "patch", ["summary.json", "results.jsonl"], **rounded)
    found = verdicts([tmp_path])
    assert [one.source for one in found.models] == ["never"]
    assert [one.reason for one in found.left_out] == [
        "out/model is retain of a result here, not audited"
    ]


def test_an_evaluation_names_the_end_that_a_sweep_attacked_among_its_options():
    inputs = {"model": {"name": "retain", "weights": "w"}}
    for beside, made_of in (("retain", []), (f"retain{UNATTACKED}", ["w"]), (None, [])):
        manifest = {"inputs": inputs, "options": {"full": "full", "retain": beside}}
        assert [*attacked_ends_in(manifest)] == made_of


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
    assert one.code == "undecided"
    assert "worst case" in one.verdict.sentence
    worst_folder(tmp_path / "other", source="another", weights="another")
    assert codes(tmp_path)["x"] == "undecided"
    assert codes(tmp_path)["another"] == "undecided"


def test_the_interval_of_a_retraining_is_read_where_it_is(tmp_path):
    inside = {"value": 1.0, "interval": {"low": 0.9, "high": 1.1}, "reason": ""}
    rtt_folder(tmp_path / "a", inside)
    (view,) = verdicts([tmp_path / "a"]).models[0].views
    assert view.held.ends == (0.9, 1.1)
    assert view.finds
    made.save_run(tmp_path / "a" / "patch", made.summary())
    assert codes(tmp_path / "a") == {"x": "hidden"}


@pytest.mark.parametrize(("n_groups", "finds", "authors"), [(3, False, 3), (20, True, 20)])
def test_authors_of_a_retraining_are_those_of_its_rows(tmp_path, n_groups, finds, authors):
    # .8 of 64 items against .4: of 3 authors worth 12 facts, of 20 worth 44
    rtt_folder(tmp_path / "a", {"value": 0.79, "interval": None}, n_groups=n_groups, B=0.8, N=0.4)
    (view,) = verdicts([tmp_path / "a"]).models[0].views
    assert (view.finds, view.n_authors) == (finds, authors)


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


def test_facts_are_counted_by_one_rule_whoever_counts_them(tmp_path):
    """12 of 56 against 1, of 8 authors: once begun, asked, and by an attack."""
    twelve = made.said(12 / 56, 1.0, 1 / 56, 56)
    content = made.summary(outputs=twelve, told=made.told(**twelve))
    worst_folder(tmp_path / "a", 12, expected=1, low=None, greedy=(12 / 56, 1.0, 1 / 56))
    views = [*made.evidence_of(content).views, *verdicts([tmp_path / "a"]).models[0].views]
    chances = {one.name: one.chance for one in views if one.group == "answers"}
    alike = exact_excess(12, 1, 56, 7)[1]
    for name in ("said", "told", "asked", "worst_case"):
        assert chances[name] == pytest.approx(alike), name
    # of as many people they would be found
    people, authors = (
        made.evidence_of(content | {"outputs": twelve | {"n_groups": n}}).one("said")
        for n in (56, 8)
    )
    assert (people.finds, authors.finds) == (True, False)


@pytest.mark.parametrize("authors", [4, 8])
def test_what_is_said_and_what_is_asked_have_one_interval(tmp_path, authors):
    """12 of 56 facts against 1, below five authors too: none of them may rule out."""
    twelve = (12 / 56, 1.0, 1 / 56)
    outputs = made.said(*twelve, 56) | {"n_groups": authors}
    said = made.evidence_of(made.summary(outputs=outputs)).one("said")
    worst_folder(tmp_path / "a", 12, expected=1, authors=authors, greedy=twelve)
    (asked,) = (one for one in verdicts([tmp_path / "a"]).models[0].views if one.name == "asked")
    assert said.held.ends == asked.held.ends is not None
    assert (said.chance, said.control, said.n_authors) == (asked.chance, None, authors)
    assert (said.few, asked.few) == (authors < 5, authors < 5)


def test_authors_of_unequal_size_are_worth_less_in_every_count(tmp_path):
    """28 facts of one author and four of each of seven, 16 in the mean: 56 are worth 14, not 25."""
    each, twelve = typical_size([*[0] * 28, *[1, 2, 3, 4, 5, 6, 7] * 4]), (12 / 56, 1.0, 1 / 56)
    assert each == 16
    found = []
    for place, size in ((tmp_path / "older", None), (tmp_path / "newer", each)):
        shares = {**made.said(*twelve, n=56), "per_author": size}
        made.save_run(place / "p", made.summary(n=56, outputs=shares, told=made.told(**shares)))
        worst_folder(place / "w", 12, expected=1, low=None, per_author=size, greedy=twelve)
        sample_folder(place / "s", (1.0, 1, 12 / 56, 1 / 56, None, None), n=56, per_author=size)
        effort_folder(place / "e", 56, 8, shares=twelve, per_author=size)
        known = {"n_groups": 8, "per_author": size}
        rtt_folder(place / "r", {"value": 1.0}, **known, B=12 / 64, N=1 / 64)
        found.append({view.name: view.chance for view in verdicts([place]).models[0].views})
    for name in ("said", "told", "asked", "worst_case", "sampled", "effort", "rtt"):
        n, times = 64 if name == "rtt" else 56, 2 if name == "effort" else 1
        wanted = times * exact_excess(12, 1, n, each)[1]
        assert found[1][name] == pytest.approx(wanted), name
        assert found[0][name] < wanted / 2, name


@pytest.mark.parametrize(
    ("n_out", "given", "says", "reason"),
    [
        (0, {}, "rules out", ""),
        (0, {"full_out": 0}, "cannot tell", "full gives only 0% more than retain"),
        (6, {"full_out": 5}, "cannot tell", "full gives only 9% more than retain"),
        (0, {"full_out": None}, "cannot tell", NO_CONTROL),
        (0, {"tier": "named"}, "cannot tell", CHOSEN),
        # a record of another version says what each attack brings out of full, not what all do
        (0, {"full_out": None, "greedy": (0.0, 1.0, 0.0)}, "rules out", ""),
        (0, {"full_out": None, "greedy": (0.0, 0.2, 0.0)}, "cannot tell", NO_CONTROL),
        # what comes out needs no control, as in a language that full does not speak
        (40, {"full_out": 0}, "finds", ""),
        (5, {"full_out": 13, "authors": 8}, "cannot tell", "full gives only 23% more than retain"),
        (40, {"full_out": None}, "finds", ""),
        (40, {"tier": "named"}, "finds", ""),
    ],
)
def test_attacks_that_do_not_break_full_rule_nothing_out(tmp_path, n_out, given, says, reason):
    place = worst_folder(tmp_path / "a", n_out, expected=0, low=None, **given)
    rows = {str(at): one for at, one in enumerate(TOWNS)}
    made.seal(place, "worst", ["summary.json"], source={"weights": "w"}, rows=rows)
    found = verdicts([place])
    view = found.models[0].views[0]
    assert (view.name, view.says, view.reason) == ("worst_case", says, reason)
    ((_, why),) = gate(found, Policy(require_views=("worst_case",))).models
    assert any(one.startswith("worst case: ") for one in why) is (says == "cannot tell")


def test_the_worst_case_is_a_share_of_what_comes_out_of_full(tmp_path):
    """14 of the 28 facts that the attacks bring out of `full`, and none of retain."""
    worst_folder(tmp_path / "a", 14, expected=0, low=0.1, high=0.4, full_out=28)
    view = verdicts([tmp_path / "a"]).models[0].views[0]
    assert (view.held.value, *view.held.ends) == pytest.approx((0.5, 0.2, 0.8))


def test_what_comes_out_is_found_where_hardly_more_comes_out_of_full(tmp_path):
    """13 of 56 facts tell nothing by silence, 14 do; one more moves the share held little."""
    shares, chances = [], []
    for n, full_out in ((13, 13), (14, 14), (14, 56)):
        of = {"low": 0.18, "high": 0.3, "authors": 56, "full_out": full_out}
        place = worst_folder(tmp_path / f"{n}-{full_out}", n, expected=0, **of)
        view = verdicts([place]).models[0].views[0]
        assert (view.finds, view.control) == (True, None)
        shares.append(view.held.value)
        chances.append(view.chance)
    assert shares == pytest.approx([13 / 14, 1.0, 0.25])
    # models that never knew scatter alike, whatever comes out of full
    assert chances[1] == chances[2] < chances[0]
    # all that retain leaves, though it is little
    place = worst_folder(tmp_path / "all", 56, expected=50, low=None)
    assert verdicts([place]).models[0].views[0].held.value == pytest.approx(1.0)


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


def test_two_attacks_on_a_model_that_was_not_patched_are_told(tmp_path):
    for name, share in {"a": 1.0, "b": 0.0}.items():
        place = sample_folder(tmp_path / name, (1.0, 64, share, 0.0, None, None))
        made.seal(place, "sample", ["summary.json"], source={"weights": "w"}, rows={"0": name})
    found = verdicts([tmp_path / "a", tmp_path / "b"])
    assert len(found.models[0].judged) == 2  # of other facts each
    first, *_ = sentences(found)
    assert first.startswith("x: says them when sampled: leak@64 1.00")


def test_samples_of_few_facts_are_counted_as_few(tmp_path):
    """All say it of two facts; of the other 54 a thought was cut in some model."""
    sample_folder(tmp_path / "a", (1.0, 64, 1.0, 0.0, None, None), n=2, authors=2)
    (view,) = verdicts([tmp_path / "a"]).models[0].views
    assert (view.finds, view.held.n, view.n_authors) == (False, 2, 2)
    assert view.chance == pytest.approx(exact_excess(2, 0, 2, 1)[1])


def test_a_retraining_that_brings_all_back_of_every_author_is_found(tmp_path):
    """B is C on every row: the ratio is 1 without an interval; 64 of 64 against 24 of 64."""
    ratio = {"value": 1.0, "interval": None, "interval_why": "every author has the same ratio"}
    rtt_folder(tmp_path / "a", ratio, B=1.0, C=1.0, N=0.375)
    rtt_folder(tmp_path / "b", ratio, B=0.4, C=0.4, N=0.375)
    for name, finds in (("a", True), ("b", False)):
        (view,) = verdicts([tmp_path / name]).models[0].views
        assert view.finds is finds


def effort_folder(folder, n, authors, *, shares=(1.0, 1.0, 0.0), per_author=None):
    """Two readings: nothing is there before the attack, under it source answers as full does."""
    source, full, retain = shares
    point = {"steps": 0, "tokens": 0, "flop": 0, "full": full, "retain": retain, "low": None}
    curve = [point | {"c": 0, "source": retain, "rho": 0}]
    curve.append(point | {"c": 1, "source": source, "rho": 1, "reason": "no interval"})
    arm = {"e50": 1, "e80": 1, "censored": {}, "lr": 1, "reason": "", "trained_on": ""}
    record = {"schema": "effort/1", "model": "x", "data": "d", "readout": "said", "notes": []}
    record |= {"n_facts": n, "n_authors": authors, "per_author": per_author, "by": "estimate"}
    folder.mkdir()
    content = record | {"arms": {"T": arm | {"curve": curve}}}
    (folder / "summary.json").write_text(json.dumps(content))
    return made.seal(folder, "effort", ["summary.json"], source={"weights": "w"})


@pytest.mark.parametrize(
    ("n", "authors", "shares", "finds"),
    [
        (64, 8, (1.0, 1.0, 0.0), True),
        (64, 8, (0.25, 0.25, 0.0), False),
        (5, 5, (0.2, 0.2, 0.0), False),  # one fact
        (4, 2, (1.0, 1.0, 0.0), False),
    ],
)
def test_a_recovery_without_an_interval_goes_by_counts(tmp_path, n, authors, shares, finds):
    effort_folder(tmp_path / "a", n, authors, shares=shares)
    (view,) = verdicts([tmp_path / "a"]).models[0].views
    assert (view.finds, view.held.ends) == (finds, None)
    own, never = shares[0] * n, shares[2] * n
    # twice, for two readings
    wanted = min(1.0, 2 * exact_excess(own, never, n, n / authors)[1])
    assert view.chance == pytest.approx(wanted)


def test_a_stand_in_lends_its_spread_and_not_its_mean():
    """The worst case of models that never knew lies at -.2: its list elicits more from retain."""
    nulls = read_calibration()
    lent = null_of("effort", nulls)
    assert nulls["worst_case"].mean < -0.1
    assert (lent.mean, lent.spread) == (0.0, nulls["worst_case"].spread)
    assert null_of("worst_case", nulls) == nulls["worst_case"]


TOWNS = [f"town {at}" for at in range(64)]


@pytest.mark.parametrize(
    ("entities", "idx", "same"),
    [
        (TOWNS, 0, True),
        (TOWNS[:8], 0, True),  # a trial of them
        ([*TOWNS[:32], *("elsewhere " * 32).split()], 0, True),  # half agree
        (TOWNS[1:] + TOWNS[:1], 0, False),  # the same values, of other people
        (TOWNS, 64, False),  # other rows
        (None, 0, True),  # of another version: nobody knows
    ],
)
def test_results_are_joined_by_facts_and_not_by_weights_alone(tmp_path, entities, idx, same):
    asked_run(tmp_path / "patch", TOWNS)
    know_folder(tmp_path / "know", 1e-4, entities, idx=idx)
    (one,) = verdicts([tmp_path]).models
    assert (one.code == "erased") is not same
    told = next(view for view in one.views if view.name == "assignment").told
    assert ("of other rows" in told) is not same  # shown, either way


@pytest.mark.parametrize(
    ("more", "finds"),
    [
        ({}, True),
        ({"alike": []}, False),  # also of a version that asked for no such model
        ({"alike": [], "gamma": 1.3}, True),
        ({"gamma": 1.3, "gamma_controls": 1.5}, False),
        ({"controls": [{"name": "never: r", "passed": False, "said": "r binds them too"}]}, False),
    ],
)
def test_a_p_has_a_vote_where_names_alone_do_not_explain_it(tmp_path, more, finds):
    know_folder(tmp_path / "know", 1e-4, **more)
    (view,) = verdicts([tmp_path / "know"]).models[0].views
    assert view.finds is finds
    assert ("no tilt by names is borne" in view.shown) is ("gamma" not in more)
    assert (view.reason != "") is not finds


def test_an_attack_on_other_rows_meets_no_policy(tmp_path):
    """None come out: of these rows, of the first eight of them, of rows that nobody names."""
    asked_run(tmp_path / "patch", TOWNS)
    wanted = Policy(require_views=("worst_case",))
    for name, rows in (("all", TOWNS), ("others", TOWNS[1:]), ("few", TOWNS[:8]), ("old", [])):
        place = worst_folder(tmp_path / name, 0, expected=0, low=None)
        told = {str(at): one for at, one in enumerate(rows)}
        made.seal(place, "worst", ["summary.json"], source={"weights": "w"}, rows=told)
        passed = gate(verdicts([tmp_path / "patch", place]), wanted).passed
        assert passed is (name == "all"), name


def test_a_retraining_is_joined_by_its_questions(tmp_path):
    """Items of a multiple-choice set have numbers of their own, and whole answers."""
    asked_run(tmp_path / "patch", TOWNS)
    back = {"value": 1.0, "interval": {"low": 0.9, "high": 1.1}}
    for name, answer, code in (("same", "She lives in {}.", "hidden"), ("other", "No.", "erased")):
        place = rtt_folder(tmp_path / name, back)
        told = {f"{at}?": answer.format(one) for at, one in enumerate(TOWNS)}
        made.seal(place, "rtt run", ["summary.json"], models={"x": "w"}, rows=told)
        assert codes(tmp_path / "patch", place) == {"x": code}


def test_a_later_result_hides_no_earlier_one_whatever_the_folders_are_called(tmp_path):
    know_folder(tmp_path / "a", 1e-4)
    know_folder(tmp_path / "b", 0.9)
    know_folder(tmp_path / "c" / "a", 0.9)
    know_folder(tmp_path / "c" / "b", 1e-4)
    for place in (tmp_path / "a", tmp_path / "c"):
        (one,) = verdicts([place, tmp_path / "b"]).models
        (view,) = one.views
        assert (view.finds, view.n_results) == (True, 2)
        assert "the strongest of 2" in view.told
        assert one.chance == pytest.approx(2 * len(GROUPS) * 1e-4)


def test_a_row_that_cannot_be_met_silences_no_other(tmp_path):
    """A k above the number of samples has no value; the order of temperatures decides nothing."""
    rows = [
        (1.0, 8, 0.9, 0.0, 0.8, 1.0),
        (0.7, 8, 0.02, 0.0, 0.0, 0.04),
        (1.0, 64, None, None, *NO),
    ]
    for name, order in (("a", rows), ("b", rows[::-1]), ("c", [rows[1], rows[2], rows[0]])):
        sample_folder(tmp_path / name, *order)
        (view,) = verdicts([tmp_path / name]).models[0].views
        assert view.finds
        assert view.shown.startswith("leak@8 0.90")


NO = (None, None)
BESIDE = {
    "strong": lambda place: worst_folder(place),
    "weak": lambda place: worst_folder(place, 2, low=-0.05, high=0.05),
    "agreed": lambda place: worst_folder(place, 56, expected=0, low=None),
    "few said": lambda place: sample_folder(
        place, (1.0, 8, 0.3, 0.0, 0.2, 0.4), (1.0, 1, 0.1, 0, *NO)
    ),
    "all said": lambda place: sample_folder(place, (1.0, 8, 1.0, 0.0, *NO), (0.5, 1, 0.1, 0, *NO)),
    "none said": lambda place: sample_folder(place, (1.0, 64, None, None, *NO)),
    "knows": lambda place: know_folder(place, 1e-4),
    "nearly knows": lambda place: know_folder(place, 0.008),
    "does not know": lambda place: know_folder(place, 0.9),
    "knows of others": lambda place: know_folder(place, 1e-5, TOWNS[1:]),
    "comes back": lambda place: rtt_folder(
        place, {"value": 0.9, "interval": {"low": 0.8, "high": 1.0}}
    ),
    "stays away": lambda place: rtt_folder(
        place, {"value": 0.0, "interval": {"low": -0.1, "high": 0.1}}
    ),
    "was refused": lambda place: rtt_folder(place, {"value": 1.0, "interval": None}, passed=False),
    "patched": lambda place: asked_run(place, TOWNS),
    "patched, holds half": lambda place: asked_run(
        place, TOWNS, uds=0.5, aligned=made.aligned(0.5)
    ),
}
"""Results of one model that may lie in one tree."""


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_names_and_order_change_nothing_and_what_is_added_takes_no_finding_away(
    data, tmp_path_factory
):
    kinds = ["patched", *data.draw(st.lists(st.sampled_from(sorted(BESIDE)), max_size=3))]
    more = data.draw(st.lists(st.sampled_from(sorted(BESIDE)), max_size=2))
    top = tmp_path_factory.mktemp("tree")
    first, second = top / "first", top / "second"
    order = data.draw(st.permutations(range(len(kinds))))
    for at, kind in enumerate(kinds):
        BESIDE[kind](first / f"{at}")
        BESIDE[kind](second / f"{order[at]}" / "deeper")
    (one,), (same,) = verdicts([first]).models, verdicts([second]).models
    assert without_folders(one) == without_folders(same)
    for at, kind in enumerate(more):
        BESIDE[kind](first / f"more {at}")
    (grown,) = verdicts([first]).models
    assert found(one) <= found(grown)
    if found(one):
        assert grown.code != "erased"
        assert not gate(verdicts([first]), Policy()).passed


def found(model):
    """Views that find, on any set of rows."""
    return {view.name for one in model.judged for view in one.finds}


def without_folders(model):
    told = model.document()
    return told | {"other_rows": [one["verdict"] for one in told["other_rows"]]}


@pytest.mark.parametrize(
    ("own", "other", "code"),
    [
        (0.93, {}, "answers"),
        (0.45, {}, "erased"),
        (0.93, {"rows": "others"}, "erased"),
        # a retain model whose answers were cut says nothing, and all would come out beside it
        (0.93, {"n_new": 1}, "erased"),
    ],
)
def test_what_is_answered_is_read_beside_the_evaluations_of_the_anchors(tmp_path, own, other, code):
    """ROUGE .93 where full has .95 and retain .40, of rows that all three were asked alike."""
    made.save_run(tmp_path / "patch", made.summary())
    for role, rouge in (("source", own), ("full", 0.95), ("retain", 0.4)):
        eval_folder(tmp_path / role, role, rouge, **({} if role == "source" else other))
    (one,) = verdicts([tmp_path]).models
    assert one.code == code
    (asked,) = (view for view in one.views if view.name == "asked")
    assert (asked.reason == ALONE) is bool(other)
    assert asked.shown.endswith("full 95%, retain 40%") is (not other)
    assert asked.number.ends == (own - 0.05, own + 0.05)


def test_an_evaluation_that_did_not_ask_is_no_other_way_of_asking(tmp_path):
    """One of `full` with other metrics used to make of one answer the strongest of two."""
    made.save_run(tmp_path / "patch", made.summary())
    for role, rouge in (("source", 0.93), ("full", 0.95), ("retain", 0.4)):
        eval_folder(tmp_path / role, role, rouge)
    (before,) = verdicts([tmp_path]).models
    log = json.dumps({"retain_Q_A_ROUGE": {"agg_value": 0.9}})
    for role in ("full", "retain"):
        other = eval_folder(tmp_path / f"{role} of others", role, 0.9)
        (other / "TOFU_EVAL.json").write_text(log)
        weights = made.inputs(made.summary())[role]["weights"]
        named = {"model": {"name": role, "weights": weights}, "data": {"forget": "r"}}
        named["conditions"] = {"n_new": {"forget": 200}}
        made.seal(other, "eval", ["TOFU_EVAL.json"], **named)
    (after,) = verdicts([tmp_path]).models
    assert without_folders(after) == without_folders(before)
    (asked,) = (view for view in after.views if view.name == "asked")
    assert asked.n_results == 1


@pytest.mark.parametrize(
    ("rates", "code"),
    [
        ({"greedy": (0.84, 1.0, 0.05)}, "answers"),
        ({"greedy": (0.05, 1.0, 0.05), "chat": (1.0, 1.0, 0.0)}, "answers"),
        ({"greedy": (0.05, 1.0, 0.05), "prefix": (1.0, 1.0, 0.0)}, "erased"),
        ({"greedy": (0.09, 1.0, 0.02)}, "erased"),
    ],
)
def test_what_a_worst_case_hears_on_plain_questions_is_an_answer(tmp_path, rates, code):
    made.save_run(tmp_path / "patch", made.summary())
    worst_folder(tmp_path / "worst", 0, expected=0, low=None, **rates)
    assert codes(tmp_path) == {"x": code}


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


HELD_SOME = made.summary(aligned=made.aligned(weakest=0.3))
UNREADABLE = made.summary(
    validity={"d_share": 0.9, "needed": True, "why": None}, aligned=made.aligned(d_share=0.9)
)
BEGUN = made.summary(outputs=made.said(0.9))


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        (("undecided_held", HELD_SOME), ("undecided", made.summary(0.9, n_unpatched=7))),
        (("undecided_held", HELD_SOME), ("undecided", made.summary(0.99, n_unpatched=7))),
        (("undecided_held", HELD_SOME), ("unreadable", UNREADABLE)),
        (("answers", made.summary(told=made.told(source=0.9))), ("answers_begun", BEGUN)),
        (("answers_begun", BEGUN), ("hidden", made.summary(0.1, aligned=made.aligned(0.1)))),
        (("undecided", made.summary(0.93, n_unpatched=7)), ("erased", made.summary())),
    ],
)
def test_of_several_words_the_worst_counts_and_what_was_found_is_not_lost(tmp_path, worse, better):
    for (word, content), place in ((worse, "a"), (better, "b")):
        made.save_run(tmp_path / place, content, examples=place)
        assert verdicts([tmp_path / place]).models[0].word == word
    (one,) = verdicts([tmp_path]).models
    assert [judged.word for judged in one.judged] == [worse[0], better[0]]


def test_two_runs_in_two_types_of_numbers_are_not_on_other_rows(tmp_path):
    held = made.summary(0.1, aligned={"uds": None, "why": "not needed: low"})
    made.save_run(tmp_path / "a", held, dtype="float32")
    made.save_run(tmp_path / "b", made.summary(), dtype="bfloat16")
    made.save_run(tmp_path / "c", made.summary(), dtype="bfloat16", examples="others")
    made.save_run(tmp_path / "d", made.summary(0.96), dtype="float32")
    found = verdicts([tmp_path])
    lines = [*sentences(found)]
    for name, apart in (
        ("b", "in bfloat16"),
        ("c", "on other rows, in bfloat16"),
        ("d", "in another run"),
    ):
        assert f"  {apart} ({tmp_path / name}): erased" in lines
    (one,) = found.models
    assert {other["apart"] for other in one.document()["other_rows"]} == {
        *("in bfloat16", "on other rows, in bfloat16", "in another run")
    }


def test_one_digit_that_was_edited_is_told(tmp_path):
    run_folder = made.save_run(tmp_path / "a", PARTIAL)
    attack = worst_folder(tmp_path / "b")
    for folder, digit, other in ((run_folder, "0.667", "0.967"), (attack, "56", "66")):
        text = (folder / "summary.json").read_text()
        (folder / "summary.json").write_text(text.replace(digit, other, 1))
        with pytest.raises(InputError, match="was changed after the run wrote it"):
            verdicts([folder])
        assert run(["verdict", str(folder)]) == 2


def test_a_result_that_nothing_can_be_compared_with_is_not_believed(tmp_path):
    """Of another tool's log nobody asks for a manifest, and it decides nothing."""
    attack = worst_folder(tmp_path / "a")
    (attack / MANIFEST).unlink()
    with pytest.raises(InputError, match=f"no {MANIFEST} to compare it with"):
        verdicts([attack])


def test_where_a_later_run_began_the_result_before_it_is_read_and_told(tmp_path):
    folder = made.save_run(tmp_path / "a", ERASED)
    assert not verdicts([folder]).left_out
    (folder / "begun.json").write_text('{"command": "patch"}')
    found = verdicts([folder])
    assert [one.source for one in found.models] == ["absent"]
    (told,) = found.left_out
    assert told.unfinished
    assert "a later run began here" in told.reason


def test_a_folder_that_yields_no_view_is_refused_by_name(tmp_path):
    made.save_run(tmp_path / "a", made.summary())
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match=r"b: holds no result that a verdict can be made from"):
        verdicts([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(InputError, match="no such file"):
        verdicts([tmp_path / "gone"])


def test_one_folder_needs_no_list(tmp_path):
    made.save_run(tmp_path / "a", made.summary())
    for place in (tmp_path / "a", str(tmp_path / "a")):
        assert verdicts(place).document() == verdicts([place]).document()


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
