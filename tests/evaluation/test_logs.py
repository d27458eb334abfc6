"""Logs are strict JSON, read back as they were written, in three layouts."""

import json
import math
from dataclasses import replace

import pytest
from support.metric_helpers import tiny_passes, tiny_split

from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.chat import Template
from lensaudit.doors.logs import aggregate_log
from lensaudit.errors import InputError
from lensaudit.evaluation.forward import Tokenization
from lensaudit.evaluation.log import read_log, recomputed, write_log
from lensaudit.evaluation.suite import conditions, evaluate, retain_reference
from lensaudit.metrics.registry import MetricResult


@pytest.fixture
def passes(tiny_tokenizer):
    return tiny_passes(tiny_tokenizer)


@pytest.fixture
def log(passes, tmp_path):
    return write_log(tmp_path, "tofu", evaluate(passes, "tofu"))


def strict(path):
    def refuse(constant):
        raise AssertionError(f"{constant} in {path}")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_a_log_is_strict_json_with_a_reason_for_every_gap(log):
    for name, entry in strict(log).items():
        assert entry["agg_value"] is not None or entry["reason"], name
    assert strict(log)["forget_quality"]["agg_value"] is None


def test_an_infinite_or_missing_number_is_null(tmp_path):
    entry = MetricResult(unscored={3: "why"}, why="because", details={"log10_p": -math.inf})
    written = strict(write_log(tmp_path, "tofu", {"exact_memorization": entry}))
    assert written == {
        "exact_memorization": {
            "log10_p": None,
            "agg_value": None,
            "value_by_index": {"3": {"score": None}},
            "unscored": {"3": "why"},
            "reason": "because",
        }
    }


def test_a_row_that_is_null_in_a_log_of_others_is_unscored_on_either_side(tmp_path):
    sides = {"forget": {"0": {"score": 1.0}, "1": {"score": None}}, "holdout": {"0": {"score": 2}}}
    entry = {name: {"agg_value": 0, "value_by_index": rows} for name, rows in sides.items()}
    path = tmp_path / "TOFU_EVAL.json"
    path.write_text(json.dumps({"mia_loss": entry | {"agg_value": 0.5}}))
    found = read_log(path).entries["mia_loss"]
    assert (found.n, found.n_unscored) == (2, 1)
    assert found.parts["forget"].unscored == {1: "null in the log"}


def test_a_log_recomputes_to_itself(log, passes):
    found = recomputed(read_log(log))
    for name, entry in evaluate(passes, "tofu").items():
        if entry.value is not None:
            assert found[name].value == pytest.approx(entry.value, rel=1e-12), name
    assert found["mia_loss"].ends == evaluate(passes, "tofu", ["mia_loss"])["mia_loss"].ends


def test_recomputing_follows_the_rows_not_the_stored_value(log):
    content = json.loads(log.read_text())
    content["forget_Q_A_Prob"]["agg_value"] = 0.99
    del content["forget_Q_A_Prob"]["interval_95"]
    for row in content["forget_Q_A_Prob"]["value_by_index"].values():
        row["prob"] = 0.25
    log.write_text(json.dumps(content))
    found = recomputed(read_log(log))
    assert found["forget_Q_A_Prob"].value == 0.25


OLD = {
    "eval_log_forget.json": {
        "avg_gt_loss": {"0": 0.5, "1": 1.0},
        "avg_paraphrased_loss": {"0": 1.0, "1": 2.0},
        "average_perturb_loss": {"0": [2.0, 3.0], "1": [1.0, 2.0]},
        "rougeL_recall": {"0": 0.5, "1": 1.0},
        "generated_text": {"0": ["ask", "said", "gold"], "1": ["ask", "said", "gold"]},
    },
    "eval_real_author_wo_options.json": {
        "avg_gt_loss": {"0": 0.5},
        "average_perturb_loss": {"0": [1.0, 2.0, 3.0]},
        "avg_paraphrased_loss": {"0": 0.5},
    },
}


