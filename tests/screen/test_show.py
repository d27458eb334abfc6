"""What Python prints of a result is what its command prints."""

import io
from pathlib import Path

import pytest
from rich.console import Console

import lensaudit as la
from lensaudit.auditing.patched import PatchResult
from lensaudit.cli.main import run
from lensaudit.screen.show import parts_of
from lensaudit.screen.tables import PIPE_WIDTH


def text_of(results):
    text = io.StringIO()
    screen = Console(file=text, width=PIPE_WIDTH, markup=False, highlight=False)
    for part in parts_of(results):
        screen.print(part)
    return text.getvalue()


@pytest.mark.parametrize("score", ["uds", "em"])
def test_a_result_reads_as_its_command_prints_it(tmp_path, capsys, score):
    settings = {"limit": 2, "score": score, "activations": tmp_path / "a"}
    la.show(la.patch("demo/npo", tmp_path / "out", **settings))
    shown = capsys.readouterr().out
    options = [f"--{key}={value}" for key, value in settings.items()]
    assert run(["patch", "--source=demo/npo", *options, f"--out={tmp_path / 'out'}"]) == 0
    *printed, written = capsys.readouterr().out.splitlines()
    assert shown.splitlines() == printed
    assert written == f"written: {tmp_path / 'out'}"


def test_other_results_follow_the_depths(tmp_path):
    found = la.patch("demo/npo", tmp_path / "out", limit=2, activations=tmp_path / "a")
    said = la.evaluate("demo/npo", tmp_path / "eval", metrics=("forget_Q_A_Prob",), limit=2)
    text = text_of([said, found])
    assert text.index("Unlearning depth") < text.index("forget_Q_A_Prob")


def test_names_are_no_markup():
    summary = {
        "source": "[red]x[/red]",
        "score": "em",
        "udr": None,
        "ci95": None,
        "retention": None,
        "categories": {},
        "n": 2,
        "n_scored": 0,
        "unscored": {},
        "per_layer": [],
        "em_form": "tokens",
        "threshold": 0.9,
        "calibration": {},
    }
    assert "[red]x[/red]: no verdict" in text_of([PatchResult("x", Path(), summary)])
