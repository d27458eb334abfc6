import json

import pytest

from lensaudit.cli.main import run
from lensaudit.data.tofu import forget_set
from lensaudit.errors import WorkError
from lensaudit.evaluation import passes

ASKED = ["audit", "--source", "demo/npo", "--limit", "2"]


def test_an_audit_is_resumed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = [*ASKED, "-o", "out", "--activations", "activations"]
    assert run([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    log = tmp_path / "out" / "eval" / "demo-npo" / "TOFU_EVAL.json"
    assert run([*command, "--dry-run"]) == 0
    again = capsys.readouterr().out
    assert "to cache: 0 forward passes" in again
    assert "to score: 0 patched rows" in again
    assert again.count(": done;") == 2
    before = log.stat().st_mtime_ns
    passes = {p: p.stat().st_mtime_ns for p in (log.parent / "passes").iterdir()}
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == said
    assert log.stat().st_mtime_ns == before
    (tmp_path / "out" / "audit.html").unlink()
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == said
    assert log.stat().st_mtime_ns > before
    assert {p: p.stat().st_mtime_ns for p in (log.parent / "passes").iterdir()} == passes

    assert run([*command, "--dry-run", "--fresh"]) == 0
    fresh = capsys.readouterr().out
    assert "to score: 96 patched rows" in fresh
    assert fresh.count(": to do;") == 2


def test_a_failed_evaluation_leaves_the_rest_and_exits_with_3(tmp_path, monkeypatch, capsys):
    def fails(*arguments, **options):
        raise WorkError("the disk hums")

    monkeypatch.setattr("lensaudit.auditing.audit.evaluate_into", fails)
    place = ["-o", str(tmp_path / "out"), "--activations", str(tmp_path / "activations")]
    assert run([*ASKED, *place]) == 3
    said = capsys.readouterr()
    assert "2 steps failed" in said.err
    assert "demo/npo: the disk hums" in said.err
    assert (tmp_path / "out" / "audit.html").exists()
    assert "demo/npo" in said.out


@pytest.mark.slow
def test_inside_metrics_are_added_and_the_retain_model_speaks_once(tmp_path, capsys, monkeypatch):
    made = []
    kept = passes.kept

    def counted(folders, label, key, make):
        found, reused = kept(folders, label, key, make)
        made.extend([] if reused else [key])
        return found, reused

    monkeypatch.setattr(passes, "kept", counted)
    place = ["-o", str(tmp_path / "out"), "--activations", str(tmp_path / "activations")]
    assert run([*ASKED, *place, "--inside", "--json"]) == 0
    logs = tmp_path / "out" / "eval"
    log = json.loads((logs / "demo-npo" / "TOFU_EVAL.json").read_text())
    said = json.loads(capsys.readouterr().out)["sources"][0]
    assert log["uds"]["agg_value"] == pytest.approx(said["uds"])
    assert log["em_erasure"]["agg_value"] is not None
    assert len(made) > 20
    assert len(made) == len(set(made))


def test_an_own_forget_set_is_planned_for_both_steps(tmp_path, capsys):
    command = ["audit", "--source", "demo/graddiff", "--data", own_rows(tmp_path), "--dry-run"]
    place = ["-o", str(tmp_path / "out"), "--activations", str(tmp_path / "activations")]
    assert run([*command, *place]) == 0
    said = capsys.readouterr().out
    assert "patch: examples: 2; layers: 16" in said
    assert "eval demo/graddiff: to do" in said
    assert run([*command, *place, "--suite", "none"]) == 0
    assert "eval" not in capsys.readouterr().out


def own_rows(folder):
    path = folder / "forget.json"
    path.write_text(json.dumps([vars(e) for e in forget_set("demo")[4:6]]))
    return str(path)


@pytest.mark.parametrize(
    ("options", "claim"),
    [
        (["--source", "nonsense"], "unknown model"),
        (["--source", "demo/npo", "--holdout", "no.jsonl"], "no.jsonl"),
        (["--source", "demo/npo", "--data", "no.json"], "no such file"),
    ],
)
def test_wrong_input_is_found_before_any_work(tmp_path, capsys, options, claim):
    place = ["-o", str(tmp_path / "out"), "--activations", str(tmp_path / "activations")]
    assert run(["audit", *options, *place]) == 2
    assert claim in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
