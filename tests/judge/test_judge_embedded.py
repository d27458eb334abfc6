"""From a model of the embedded family to verdicts, through the files of `eval` and `patch`."""

import json

import pytest

from lensaudit.cli.main import run

pytestmark = pytest.mark.slow


def contexts(folder) -> dict:
    return json.loads((folder / "summary.json").read_text())["contexts"]


def test_an_evaluation_and_an_exact_match_audit_are_judged(stub_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stub = stub_of()
    server = ["--model", "stub-judge", "--base-url", stub.url]
    for name in ("full", "idknll"):
        command = ["eval", "--model", f"demo/{name}", "--limit", "4", "--out", name]
        wanted = ["--metric", "forget_Q_A_ROUGE", "--metric", "retain_Q_A_ROUGE"]
        assert run([*command, *wanted]) == 0
        assert run(["judge", "run", name, "--out", f"{name}-rubric", *server]) == 0
        assert run(["judge", "run", name, "--out", f"{name}-idk", "--by", "words:idk"]) == 0
        log = f"{name}/TOFU_EVAL.json"
        assert run(["judge", "run", log, "--out", f"{name}-log", "--by", "idk", *server]) == 0
    removed = [
        contexts(tmp_path / f"{name}-rubric")["forget"]["KNOWLEDGE_REMOVAL"]["mean"]
        for name in ("full", "idknll")
    ]
    assert removed[0] < 2 < 7 < removed[1]
    declined = [
        contexts(tmp_path / f"{name}-idk")["forget"]["idk"]["mean"] for name in ("full", "idknll")
    ]
    assert declined == [0, 100]
    judged = contexts(tmp_path / "idknll-log")["forget_Q_A_ROUGE"]["idk"]["mean"]
    assert judged > 90


def test_what_a_source_says_in_an_audit_is_judged(stub_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {}
    for name in ("idknll", "never"):
        run(["patch", "--source", f"demo/{name}", "--score", "em", "--limit", "4", "--out", name])
        assert run(["judge", "run", name, "--by", "words:entity", "--out", f"{name}-said"]) == 0
        found[name] = contexts(tmp_path / f"{name}-said")["forget"]["entity"]["mean"]
    # the audit begins the answer for the model: what only hides goes on with the entity
    assert found == {"idknll": 100, "never": 0}