def test_the_older_layout_gives_todays_metrics(tmp_path):
    path = tmp_path / "eval_log_aggregated.json"
    path.write_text(json.dumps(OLD))
    found = recomputed(read_log(path))
    assert found["forget_Q_A_Prob"].value == pytest.approx((math.exp(-0.5) + math.exp(-1)) / 2)
    assert found["forget_Q_A_ROUGE"].value == 0.75
    assert found["forget_Q_A_ROUGE_f1"].unscored[0] == "its record has no rougeL_f1"
    # R = e^-(2.5 - 1) and e^-(1.5 - 2), the second folded
    wanted = (math.exp(-1.5) + math.exp(-0.5)) / 2
    assert found["forget_truth_ratio"].value == pytest.approx(wanted, abs=1e-8)
    options = math.exp(-0.5) / sum(math.exp(-x) for x in (0.5, 1, 2, 3))
    assert found["ra_Q_A_Prob_normalised"].value == pytest.approx(options)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "holds list, wanted a JSON object"),
        ("{}", "holds no metric"),
        ('{"mia_loss": 3}', "mia_loss: found 3, wanted an object"),
        ('{"mia_loss": {"agg_value": "x"}}', "agg_value: found 'x', wanted a number"),
        (
            '{"mia_loss": {"agg_value": 1, "value_by_index": {"a": {}}}}',
            "value_by_index.a: found 'a'",
        ),
        ('{"eval_log.json": 3}', r"eval_log.json: found 3, wanted an object"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, content, said):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InputError, match=said):
        read_log(tmp_path / "x.json")


def test_the_log_of_the_same_run_is_a_retain_reference(log, passes):
    assert "forget_truth_ratio" in retain_reference(read_log(log), passes, "tofu")


def test_a_retain_log_of_another_split_is_refused(log, tiny_tokenizer):
    split = tiny_split()
    turned = zip(range(3), reversed(split.rows), strict=True)
    rows = tuple(replace(row, idx=place) for place, row in turned)
    moved = replace(split, rows=rows)
    other = tiny_passes(tiny_tokenizer, [moved, tiny_split("holdout")])
    with pytest.raises(InputError, match=r"another split: .* row 0 has the answer"):
        retain_reference(read_log(log), other, "tofu")


def test_a_retain_log_with_other_rows_is_refused(log, tiny_tokenizer):
    short = tiny_split(rows=tiny_split().rows[:2])
    content = json.loads(log.read_text())
    for name in list(content):
        if "ROUGE" in name:
            del content[name]
    log.write_text(json.dumps(content))
    passes = tiny_passes(tiny_tokenizer, [short, tiny_split("holdout")])
    with pytest.raises(InputError, match="has 3 rows, forget gives 2 here"):
        retain_reference(read_log(log), passes, "tofu")


def test_a_retain_log_of_another_template_is_refused(log, tiny_tokenizer):
    passes = tiny_passes(tiny_tokenizer)
    changed = Template(**{**vars(passes.asked.template), "user_start_tag": "w8 w8 "})
    passes.asked = Tokenization(tiny_tokenizer, changed, "true")
    with pytest.raises(InputError, match="made with another template"):
        retain_reference(read_log(log), passes, "tofu")


@pytest.mark.parametrize("key", ["mask", "template"])
def test_our_own_retain_log_tells_by_its_manifest(log, passes, key):
    made = {**conditions(passes), key: "another"}
    (log.parent / "manifest.json").write_text(json.dumps({"inputs": {"conditions": made}}))
    with pytest.raises(InputError, match=f"made with another {key}"):
        retain_reference(read_log(log), passes, "tofu")


def test_a_retain_log_whose_empty_rows_score_otherwise_is_refused(log, passes, tmp_path):
    made = {"inputs": {"conditions": conditions(passes)}, "options": {"empty": "upstream"}}
    (log.parent / "manifest.json").write_text(json.dumps(made))
    retain = read_log(log)
    assert retain_reference(retain, passes, "tofu", "upstream")
    with pytest.raises(InputError, match="made with another --set empty; make the retain log ag"):
        retain_reference(retain, passes, "tofu")
    own = written(tmp_path / "own", mia_loss=ATTACK)
    for empty, said in (("unscored", "another --set empty"), ("upstream", "mia_loss.forget has")):
        made["options"]["empty"] = empty
        (own / "manifest.json").write_text(json.dumps(made))
        with pytest.raises(InputError, match=said):
            aggregate_log(own, EvaluateSettings(retain_log=log))


def test_a_log_of_the_other_suite_is_refused(log, passes):
    with pytest.raises(InputError, match="is a log of suite tofu, this run is muse"):
        retain_reference(read_log(log), passes, "muse")


def test_a_log_of_the_same_weights_is_no_retain_reference(log, passes):
    made = {"model": {"name": "x", "weights": passes.subject.conditions.weights}}
    (log.parent / "manifest.json").write_text(json.dumps({"inputs": made}))
    with pytest.raises(InputError, match="have the same weights"):
        retain_reference(read_log(log), passes, "tofu")


