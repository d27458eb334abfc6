import base64
import json
import re

import numpy as np
import pytest
from support import verdict_support as made
from support.report_cases import change, eval_run, manifest, patch_run, seal, write
from support.verdict_support import page_data

from lensaudit.cli.main import run
from lensaudit.report.assemble import assemble
from lensaudit.report.headline import LIMITS
from lensaudit.report.packing import floats, rooted, shares
from lensaudit.report.render import policy, render, write_report
from lensaudit.results.locate import locate
from lensaudit.results.manifest import signed
from lensaudit.verdict.collect import verdicts


def decoded(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


def unrooted(text: str, width: int) -> np.ndarray:
    """Numbers as the page's script reads them."""
    packed = base64.b64decode(text)
    n = len(packed) // (2 * width + 1)
    whole = np.frombuffer(packed[: 2 * n * width], "<i2").reshape(n, width).astype(float)
    roots = np.where(whole == -32768, np.nan, whole / 32767)
    sizes = np.frombuffer(packed[2 * n * width :], "u1")[:, None]
    return 2 ** (sizes / 8 - 12) * roots * np.abs(roots)


def test_tables_survive_packing_within_a_step():
    values = np.array([[0.0, -7.25, np.nan], [3.5, 1e-3, 7.0]])
    back = unrooted(rooted(values), 3)
    there = np.isfinite(values)
    assert back[there] == pytest.approx(values[there], rel=1e-2, abs=1e-8)
    assert [np.isnan(back).tolist(), back[0, 0]] == [(~there).tolist(), 0.0]
    # one large number takes no digits from others, of its row or of others: half of .0512 is half
    back = unrooted(rooted([[25.0, 0.0256], [-0.0256, 1e6]]), 2)
    assert back[0] == pytest.approx([25.0, 0.0256], rel=2e-3)
    assert back[0, 1] / 0.0512 == pytest.approx(0.5, abs=5e-4)
    assert back[1] == pytest.approx([-0.0256, 1e6], rel=0.2)
    rng = np.random.default_rng(0)
    many = rng.normal(0, 2, (99, 16))
    assert np.abs(unrooted(rooted(many), 16) - many).max() < 4e-4
    assert decoded(floats(values), "<f4")[1] == np.float32(-7.25)
    assert decoded(shares([[0.0, 0.5, 1.0, np.nan]]), "u1").tolist() == [0, 127, 254, 255]
    # a third is 84.67 steps, and 0.999 is nearer to 254 than to 253
    assert decoded(shares([[1 / 3, 0.999]]), "u1").tolist() == [85, 254]
    assert np.isnan(unrooted(rooted([[None, None]]), 2)).all()


def test_runs_are_compared_on_the_same_examples_and_settings_alone(tmp_path):
    for name in ("a", "b", "other-hash", "other-rows", "other-tau", "other-layers"):
        patch_run(tmp_path / name, name, n=4, n_layers=6 if name == "other-layers" else 4)
    hashed = manifest("other-hash", examples={"n": 4, "hash": "f"})
    seal(tmp_path / "other-hash", inputs=hashed["inputs"])
    rows = (tmp_path / "other-rows" / "results.jsonl").read_text()
    (tmp_path / "other-rows" / "results.jsonl").write_text(rows.replace('"idx": 3', '"idx": 9'))
    seal(tmp_path / "other-rows")
    change(tmp_path / "other-tau", tau=0.1)
    data = assemble([tmp_path]).data()
    assert sorted(len(one["layers"]) for one in data["conditions"]) == [4, 4, 4, 4, 6]
    (pair,) = data["pairs"]
    names = [data["models"][data["depths"][pair[at]]["model"]]["name"] for at in "ab"]
    assert sorted(names) == ["a", "b"]


def test_the_page_holds_what_the_results_hold(tmp_path):
    found = patch_run(tmp_path / "out", "npo", n=30, n_layers=5)
    seal(tmp_path / "out", seconds=1.23456789012)
    made = json.loads((tmp_path / "out" / "manifest.json").read_text())
    write_report([tmp_path / "out"], tmp_path / "audit.html")
    data = page_data(tmp_path / "audit.html")
    (depth,), (condition,) = data["depths"], data["conditions"]
    assert depth["value"] == pytest.approx(found["uds"], rel=1e-5)
    assert [depth["low"], depth["high"]] == pytest.approx(found["ci95"], rel=1e-4)
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").open()]
    assert decoded(condition["s1"], "<f4").reshape(30, 5)[3] == pytest.approx(rows[3]["s1"])
    s2 = unrooted(depth["s2"], 5)
    assert s2[3] == pytest.approx(rows[3]["s2"], abs=1e-4)
    scores = decoded(depth["scores"], "<f4")
    assert scores[3] == pytest.approx(rows[3]["uds"])
    assert np.isnan(scores[15])
    assert list(depth["unscored"].values()) == [[15]]
    assert condition["examples"][3]["entity"] == rows[3]["entity"]
    assert data["manifests"][0]["content"] == made  # to the last digit


def test_words_on_the_page_have_the_limits_of_the_verdict(tmp_path, monkeypatch):
    patch_run(tmp_path / "out", "npo")
    for name, value in {"hidden_below": 0.31, "erased_from": 0.83}.items():
        monkeypatch.setitem(LIMITS, name, value)
    write_report([tmp_path / "out"], tmp_path / "audit.html")
    text = (tmp_path / "audit.html").read_text()
    assert page_data(tmp_path / "audit.html")["limits"] == {
        "hidden_below": 0.31,
        "erased_from": 0.83,
    }
    legend = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    assert "hidden is a UDS below 0.31, erased a UDS of 0.83 or more" in legend
    # no script has a limit of its own
    assert re.findall(r"[<>]=?\s*0?\.\d+\s*\?\s*'", text) == []


def test_a_model_is_called_what_its_verdict_says_and_not_what_its_score_suggests(tmp_path):
    rotated = {"d_share": 0.9, "needed": True, "why": None}
    gap = {"value": 0.95, "low": 0.9, "high": 0.99}
    high = made.summary(1.0, source="high", validity=rotated, aligned=made.aligned(0.05, gap=gap))
    low = made.summary(0.8, source="low", validity=rotated, aligned=made.aligned(d_share=0.9))
    for name, content in {"high": high, "low": low}.items():
        made.save_run(tmp_path / name, content, weights=name)
    # a word that somebody put into the file is not believed
    path = tmp_path / "low" / "summary.json"
    erased = {"code": "erased", "sentence": "erased", "because": []}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"verdict": erased}))
    made.seal(path.parent, "patch", ["summary.json", "results.jsonl"], **made.inputs(low, "low"))
    write_report([tmp_path], tmp_path / "audit.html")
    data = page_data(tmp_path / "audit.html")
    said = {one["name"]: one["verdict"] for one in data["models"]}
    assert said == {"high": "hidden_other_basis", "low": "unreadable"}
    assert sorted(one["verdict"] for one in data["depths"]) == sorted(said.values())
    assert said == {one.source: one.code for one in verdicts([tmp_path]).models}
    assert data["words"]["hidden_other_basis"] == ["hidden in another basis", "hidden"]
    page = (tmp_path / "audit.html").read_text()
    assert "1 of 2 audited models still holds what it was made to forget; 1 is not decided." in page
    assert "1 hidden in another basis" in page
    assert "1 unreadable" in page


