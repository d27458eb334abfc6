"""`lensaudit steer audit` from the command line to its files, and what it refuses."""

import pytest

from lensaudit.cli.main import run
from lensaudit.files import write_json

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
    source = [] if "--source" in more else ["--source", "demo/npo"]
    return run(["steer", "audit", *source, "--out", str(out), *map(str, more)])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--strengths", "0,1"], "other than 0"),
        (["--layers", "99"], "layers 0 to 15"),
        (["--retain", "demo/full"], "same weights"),
        (["--source", "demo/full"], "same weights"),
        (["--limit", "2"], "found 2 authors, wanted at least 3"),
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
    assert "name --kept too" in capsys.readouterr().err
    kept = [{"question": f"Where is w{at}?", "answer": "Here."} for at in range(4)]
    write_json(tmp_path / "kept.json", kept)
    both = ["--data", tmp_path / "own.json", "--kept", tmp_path / "kept.json"]
    assert audit(tmp_path / "out", *both, "--dry-run") == 0
    assert "6 forget examples of 3 authors in 3 folds, 4 retain" in capsys.readouterr().out