def side(*scores):
    rows = {str(idx): {"score": score} for idx, score in enumerate(scores)}
    return {"agg_value": 0.0, "value_by_index": rows}


ATTACK = {
    "agg_value": 1.0,
    "forget": side(1.0, 2.0),
    "holdout": side(3.0, 4.0),
    "interval_95": [0.4, 1.0],
    "auc": 1.0,
    "betrayal": {"p": 0.13, "unit": "author", "says": "nothing is shown (p 0.13)"},
}
LIKELY = {"agg_value": 0.5, "value_by_index": {"0": {"prob": 0.5}}, "interval_95": [0.2, 0.8]}


def written(folder, **entries):
    """A log of these entries, in a folder of its own."""
    folder.mkdir()
    (folder / "TOFU_EVAL.json").write_text(json.dumps(entries))
    return folder


def test_intervals_and_tests_by_authors_stay_while_the_value_is_the_same(tmp_path):
    log = written(tmp_path / "log", mia_loss=ATTACK, forget_Q_A_Prob=LIKELY)
    found = recomputed(read_log(log))
    assert found["mia_loss"].ends == (0.4, 1.0)
    assert found["mia_loss"].betrayal == ATTACK["betrayal"]
    assert found["forget_Q_A_Prob"].ends == (0.2, 0.8)


def test_a_log_whose_rows_say_something_else_has_neither_interval_nor_test(tmp_path):
    log = written(
        tmp_path / "log",
        mia_loss={**ATTACK, "holdout": side(1.5, 4.0)},
        forget_Q_A_Prob={**LIKELY, "value_by_index": {"0": {"prob": 0.25}}},
    )
    found = recomputed(read_log(log))
    assert (found["mia_loss"].value, found["forget_Q_A_Prob"].value) == (0.75, 0.25)
    why = "the log does not say whose rows these are"
    for one in (found["mia_loss"], found["forget_Q_A_Prob"]):
        assert (one.ends, one.assumes, one.why) == (None, None, f"{why}: no interval")
    assert found["mia_loss"].betrayal == {"p": None, "says": f"not tested: {why}"}


def test_metrics_on_request_and_with_options_are_computed_where_a_log_has_them(tmp_path):
    own = ("mia_loss", "mia_entropy", "mia_min_k:k=0.2")
    log = written(tmp_path / "log", **dict.fromkeys(own, ATTACK), somebodys=LIKELY)
    found = recomputed(read_log(log))
    assert {name for name, one in found.items() if one.value is not None} == {*own}


def test_the_folder_of_a_log_is_not_written_into(tmp_path):
    log = written(tmp_path / "log", mia_loss=ATTACK)
    before = (log / "TOFU_EVAL.json").read_bytes()
    for place in (log, log / "TOFU_EVAL.json"):
        with pytest.raises(InputError, match=r"holds the log itself, .* name another --out"):
            aggregate_log(place, EvaluateSettings(), log)
    assert (log / "TOFU_EVAL.json").read_bytes() == before
    aggregate_log(log, EvaluateSettings(), tmp_path / "new")
    assert read_log(tmp_path / "new").entries["mia_loss"].value == 1.0


@pytest.mark.parametrize(
    ("retain", "said"),
    [
        ("log", "have the same weights"),
        ("copy", "have the same weights"),
        ("short", r"another split: mia_loss.holdout has 1 rows, .*log/TOFU_EVAL.json gives 2"),
        ("muse", "is a log of suite muse, this run is tofu"),
    ],
)
def test_a_retain_log_beside_a_log_is_checked_as_beside_a_model(tmp_path, retain, said):
    log = written(tmp_path / "log", mia_loss=ATTACK)
    written(tmp_path / "copy", mia_loss=ATTACK)
    written(tmp_path / "short", mia_loss={**ATTACK, "holdout": side(3.0)})
    (written(tmp_path / "muse") / "MUSE_EVAL.json").write_text(json.dumps({"mia_loss": ATTACK}))
    (tmp_path / "muse" / "TOFU_EVAL.json").unlink()
    with pytest.raises(InputError, match=said):
        aggregate_log(log, EvaluateSettings(retain_log=tmp_path / retain))


def test_a_log_is_compared_with_a_retain_log_that_belongs_to_it(tmp_path):
    log = written(tmp_path / "log", mia_loss=ATTACK)
    retain = written(tmp_path / "retain", mia_loss={**ATTACK, "holdout": side(1.5, 4.0)})
    found = aggregate_log(log, EvaluateSettings(retain_log=retain))
    # 1 - (1 - .75) / .75
    assert found.summary["s_mia_loss"] == pytest.approx(2 / 3)