def test_the_difference_of_two_models_is_paired_and_has_an_interval(tmp_path):
    gaps = [
        patch_run(tmp_path / name, name, n=120, held=held)["uds"]
        for name, held in (("a", 0.9), ("b", 0.1))
    ]
    (pair,) = assemble([tmp_path]).data()["pairs"]  # six authors
    assert pair["difference"] == pytest.approx(gaps[0] - gaps[1])  # both score the same examples
    assert pair["low"] < pair["difference"] < pair["high"] < 0


def test_a_folder_is_no_published_model_whatever_its_last_part_spells(tmp_path):
    mine = tmp_path / "mine" / "npo_lr5e5_b05_a1_ep10"
    patch_run(tmp_path / "out" / "a", "demo/npo")
    patch_run(tmp_path / "out" / "b", str(mine))
    mine_now = next(m for m in assemble([tmp_path / "out"]).models.values() if m.name == str(mine))
    assert (mine_now.method, mine_now.epoch) == (None, None)
    # what `unlearn` wrote beside the weights counts
    signed_one = signed({"command": "unlearn", "inputs": {"method": "SimNPO"}})
    write(mine / "manifest.json", signed_one)
    mine_now = next(m for m in assemble([tmp_path / "out"]).models.values() if m.name == str(mine))
    assert (mine_now.method, mine_now.epoch) == ("SimNPO", None)


