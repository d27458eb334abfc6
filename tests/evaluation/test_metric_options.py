"""`--metric NAME:key=value`: a metric of its own, with its needs, in the log, the key, the plan."""

import json

import numpy as np
import pytest

from lensaudit.cli.main import run
from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError
from lensaudit.metrics.registry import (
    MetricResult,
    choices,
    metric_of,
    ordered,
    retain_names,
)


def evaluated(out, *metrics, more=()):
    chosen = [part for one in metrics for part in ("--metric", one)]
    command = ["eval", "--model", "demo/npo", "--limit", "4", "--out", str(out), *chosen, *more]
    code = run(command)
    log = out / "TOFU_EVAL.json"
    return code, json.loads(log.read_text()) if log.exists() else {}


def test_an_option_reaches_what_a_metric_needs_and_the_retain_models_log():
    asked = ordered("tofu", ["privleak:k=0.2"])
    assert [one.name for one in asked] == ["mia_min_k:k=0.2", "privleak:k=0.2"]
    assert retain_names(asked) == ["mia_min_k:k=0.2"]
    assert asked[0].reads == metric_of("mia_min_k").reads
    parts = [one.name for one in ordered("tofu", ["forget_quality:batch_size=2"])]
    assert all(one.endswith(":batch_size=2") for one in parts)
    assert len(parts) == 4


@pytest.mark.parametrize(
    ("metric", "need"),
    [
        ("privleak:k=0.2", "mia_min_k:k=0.2"),
        ("s_mia_loss:batch_size=2", "mia_loss:batch_size=2"),
        ("forget_quality:batch_size=2", "forget_truth_ratio:batch_size=2"),
    ],
)
def test_a_retain_log_lacks_what_an_option_needs_by_its_name(metric, need):
    asked, plain = metric_of(metric), need.partition(":")[0]
    done, known = {need: MetricResult(0.5)}, MetricResult(0.6, records={0: {"score": 1.0}})
    for retain, said in (
        ({plain: known, "uds": known}, f"the retain log has no {need}"),
        ({plain: known}, f"no retain reference with {need}; name one with --retain-log or --ret"),
    ):
        reason = asked.fn(asked.context("tofu", None, done, retain)).reason
        assert reason.startswith(said)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("mia_min_k", {"k", "batch_size"}),  # of two splits nobody could say whose rows they are
        ("forget_Q_A_ROUGE", {"rouge_type", "max_new_tokens", "batch_size", "data"}),
        ("forget_truth_ratio", {"batch_size", "data"}),
        ("model_utility", {"rouge_type", "max_new_tokens", "batch_size"}),
        ("mia_gradnorm", set()),
        ("uds", set()),
    ],
)
def test_what_may_be_chosen_follows_from_reads_and_needs(name, wanted):
    assert choices(metric_of(name)).keys() == wanted


def test_one_spelling_stands_for_the_same():
    names = ["forget_Q_A_ROUGE:rouge_type=rougeL_f1", "max_new_tokens=7", "uds"]
    both = [one.name for one in ordered("tofu", names)]
    assert both == ["forget_Q_A_ROUGE:max_new_tokens=7:rouge_type=rougeL_f1", "uds"]
    assert metric_of("mia_min_k:k=0.20").name == "mia_min_k:k=0.2"
    assert metric_of("forget_Q_A_Prob:data=C:/x.jsonl").chosen == {"data": "C:/x.jsonl"}


def test_options_act_and_stand_in_log_rows_manifest_and_key(tmp_path, capsys):
    rouge = "forget_Q_A_ROUGE:max_new_tokens=7:rouge_type=rougeL_f1"
    names = ("privleak:k=0.2", "mia_min_k", "forget_Q_A_ROUGE", rouge, "mia_min_k:batch_size=3")
    code, found = evaluated(tmp_path / "a", *names, more=("--retain", "demo/retain"))
    assert code == 0
    theirs = json.loads((tmp_path / "a" / "retain" / "TOFU_EVAL.json").read_text())
    one, reference = (log["mia_min_k:k=0.2"]["agg_value"] for log in (found, theirs))
    assert one != found["mia_min_k"]["agg_value"]
    wanted = ((1 - one) - (1 - reference)) / (1 - reference) * 100
    assert found["privleak:k=0.2"]["agg_value"] == pytest.approx(wanted)
    scores = [row["rougeL_f1"] for row in found[rouge]["value_by_index"].values()]
    assert found[rouge]["agg_value"] == pytest.approx(np.mean(scores))
    short, long = (
        [len(row["generation"]) for row in found[name]["value_by_index"].values()]
        for name in (rouge, "forget_Q_A_ROUGE")
    )
    assert max(short) < max(long)
    batched = found["mia_min_k:batch_size=3"]["agg_value"]
    assert batched == pytest.approx(found["mia_min_k"]["agg_value"])
    rows = [json.loads(one) for one in (tmp_path / "a" / "results.jsonl").read_text().splitlines()]
    assert {one["split"] for one in rows if rouge in one["scores"]} == {"forget[max_new_tokens=7]"}
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert rouge in manifest["options"]["metrics"]
    assert manifest["inputs"]["metrics"][rouge]["family"] == "rouge"
    capsys.readouterr()
    again = ("--retain", "demo/retain", "--dry-run")
    evaluated(tmp_path / "a", *names, more=again)
    assert "nothing to do" in capsys.readouterr().out
    evaluated(tmp_path / "a", "mia_min_k:k=0.3", more=again)
    assert "nothing to do" not in capsys.readouterr().out


