import dataclasses
import json
import shutil
from contextvars import Context
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import lensaudit as la
from lensaudit.auditing import evaluate as room
from lensaudit.auditing.calls import evaluated
from lensaudit.auditing.evaluate import evaluate_into, open_in, run_in, run_of
from lensaudit.auditing.question import own_data
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.errors import InputError, VerificationError, WorkError
from lensaudit.evaluation.log import read_log
from lensaudit.metrics.inside import scores
from lensaudit.models.registry import load_registry, resolve
from lensaudit.plans.said import plan_evaluation
from lensaudit.results.manifest import BEGUN
from lensaudit.results.owner import differences
from lensaudit.results.run_log import compare, read_run

ASKED = EvaluateSettings(metrics=("forget_Q_A_Prob",), limit=2, data="demo")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished evaluation of a model in a folder of its own."""
    place = tmp_path_factory.mktemp("done")
    shutil.copytree(resolve("demo/npo", load_registry()).local, place / "model")
    evaluate_into(str(place / "model"), ASKED, place / "out")
    return place


def is_same_run(model, asked, out):
    """Whether the result there is of this run: how fast it was made is no part of it."""
    passes = open_in(model, asked, out, rated=False).passes
    return not differences(out, run_of(model, asked, out, passes), run_in)


def copied(done, tmp_path):
    """The finished evaluation, in a place of the test's own."""
    shutil.copytree(done, tmp_path / "copy")
    return tmp_path / "copy"


def other_settings(place):
    """A change of each field, and whether the finished evaluation still answers it."""
    template = place / "template.json"
    template.write_text(json.dumps({"user_start_tag": "Q: "}))
    rows = place / "rows.jsonl"
    row = {"question": "Who?", "answer": "Nobody."}
    rows.write_text(json.dumps(row) + "\n")
    tokenizer = place / "tokenizer"
    shutil.copytree(place / "model", tokenizer, dirs_exist_ok=True)
    registry = place / "registry.json"
    registry.write_text("{}")
    log = place / "log"  # without a manifest nobody knows whose it is
    log.mkdir()
    shutil.copy(place / "out" / "TOFU_EVAL.json", log)
    return {
        "suite": ("muse", None),
        "metrics": (("forget_Q_A_Prob", "mia_loss"), False),
        "data": (None, None),
        "forget_split": ("forget05", None),
        "forget": (str(rows), False),
        "holdout": (rows, False),
        "retain_set": (rows, False),
        "question_key": ("paraphrased_question", False),
        "limit": (3, False),
        "retain_log": (log, False),
        "retain": ("demo/retain", False),
        "full": ("demo/full", False),
        "ref_value": (0.5, False),
        "reference": ("demo/retain", False),
        "classifier": ("some/classifier", False),
        "tokenizer": (tokenizer, False),
        "template": (template, False),
        "mask": ("upstream", False),
        "think": ("full", None),
        "cleanup": ("none", False),
        "empty": ("upstream", False),
        "exclude": (("v2",), False),
        "align": ("none", False),
        "align_data": (rows, False),
        "align_tokens": (7, False),
        "validity_data": (rows, False),
        "fresh": (True, True),
        "batch_size": (1, True),
        "memory": ("1G", True),
        "max_new_tokens": (3, False),
        "dtype": ("bfloat16", False),
        "device": ("cpu", True),
        "attn": ("sdpa", False),
        "registry": (registry, True),
        "activations": (place / "a", True),
        # of code from outside, whose content counts: tests/doors/test_outside.py
        "benchmark": (None, None),
        "own": (None, None),
    }


def test_every_setting_decides_whether_an_evaluation_is_same_run(done, tmp_path):
    changes = other_settings(copied(done, tmp_path))
    assert changes.keys() == {one.name for one in dataclasses.fields(EvaluateSettings)}
    model, out = str(done / "model"), done / "out"
    assert is_same_run(model, ASKED, out)
    found = {
        name: is_same_run(model, dataclasses.replace(ASKED, **{name: value}), out)
        for name, (value, wanted) in changes.items()
        if wanted is not None  # the others ask the Hub, or for a template that thinks
    }
    assert found == {name: wanted for name, (_, wanted) in changes.items() if wanted is not None}
    # what `auto` meant here
    assert is_same_run(model, dataclasses.replace(ASKED, dtype="float32"), out)
    assert not is_same_run("demo/npo", ASKED, out)


