"""The study on a real model and its question, end to end on the smallest scale: another base."""

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from support.tolerance import NATS

ROOT = Path(__file__).parents[2]


def test_the_depths_of_a_fact_are_those_that_patch_writes(tmp_path, one_type):
    from experiments.prediction import fact_records

    family = fact_records.Family(
        full="demo/full",
        never=("demo/retain",),
        data="demo",
        place=tmp_path,
        dtype="float32",
        steps=1,
        lr=1e-3,
    )
    found = fact_records._depths("npo", "demo/npo", family)
    written = tmp_path / "depth" / "npo"
    summary = json.loads((written / "summary.json").read_text())
    assert found.shape == (64, 6)
    assert found["verdict"].unique().tolist() == [summary["verdict"]["code"]]
    layers = pd.read_csv(written / "layers.csv")
    weakest = layers[(layers["layer"] == summary["weakest"]["layer"]) & (layers["ke"] == 1)]
    assert len(weakest) == found["weakest"].notna().sum() > 0
    for idx, erasure in zip(weakest["idx"], weakest["erasure"], strict=True):
        assert found.loc[idx, "weakest"] == pytest.approx(erasure, abs=NATS)


def test_scores_of_other_rows_or_another_dtype_are_asked_anew(monkeypatch, tmp_path):
    from experiments.prediction import fact_records

    def evaluated(model, out, *, dtype, forget="demo", **_):
        out.mkdir(parents=True, exist_ok=True)
        entry = {"agg_value": None, "value_by_index": {"0": {"prob": len(f"{forget} {dtype}")}}}
        (out / "TOFU_EVAL.json").write_text(json.dumps({"forget_Q_A_Prob": entry}))

    def read(label, model, family):
        return pd.DataFrame({"uds": [0.5]}, index=pd.Index([0], name="idx"))

    monkeypatch.setattr(fact_records.la, "evaluate", evaluated)
    monkeypatch.setattr(fact_records, "_depths", read)
    monkeypatch.setattr(fact_records, "_bits", lambda *_: pd.Series([1.0]))
    monkeypatch.setattr(fact_records, "entity_probs", lambda *_: pd.Series([-1.0]))
    found = {}
    for data, dtype in (("demo", "float32"), ("demo", "bfloat16"), ("rows.json", "float32")):
        family = fact_records.Family(
            "demo/full", ("demo/retain", "demo/never"), data, tmp_path, dtype, steps=1, lr=1e-3
        )
        found[data, dtype] = fact_records.scored("npo", "demo/npo", family)["answer_prob"].tolist()
    assert found == {key: [len(" ".join(key))] for key in found}


@pytest.mark.slow
def test_the_study_makes_asks_attacks_and_goes_on_where_it_was(monkeypatch, tmp_path):
    from experiments.prediction import predict, real_model

    monkeypatch.setattr(real_model, "BASE", "demo/never")
    given = ["--seed", "1", "--kept", "48", "--epochs", "20", "--lr", "5e-3", "--only", "npo"]
    given += ["--only", "absent", "--only", "npo_tar", "--only", "sham_npo", "--only", "sham_rmu"]
    given += ["--dtype", "float32", "--out", str(tmp_path)]
    done = CliRunner().invoke(real_model.main, given, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "| `graddiff` | ? | missing |" in done.output
    rows = pd.read_csv(tmp_path / "seed-1" / "facts.csv")
    assert set(rows["model"]) == {"absent", "npo", "npo_tar", "sham_npo"}
    assert "sham_rmu: rmu was not made" in done.output
    assert (rows.groupby("model").size() == 64).all()
    depth = rows.groupby("model")["uds"].mean()
    assert depth["sham_npo"] < depth["npo"] < depth["absent"]
    assert rows["retrained_T@full"].mean() > 0.5 > rows["retrained_T@never"].mean()
    weights = tmp_path / "seed-1" / "full" / "adapter_model.safetensors"
    made = weights.stat().st_mtime_ns
    again = CliRunner().invoke(real_model.main, given, catch_exceptions=False)
    assert again.output.splitlines()[-20:] == done.output.splitlines()[-20:]
    assert "npo (?): was there" in again.output
    assert weights.stat().st_mtime_ns == made
    numbers = tmp_path / "predict.json"
    facts = [str(tmp_path / "seed-1" / "facts.csv"), "--out", str(numbers)]
    said = CliRunner().invoke(predict.main, facts, catch_exceptions=False)
    assert said.exit_code == 0, said.output
    assert json.loads(numbers.read_text())["SmolLM2, seed 1"]["counts"]["all"]["any"]["back"] > 0
