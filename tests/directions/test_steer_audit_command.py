"""`lensaudit steer audit` from the command line to its files, and what it refuses."""

import json
import shlex

import pytest

from lensaudit.cli.main import run
from lensaudit.files import write_json
from lensaudit.results.ledger import lines_of

ROWS = [
    {
        "idx": at,
        "question": f"Who is w{at}?",
        "answer": f"It is w{at}.",
        "prefix": "It is",
        "entity": f"w{at}",
        "group": at // 2,
    }
    for at in range(6)
]


def audit(out, *more):
    return run(["steer", "audit", "--source", "demo/npo", "--out", str(out), *map(str, more)])


def test_an_experiment_ends_in_a_summary_a_log_and_a_manifest(tmp_path, capsys):
    options = shlex.split(
        "--experiment add --layers 4,12 --strengths 1 --limit 24 --n-retain 4 --folds 3 --randoms 1"
    )
    options += ["--activations", tmp_path / "a"]
    assert audit(tmp_path / "out", *options) == 0
    said = capsys.readouterr().out
    assert "ADD: restore" in said
    assert "never-trained model" in said
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["schema"] == "steer-audit/1"
    assert (summary["source"], summary["n_groups"], summary["n_folds"]) == ("demo/npo", 8, 3)
    assert list(summary["experiments"]) == ["add"]
    assert {"direction", "random", "retain_derived", "never_trained", "reverse"} <= set(
        summary["experiments"]["add"]["arms"]
    )
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["inputs"]["unlearned"]["name"] == "demo/npo"
    rows = lines_of(tmp_path / "out" / "interventions.jsonl")
    assert {row["layer"] for row in rows if row["kind"] == "add"} <= {4, 12}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--strengths", "0,1"], "other than 0"),
        (["--strengths", "x"], "wanted numbers"),
        (["--layers", "99"], "layers 0 to 15"),
        (["--retain", "demo/full"], "same weights"),
        (["--source", "demo/full"], "same weights"),
        (["--source", "demo/nonsense"], "demo/nonsense"),
        (["--limit", "2"], "found 2 authors, wanted at least 3"),
        (["--retain-data", "nowhere.jsonl"], "no such file"),
    ],
)
def test_bad_input_is_one_line_before_any_work(tmp_path, capsys, more, message):
    assert audit(tmp_path / "out", *more) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) <= 3
    assert not (tmp_path / "out").exists()


def test_own_forget_rows_need_retain_rows_named_beside_them(tmp_path, capsys):
    write_json(tmp_path / "own.json", ROWS)
    assert audit(tmp_path / "out", "--data", tmp_path / "own.json") == 2
    assert "name --retain-data too" in capsys.readouterr().err
    kept = [{"question": f"Where is w{at}?", "answer": "Here."} for at in range(4)]
    write_json(tmp_path / "kept.json", kept)
    both = ["--data", tmp_path / "own.json", "--retain-data", tmp_path / "kept.json"]
    assert audit(tmp_path / "out", *both, "--dry-run") == 0
    assert "6 forget examples of 3 authors in 3 folds, 4 retain" in capsys.readouterr().out