def test_anchors_are_never_judged_and_both_numbers_count_the_same_models(tmp_path):
    for name, held in (("npo", 0.9), ("rmu", 0.1), ("renamed full", 0.99)):
        patch_run(tmp_path / name, name, held=held)
    inputs = manifest("renamed full")["inputs"]
    source = inputs["source"] | {"weights": inputs["full"]["weights"]}
    seal(tmp_path / "renamed full", inputs=inputs | {"source": source})
    document = assemble([tmp_path])
    assert set(document.words()) == {"npo", "rmu"}
    assert document.title == "Audit of 2 models"
    page = render(document)
    assert "1 of 2 audited models still holds what it was made to forget; 1 is not decided." in page
    assert len(document.runs) == 3  # shown, and not judged


def test_the_suite_shows_the_depth_that_patching_found(tmp_path):
    found = patch_run(tmp_path / "patch", "npo")
    eval_run(tmp_path / "eval", "npo", uds=None, model_utility=0.5)

    def depth():
        models = assemble([tmp_path]).models.values()
        return next(one.metrics["uds"] for one in models if one.name == "npo")

    def evaluated(rows):
        lines = "".join(json.dumps(row | {"split": "forget"}) + "\n" for row in rows)
        (tmp_path / "eval" / "results.jsonl").write_text(lines)

    assert depth()[0] is None  # which rows the evaluation asked it does not say
    lines = (tmp_path / "patch" / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    # two of 26 have no entity
    whole = [*rows, *({"idx": idx, "answer": "Yes."} for idx in (98, 99))]
    evaluated(whole)
    assert depth()[0] == found["uds"]
    for others in (rows[:12], whole + [{"idx": idx, "answer": "No."} for idx in range(50, 54)]):
        evaluated(others)
        assert depth()[0] is None
    evaluated(whole)
    # of another component, scale or choice of layers it is another number
    for other in ({"component": "mlp"}, {"tau": 0.9}, {"n_unpatched": 12}):
        change(tmp_path / "patch", **other)
        assert depth()[0] is None
        assert depth()[-1] == "no retain reference"
        change(tmp_path / "patch", **found, n_unpatched=None)
    assert depth()[0] == found["uds"]


def test_of_two_runs_of_the_same_the_later_is_shown_and_the_other_named(tmp_path):
    patch_run(tmp_path / "old", "npo", held=0.1)
    patch_run(tmp_path / "new", "npo", held=0.9)
    seal(tmp_path / "new", finished="2026-11-21T00:00:00+00:00")
    document = assemble([tmp_path])
    assert [one.estimate.value for one in document.runs] == [
        json.loads((tmp_path / "new" / "summary.json").read_text())["uds"]
    ]
    assert document.left_out[0].path.endswith("old")
    # of two that say the same the later one, wherever it lies
    patch_run(tmp_path / "again", "npo", held=0.9)
    seal(tmp_path / "again", finished="2026-11-22T00:00:00+00:00")
    patch_run(tmp_path / "zero", "npo", held=0.9)
    assert [one.folder.name for one in assemble([tmp_path]).runs] == ["again"]


def test_a_damaged_result_is_left_out_with_its_reason(tmp_path):
    """What else may be wrong with one: `test_manifest.SPOILT`."""
    patch_run(tmp_path / "good", "good")
    patch_run(tmp_path / "bad", "bad")
    (tmp_path / "bad" / "summary.json").write_text('{"uds": 0.9}')
    (left,) = write_report([tmp_path / "good", tmp_path / "bad"], tmp_path / "audit.html")
    assert left.path == str(tmp_path / "bad")
    assert "the manifest says" in left.reason
    assert "left-out" in (tmp_path / "audit.html").read_text()


def test_unfinished_and_foreign_folders_are_one_line_each(tmp_path, capsys):
    patch_run(tmp_path / "good", "good")
    patch_run(tmp_path / "cut", "cut")
    (tmp_path / "cut" / "summary.json").unlink()
    (tmp_path / "holiday").mkdir()
    (tmp_path / "holiday" / "beach.jpg").write_bytes(b"\xff\xd8")
    folders = [str(tmp_path / name) for name in ("good", "cut", "holiday")]
    assert run(["report", *folders, "-o", str(tmp_path / "audit.html")]) == 0
    said = capsys.readouterr()
    assert said.out == f"written: {tmp_path / 'audit.html'}\n"
    unfinished, foreign = said.err.splitlines()
    assert unfinished == (
        f"lensaudit: left out {folders[1]}: unfinished: holds manifest.json but no summary; "
        "run its command again to go on"
    )
    assert foreign == f"lensaudit: left out {folders[2]}: holds no result of lensaudit"


def test_a_checkpoint_is_not_taken_for_an_unfinished_result(tmp_path, capsys):
    for name in ("manifest.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    assert run(["report", str(tmp_path), "-o", str(tmp_path / "audit.html")]) == 2
    said = capsys.readouterr().err
    assert "a model, not a result" in said
    assert "run its command again" not in said


def test_hidden_folders_are_not_entered_and_links_are(tmp_path):
    patch_run(tmp_path / "out" / ".hidden", "a")
    patch_run(tmp_path / "elsewhere", "b")
    (tmp_path / "elsewhere" / "round").symlink_to(tmp_path / "out")
    (tmp_path / "out" / "link").symlink_to(tmp_path / "elsewhere")
    (found,), left = locate([tmp_path / "out"])
    assert found.path.parent == tmp_path / "out" / "link"
    assert left == []


def test_questions_of_older_results_come_from_the_forget_set(tmp_path):
    patch_run(tmp_path / "out", "a", asked={idx: {} for idx in range(24)} | {-1: {}})
    rows = [
        {
            "idx": idx,
            "question": f"Who is {idx}?",
            "answer": f"Ada {idx}.",
            "prefix": "",
            "entity": f"Ada {idx}",
        }
        for idx in range(24)
    ]
    write(tmp_path / "forget.json", rows)
    page = tmp_path / "audit.html"
    arguments = ["report", str(tmp_path / "out"), "-o", str(page)]
    assert run(arguments) == 0
    assert page_data(page)["conditions"][0]["examples"][5]["question"] == ""
    assert run([*arguments, "--data", str(tmp_path / "forget.json")]) == 0
    assert page_data(page)["conditions"][0]["examples"][5]["question"] == "Who is 5?"


def test_rows_that_fill_in_nothing_are_refused_or_left_out_of_a_project(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    patch_run(tmp_path / "out", "a", n=4)
    rows = [
        {"idx": n, "question": f"Who {n}?", "answer": f"Ada {n}.", "prefix": "", "entity": "Ada"}
        for n in range(4)
    ]
    write(tmp_path / "rows.json", rows)
    said = "--data: fills in texts that rows of `patch` lack, and none lacks one; leave it out"
    assert run(["report", "out", "-o", "page.html", "--data", "rows.json"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
    (tmp_path / "p.toml").write_text('[report]\ndata = "rows.json"\n')
    assert run(["report", "out", "-o", "page.html", "--project", "p.toml"]) == 0
    assert f"of the project file left out: {said}" in capsys.readouterr().err


def test_the_policy_names_this_script_and_this_style_and_nothing_else(tmp_path):
    patch_run(tmp_path / "out", "npo")
    write_report([tmp_path / "out"], tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text()
    script = re.findall(r"<script>(.*?)</script>", page, re.S)[-1]
    style = re.search(r"<style>(.*?)</style>", page, re.S)[1]
    said = re.search(r'Content-Security-Policy" content="(.*?)"', page)[1].replace("&#39;", "'")
    assert said == policy(script, style)
    assert "unsafe" not in said
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page)


def test_of_two_evaluations_the_one_that_holds_more_is_shown(tmp_path):
    eval_run(tmp_path / "a" / "retain", "retain", forget_truth_ratio=0.7)
    eval_run(tmp_path / "b", "retain", forget_truth_ratio=0.7, model_utility=0.5)
    eval_run(tmp_path / "c" / "retain", "retain", forget_truth_ratio=0.7)
    (model,) = assemble([tmp_path]).models.values()
    assert set(model.metrics) == {"forget_truth_ratio", "model_utility"}


def test_one_name_with_other_weights_is_told_apart_by_folder(tmp_path):
    for variant in ("base", "nf4"):
        patch_run(tmp_path / variant / "npo" / "patch", "npo")
    inputs = manifest("npo")["inputs"]
    inputs["source"]["weights"] = "sha256:rounded"
    seal(tmp_path / "nf4" / "npo" / "patch", inputs=inputs)
    assert {one.label for one in assemble([tmp_path]).models.values()} == {
        "npo · base",
        "npo · nf4",
    }