def test_a_plan_says_nothing_to_do_exactly_where_the_run_then_writes_nothing(tmp_path, monkeypatch):
    out, wrote = tmp_path / "out", []

    def stamps():
        return {one: (one.stat().st_ino, one.stat().st_mtime_ns) for one in out.rglob("*")}

    def run(**changes):
        asked, before = replace(ASKED, activations=tmp_path / "a", **changes), stamps()
        plan = plan_evaluation("demo/npo", asked, out)
        evaluated("demo/npo", asked, out)
        wrote.append(stamps() != before)
        assert (plan.done, plan.text().startswith("nothing to do")) == (not wrote[-1],) * 2

    for changes in ({}, {}, {"batch_size": 3}, {"batch_size": 3}, {"fresh": True}, {}):
        run(**changes)
    (out / BEGUN).write_text("{}")
    run()
    monkeypatch.setattr("lensaudit.auditing.question.code_digest", lambda: "another version")
    run()
    run()
    assert wrote == [True, False, True, False, True, False, True, True, False]


def test_other_weights_under_the_same_name_are_another_run(done, tmp_path):
    place = copied(done, tmp_path)
    model, out = str(place / "model"), place / "out"
    evaluate_into(model, ASKED, out)
    assert is_same_run(model, ASKED, out)
    path = next((place / "model").glob("*.safetensors"))
    weights = load_file(path)
    name = next(iter(weights))
    weights[name] = weights[name] + torch.tensor(0.01, dtype=weights[name].dtype)
    save_file(weights, path, metadata={"format": "pt"})
    assert not is_same_run(model, ASKED, out)


def test_another_retain_log_at_the_same_place_is_another_run_and_explains_it(tmp_path):
    log, ours = tmp_path / "log", replace(ASKED, metrics=("mia_min_k",))
    asked = replace(ASKED, metrics=("privleak",), limit=4, retain_log=log)
    made = {}

    def is_done(place):
        return plan_evaluation("demo/npo", asked, place).done

    for name in ("retain", "full"):
        other = evaluate_into(f"demo/{name}", replace(ours, limit=4), tmp_path / "theirs" / name)
        assert other.folder is not None
        shutil.copytree(other.folder, log, dirs_exist_ok=True)
        assert not is_done(tmp_path / "retain")
        evaluated("demo/npo", asked, tmp_path / name)
        assert is_done(tmp_path / name)
        made[name] = read_run(tmp_path / name, whole=True)
    found = compare(made["retain"], made["full"])
    assert found.of("explains")[0].startswith("inputs.retain_log: ")
    assert [one.partition(":")[0] for one in found.of("explains")[1:]] == ["inputs.retain.weights"]
    assert list(found.values) == ["privleak"]
    # a log that was only written again is the same
    (log / "TOFU_EVAL.json").touch()
    assert is_done(tmp_path / "full")


def test_from_python_with_text_for_paths_and_several_models(tmp_path):
    names = ["demo/npo", "demo/never"]
    how = {"metrics": ("forget_Q_A_Prob", "privleak"), "limit": 2}
    both = la.evaluate(names, str(tmp_path), activations=str(tmp_path / "a"), **how)
    assert [one.folder for one in both] == [tmp_path / "demo-npo", tmp_path / "demo-never"]
    alone = la.evaluate("demo/npo", tmp_path / "alone", **how)
    assert alone.summary == both[0].summary
    assert alone.summary["forget_Q_A_Prob"] > 0
    assert alone.summary["privleak"] is None
    assert "retain" in alone.why_not("privleak")
    assert (alone.uds, alone.ci95, alone.reason) == (None, None, "UDS was not asked for")
    with pytest.raises(TypeError, match="did you mean metrics"):
        la.evaluate("demo/npo", metric="mia_loss")


