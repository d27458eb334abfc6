"""UDS and EM-erasure as members of the suite, on the embedded family."""

import importlib
import json
import sys

import pytest
from support.metric_helpers import tiny_passes
from support.tolerance import NATS

from lensaudit.auditing.question import annotated_set
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.evaluation.passes import NO_RETAIN
from lensaudit.evaluation.suite import evaluate
from lensaudit.metrics.registry import ordered

DEPTH = ("uds", "em_erasure", "logit_lens")
LIMIT = 16


def command(folder, *more, model="demo/idknll", metrics=DEPTH, limit=LIMIT):
    chosen = [part for name in metrics for part in ("--metric", name)]
    asked = f"eval --model {model} --limit {limit} --out {folder}/out"
    return [*asked.split(), "--activations", f"{folder}/activations", *chosen, *map(str, more)]


def log(folder):
    return json.loads((folder / "out" / "TOFU_EVAL.json").read_text())


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """The folder of one evaluation."""
    folder = tmp_path_factory.mktemp("depth")
    assert run(command(folder, "--retain", "demo/retain")) == 0
    return folder


def patch_summary(folder, capsys, *more):
    out = folder / f"patch{len(more)}"
    asked = f"patch --source demo/idknll --limit {LIMIT} --out {out} --activations {folder}/own"
    assert run([*asked.split(), *more]) == 0
    capsys.readouterr()
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    return json.loads((out / "summary.json").read_text()), rows


@pytest.mark.parametrize(
    ("name", "key", "more"),
    [
        ("uds", "uds", ()),
        ("em_erasure", "udr", ("--score", "em", "--em-form", "teacher")),
        ("logit_lens", "lens", ("--score", "lens")),
    ],
)
def test_the_suite_and_patch_give_the_same_number(evaluated, capsys, name, key, more):
    summary, rows = patch_summary(evaluated, capsys, *more)
    entry = log(evaluated)[name]
    assert entry["agg_value"] == pytest.approx(summary[key], rel=1e-6)
    assert entry["interval_95"] == pytest.approx(summary["ci95"], rel=1e-6)
    assert entry.get("unscored", {}) == summary["unscored"]
    assert len(rows) == LIMIT
    for row in rows:
        found = entry["value_by_index"][str(row["idx"])][key]
        assert found == (None if row[key] is None else pytest.approx(row[key], abs=NATS))
    assert entry["calibration"] == summary["calibration"]


@pytest.mark.parametrize(("model", "wanted"), [("demo/full", 0.0), ("demo/retain", 1.0)])
@pytest.mark.usefixtures("ends")
def test_a_high_depth_means_forgotten(evaluated, tmp_path, capsys, model, wanted):
    more = ("--retain", "demo/retain", "--out", tmp_path / "out")
    assert run([*command(evaluated, model=model), *map(str, more)]) == 0
    assert {name: log(tmp_path)[name]["agg_value"] for name in DEPTH} == dict.fromkeys(
        DEPTH, pytest.approx(wanted, abs=1e-4)
    )
    assert all(one.high_means == "forgot" for one in ordered("tofu", DEPTH))
    assert "↑ forgot" in capsys.readouterr().out


def test_full_is_what_the_user_says(tmp_path):
    more = ("--retain", "demo/retain", "--full", "demo/npo")
    assert run(command(tmp_path, *more, metrics=("uds",), limit=2)) == 0
    assert log(tmp_path)["uds"]["full_model"] == "demo/npo"


def reasons(folder, *more, **changes):
    """What depth lacks in an evaluation that has another metric."""
    assert run(command(folder, *more, metrics=(*DEPTH, "mia_loss"), limit=2, **changes)) == 0
    found = log(folder)
    assert found["mia_loss"]["agg_value"] is not None
    assert [found[name]["agg_value"] for name in DEPTH] == [None] * len(DEPTH)
    said = {found[name]["reason"] for name in DEPTH}
    assert len(said) == 1
    return said.pop()


def test_own_rows_without_spans_are_a_reason(tmp_path):
    own = tmp_path / "mine.jsonl"
    own.write_text('{"question": "Who?", "answer": "Ada Lovelace wrote it."}\n')
    said = reasons(tmp_path, "--retain", "demo/retain", "--data", own, "--holdout", own)
    assert "mine.jsonl" in said
    assert "prefix" in said
    assert "\n" not in said


def test_a_retain_model_equal_to_full_is_a_reason(tmp_path):
    assert "same weights" in reasons(tmp_path, "--retain", "demo/full")


@pytest.mark.parametrize("suite", ["tofu", "muse"])
def test_passes_that_name_no_models_give_a_reason(tiny_tokenizer, suite):
    found = evaluate(tiny_passes(tiny_tokenizer), suite, DEPTH)
    assert {entry.reason for entry in found.values()} == {NO_RETAIN}


def test_the_annotated_set_follows_the_data(tmp_path):
    (tmp_path / "rows.json").write_text("[]")
    for changes, wanted in (
        ({}, "forget10"),
        ({"data": "demo"}, "demo"),
        ({"data": str(tmp_path)}, str(tmp_path)),
        ({"forget": tmp_path / "f"}, str(tmp_path / "f")),
        ({"data": str(tmp_path / "rows.json")}, str(tmp_path / "rows.json")),
    ):
        assert annotated_set("npo", EvaluateSettings(**changes)) == wanted
    assert annotated_set("demo/npo", EvaluateSettings(forget_split="forget05")) == "demo"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"suite": "muse"}, "suite muse has no annotated"),
        ({"forget_split": "forget05"}, "forget05 has no annotated"),
        ({"data": "someone/else"}, "someone/else has no annotated"),
        ({"holdout": "h"}, "name one with --data"),
    ],
)
def test_data_without_an_annotated_set_says_so(changes, said):
    with pytest.raises(InputError, match=said):
        annotated_set("npo", EvaluateSettings(**changes))


def test_the_suite_starts_without_the_bridge(monkeypatch):
    from transformer_lens import model_bridge  # its parts are named below

    assert model_bridge
    # what is imported twice is two types: no types are checked in the second
    plain = [one for one in sys.meta_path if "jaxtyping" not in type(one).__module__]
    monkeypatch.setattr(sys, "meta_path", plain)
    for name in list(sys.modules):
        if name.partition(".")[0] == "lensaudit":
            monkeypatch.delitem(sys.modules, name)
        elif name.partition(".")[0] == "transformer_lens":
            monkeypatch.setitem(sys.modules, name, None)
    for name in ("lensaudit.auditing.evaluate", "lensaudit.metrics.depth"):
        importlib.import_module(name)
    with pytest.raises(ModuleNotFoundError, match="transformer_lens"):
        importlib.import_module("lensaudit.models.booting")
