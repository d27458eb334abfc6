"""What Python prints of a result is what its command prints."""

from pathlib import Path

import lensaudit as la
from lensaudit.auditing.result import PatchResult
from lensaudit.cli.main import run
from lensaudit.results.kinds.patch import PatchSummary


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


def test_names_are_no_markup_and_send_no_escapes(capsys):
    summary = PatchSummary(
        source="[red]x[/red]\x1b[31m", score="em", n=2, n_scored=0, em_form="tokens", threshold=0.9
    )
    la.show(PatchResult("x", Path(), summary))
    shown = capsys.readouterr().out
    assert "[red]x[/red][31m: no verdict" in shown
    assert "\x1b" not in shown
