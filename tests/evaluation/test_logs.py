"""Logs are strict JSON, read back as they were written, in three layouts."""

import json
import math
from dataclasses import replace

import pytest
from support.metric_helpers import tiny_passes, tiny_split

from lensaudit.data.chat import Template
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


def test_a_log_of_the_other_suite_is_refused(log, passes):
    with pytest.raises(InputError, match="is a log of suite tofu, this run is muse"):
        retain_reference(read_log(log), passes, "muse")