def test_rows_of_one_metric_are_read_from_its_file_and_count_for_the_key(tmp_path, capsys):
    facts = forget_set("demo", limit=3)
    rows = [{"question": one.question, "answer": one.answer} for one in facts]
    file = tmp_path / "rows.jsonl"

    def write(chosen):
        file.write_text("".join(json.dumps(one) + "\n" for one in chosen))

    write(rows)
    name = f"forget_Q_A_Prob:data={file}"
    code, found = evaluated(tmp_path / "out", name, "forget_Q_A_Prob", more=("--fresh",))
    assert code == 0
    assert len(found[name]["value_by_index"]) == 3
    assert len(found["forget_Q_A_Prob"]["value_by_index"]) == 4
    plan = ("--dry-run",)
    capsys.readouterr()
    evaluated(tmp_path / "out", name, "forget_Q_A_Prob", more=plan)
    assert "nothing to do" in capsys.readouterr().out
    write(rows[:2])
    evaluated(tmp_path / "out", name, "forget_Q_A_Prob", more=plan)
    assert "nothing to do" not in capsys.readouterr().out


def test_another_field_of_a_logs_rows_is_averaged_without_a_model(tmp_path, capsys):
    evaluated(tmp_path / "a", "forget_Q_A_ROUGE")
    log = str(tmp_path / "a")
    capsys.readouterr()
    asked = "forget_Q_A_ROUGE:rouge_type=rouge1_recall"
    assert run(["eval", "--from-log", log, "--metric", asked, "--json"]) == 0
    rows = json.loads((tmp_path / "a" / "TOFU_EVAL.json").read_text())["forget_Q_A_ROUGE"]
    wanted = np.mean([one["rouge1_recall"] for one in rows["value_by_index"].values()])
    assert json.loads(capsys.readouterr().out)[asked] == pytest.approx(wanted)
    assert run(["eval", "--from-log", log, "--metric", "forget_Q_A_ROUGE:max_new_tokens=3"]) == 0
    assert "has no rows it could be computed from" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("mia_min_k:q=0.2", "--metric mia_min_k: no option 'q'; it has batch_size, k"),
        ("uds:k=0.2", "--metric uds: no option 'k'; it has none"),
        ("mia_min_k:k=2", "--metric mia_min_k:k: found '2', wanted at most 1"),
        ("mia_min_k:k=0", "wanted above 0"),
        ("mia_min_k:k=nan", "wanted a finite number"),
        ("mia_min_k:k=x", "found 'x', wanted a number"),
        ("mia_min_k:batch_size=1.5", "found '1.5', wanted a whole number"),
        ("mia_min_k:k", "wanted NAME:key=value"),
        ("mia_min_k:k=0.2:k=0.3", "each key once"),
        ("forget_Q_A_ROUGE:rouge_type=f1", "wanted rouge1_recall or rougeL_f1 or rougeL_recall"),
        ("forget_Q_A_ROUGE:data=", "found '', wanted a value"),
        ("forget_Q_A_Prob:data=/no/such.jsonl", "/no/such.jsonl: no such file"),
        ("nope:k=1", "suite tofu has no metric 'nope'"),
    ],
)
def test_what_is_wrong_with_an_option_is_one_line_before_any_work(tmp_path, capsys, metric, said):
    code, found = evaluated(tmp_path, metric)
    assert (code, found) == (2, {})
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) <= 3


def test_own_rows_belong_to_tofu():
    from lensaudit.metrics.registry import splits_with_options

    assert splits_with_options("muse", {}, ["mia_min_k:k=0.2"], None) == {}
    with pytest.raises(InputError, match="no option 'data'"):
        ordered("muse", ["forget_knowmem_ROUGE:data=x.jsonl"])