def test_a_broken_pass_is_a_failure_beside_the_others(tmp_path, monkeypatch):
    def failing(session, model, score):
        raise VerificationError("the bridge and the model disagree")

    monkeypatch.setattr(scores, "score_inside", failing)
    how = {"metrics": ("uds", "mia_loss"), "retain": "demo/retain", "limit": 2}
    found = la.evaluate("demo/npo", tmp_path / "out", activations=tmp_path / "a", **how)
    (failure,) = found.failures
    assert (failure.model, failure.step, failure.kind) == ("demo/npo", "uds", "verification")
    assert failure.message == "patching failed: the bridge and the model disagree" == found.reason
    assert found.summary["mia_loss"] is not None
    written = read_log(tmp_path / "out").entries
    assert (written["uds"].failed, written["mia_loss"].failed) == ("verification", None)


def test_no_value_at_all_is_a_result_that_can_be_refused(tmp_path):
    found = la.evaluate("demo/npo", tmp_path / "out", metrics=("uds",), limit=2)
    assert found.summary == {"uds": None}
    assert "lensaudit audit --inside" in found.reason
    assert (tmp_path / "out" / "TOFU_EVAL.json").exists()
    with pytest.raises(WorkError, match="no metric has a value; no retain model"):
        found.checked()


def once(monkeypatch, name, work):
    """Do something, the first time, after a step of an evaluation."""
    step, left = getattr(room, name), [work]

    def then(*given):
        found = step(*given)
        while left:
            left.pop()()
        return found

    monkeypatch.setattr(room, name, then)


class Waits(Exception):
    """Another process would be waited for."""


def test_an_evaluation_waits_for_another_that_writes_into_its_folder(tmp_path, monkeypatch):
    out = tmp_path / "out"

    def heard(line):
        if "another process evaluates into this folder" in line:
            raise Waits

    def another():
        with pytest.raises(Waits):  # as of another process: in this one it has no turn
            Context().run(evaluate_into, "demo/graddiff", ASKED, out, notice=heard)

    once(monkeypatch, "write_log", another)
    found = evaluate_into("demo/npo", ASKED, out)
    assert is_same_run("demo/npo", ASKED, out)
    assert read_log(out).entries["forget_Q_A_Prob"].value == found.summary["forget_Q_A_Prob"]


def test_an_evaluation_spares_a_result_that_came_after_its_folder_was_chosen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other, told = replace(ASKED, limit=3), []
    once(monkeypatch, "compared", lambda: evaluate_into("demo/npo", other))
    found = evaluate_into("demo/npo", ASKED, notice=told.append)
    (usual, own) = sorted(Path("experiments/out").iterdir())
    assert found.folder == own
    assert is_same_run("demo/npo", other, usual)
    assert [one.partition(" (")[0] for one in told] == [f"{usual}: holds the result of another run"]


def test_a_log_that_does_not_fit_is_refused_by_run_and_plan_before_anything_is_written(tmp_path):
    evaluate_into("demo/retain", ASKED, tmp_path / "two")
    asked = replace(ASKED, limit=4, retain_log=tmp_path / "two")
    for work in (plan_evaluation, evaluate_into):
        with pytest.raises(InputError, match="made with other rows of forget"):
            work("demo/npo", asked, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_data_names_a_known_set_a_folder_rows_or_a_set_of_the_hub(tmp_path):
    (rows := tmp_path / "rows.csv").write_text("")
    assert own_data(None) == own_data("forget10") == (None, None)
    assert own_data("demo") == ("demo", None)
    assert own_data(str(tmp_path)) == (str(tmp_path), None)
    assert own_data(str(rows)) == (None, rows)
    assert own_data("gone.jsonl") == (None, Path("gone.jsonl"))
    assert own_data("locuslab/TOFU") == ("locuslab/TOFU", None)
