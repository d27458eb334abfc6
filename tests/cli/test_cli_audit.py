import pytest

from lensaudit.cli.main import run
from lensaudit.errors import WorkError

FEW = "--limit 2 --align none --association none"
ASKED = ["audit", "--source", "demo/npo", *FEW.split()]


def test_a_failed_evaluation_leaves_the_rest_and_exits_with_3(tmp_path, monkeypatch, capsys):
    def fails(*arguments, **options):
        raise WorkError("the disk hums")

    monkeypatch.setattr("lensaudit.auditing.evaluate.evaluate_into", fails)
    place = ["-o", str(tmp_path / "out"), "--activations", str(tmp_path / "activations")]
    assert run([*ASKED, *place]) == 3
    said = capsys.readouterr()
    assert "2 steps failed" in said.err
    assert "demo/npo: the disk hums" in said.err
    assert (tmp_path / "out" / "audit.html").exists()
    assert "demo/npo" in said.out


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
