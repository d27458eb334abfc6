"""What Python prints of a result is what its command prints."""

import json
from functools import partial
from pathlib import Path

import pytest

import lensaudit as la
from lensaudit.auditing.result import PatchResult
from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.results.kinds.eval import EvaluationResult, MetricResult
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.screen.depth import layer_table
from lensaudit.screen.evaluation import values
from lensaudit.screen.explain import explain


def test_a_result_reads_as_its_command_prints_it_and_others_follow(tmp_path, capsys):
    settings = {"limit": 2, "align": "none", "activations": tmp_path / "a"}
    found = la.patch("demo/npo", tmp_path / "out", **settings)
    la.show(found)
    shown = capsys.readouterr().out
    options = [f"--{key}={value}" for key, value in settings.items()]
    assert run(["patch", "--source=demo/npo", *options, f"--out={tmp_path / 'out'}"]) == 0
    *printed, written = capsys.readouterr().out.splitlines()
    assert shown.splitlines() == printed
    assert written == f"written: {tmp_path / 'out'}"
    said = la.evaluate("demo/npo", tmp_path / "eval", metrics=("forget_Q_A_Prob",), limit=2)
    la.show([said, found])
    text = capsys.readouterr().out
    assert text.index("Unlearning depth") < text.index("forget_Q_A_Prob")


def test_an_old_result_keeps_the_direction_that_its_manifest_says():
    entries = {
        "forget_Q_A_Prob": MetricResult(0.5),
        "forget_Q_A_ROUGE": MetricResult(0.5, high_means="forgot"),
        "retired": MetricResult(0.5, high_means="knows"),
    }
    shown, *_ = values(EvaluationResult("x", Path("TOFU_EVAL.json"), "tofu", entries))
    assert [*shown.columns[2].cells] == ["↑ knows", "↑ forgot", "↑ knows"]


def test_both_deltas_of_a_layer_are_over_the_same_facts():
    means = {"n_ke": 1, "s1": 0.25, "s1_ke": 1.0, "s2_ke": 0.5, "erasure": 0.5}
    by_layer = [{"layer": layer, "s2": s2, **means} for layer, s2 in ((0, 0.125), (1, None))]
    run_of = partial(PatchSummary, source="x", score="uds", n_scored=1)
    every, at_ke = (layer_table(run_of(per_layer=by_layer[:n])) for n in (1, 2))
    assert [[*column.cells] for column in every.columns[1:3]] == [["0.250"], ["0.125"]]
    assert [[*column.cells] for column in at_ke.columns[1:3]] == [["1.000"] * 2, ["0.500"] * 2]
    over = ", over the facts encoded there"
    assert [over in str(one.title) for one in (every, at_ke)] == [False, True]


def test_names_are_no_markup_and_send_no_escapes(capsys):
    summary = PatchSummary(
        source="[red]x[/red]\x1b[31m", score="em", n=2, n_scored=0, em_form="tokens", threshold=0.9
    )
    la.show(PatchResult("x", Path(), summary))
    shown = capsys.readouterr().out
    assert "[red]x[/red][31m: no verdict" in shown
    assert "\x1b" not in shown


def test_the_steps_of_a_fact_lead_to_the_score_of_the_run(tmp_path, capsys):
    out = tmp_path / "out"
    settings = {"limit": 2, "align": "none", "activations": tmp_path / "a", "ask": "none"}
    # a threshold that half of the layers pass
    patched = la.patch("demo/npo", out, tau=1.0, **settings)
    lines = (patched.folder / "results.jsonl").read_text().splitlines()
    for idx in [json.loads(line)["idx"] for line in lines]:
        found = explain(out, idx)
        counted = [one for one in found.layers if one.s1 > found.tau]
        assert 0 < len(counted) < len(found.layers)
        # UDS = sum of S1 * clip(S2 / S1, 0, 1) over sum of S1
        erased = sum(min(max(one.s2, 0), one.s1) for one in counted)
        assert found.erased == pytest.approx(erased)
        assert found.erased / found.encoded == pytest.approx(found.score, abs=1e-5)
    capsys.readouterr()
    assert run(["explain", str(out), "--fact", str(idx)]) == 0
    shown = capsys.readouterr().out
    assert f"{found.erased:.3f} / {found.encoded:.3f} = {found.score:.3f}" in shown
    assert found.fact.entity in shown
    with pytest.raises(InputError, match="no fact has idx 7777; there are"):
        explain(out, 7777)
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="holds no run of `lensaudit patch --score uds`"):
        explain(tmp_path / "none", 0)