PART = {"agg_value": 0.5, "value_by_index": {"0": {"prob": 0.5, "avg_loss": 0.7}}}


@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [
        ("forget_Q_A_Prob", {"prob": "abc"}, "forget_Q_A_Prob row 0: prob: found 'abc', wanted a"),
        ("forget_Q_A_Prob", {"prob": True}, "found True, wanted a number"),
        ("forget_Q_A_PERT_Prob", {"prob": [[0.1]]}, r"found \[0.1\], wanted a number"),
        (
            "forget_truth_ratio",
            {"score": [0.5, 0.4]},
            r"score: found \[0.5, 0.4\], wanted a number",
        ),
        ("forget_Q_A_ROUGE", {"rougeL_recall": 1, "input": 3}, "input: found 3, wanted a text"),
    ],
)
def test_a_record_that_is_none_is_refused_with_its_metric_and_row(tmp_path, name, rows, said):
    log = written(tmp_path / "log", **{name: {"agg_value": 0.5, "value_by_index": {"0": rows}}})
    with pytest.raises(InputError, match=said) as refused:
        read_log(log)
    assert str(refused.value).startswith(str(log / "TOFU_EVAL.json"))


@pytest.mark.parametrize(
    ("name", "row", "why"),
    [
        ("forget_Q_A_PERT_Prob", {"prob": [0.1, None], "avg_loss": [1, 2]}, "null in the log"),
        ("forget_Q_A_PERT_Prob", {"prob": [], "avg_loss": []}, "its record has no number in prob"),
        ("forget_Q_A_PERT_Prob", {"avg_loss": [1.0]}, "its record has no prob"),
        ("exact_memorization", {"score": math.nan}, "not finite in the log"),
    ],
)
def test_a_record_with_a_gap_is_unscored(tmp_path, name, row, why):
    log = written(tmp_path / "log", **{name: {"agg_value": 0.5, "value_by_index": {"0": row}}})
    found = recomputed(read_log(log))[name]
    assert (found.value, found.unscored) == (None, {0: why})


def test_a_row_of_an_attack_without_a_score_is_unscored(tmp_path):
    forget = side(1.0, 2.0)
    forget["value_by_index"]["1"] = {"x": 1.0}
    log = written(tmp_path / "log", mia_loss={**ATTACK, "forget": forget})
    found = recomputed(read_log(log))["mia_loss"].parts["forget"]
    assert (len(found.records), found.unscored) == (1, {1: "its record has no score"})


def test_a_truth_ratio_without_a_loss_is_unscored(tmp_path):
    bare = {"agg_value": 0.5, "value_by_index": {"0": {"prob": 0.5}}}
    log = written(tmp_path / "log", forget_Q_A_PARA_Prob=bare, forget_Q_A_PERT_Prob=PART)
    found = recomputed(read_log(log))["forget_truth_ratio"]
    assert found.unscored == {0: "its record has no avg_loss"}


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"avg_gt_loss": {"0": "abc"}}, "forget_Q_A_Prob row 0: avg_loss: found 'abc'"),
        ({"avg_gt_loss": {"a": 1.0}}, "forget_Q_A_Prob: value_by_index.a: found 'a'"),
        ({"rougeL_recall": {"0": "x"}}, "forget_Q_A_ROUGE row 0: rougeL_recall: found 'x'"),
        ({"generated_text": {"0": 3}}, "generated_text: 0: found 3, wanted a list"),
    ],
)
def test_a_record_of_the_older_layout_that_is_none_is_refused(tmp_path, task, said):
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"eval_log_forget.json": task}))
    with pytest.raises(InputError, match=f"{path}: {said}"):
        read_log(path)


def test_gaps_of_the_older_layout_are_unscored(tmp_path):
    path = tmp_path / "old.json"
    task = {
        "avg_gt_loss": {"0": None, "1": 1.0},
        "average_perturb_loss": {"0": [1, 2], "1": [2, None]},
        "generated_text": {"0": None},
        "rougeL_recall": {"0": 0.5},
    }
    path.write_text(json.dumps({"eval_log_forget.json": task}))
    found = recomputed(read_log(path))
    assert found["forget_Q_A_Prob"].unscored == {0: "null in the log"}
    assert found["forget_Q_A_PERT_Prob"].unscored == {1: "null in the log"}
    assert found["forget_Q_A_ROUGE"].value == 0.5
