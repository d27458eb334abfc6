"""docs/attacks.md is true: its commands and its Python run, its figures come out."""

import re
import shlex
from pathlib import Path

import pytest

from lensaudit.cli.main import run

TEXT = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.S)


def test_the_commands_run_and_the_table_is_what_they_print(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in blocks("sh")[0].splitlines():
        assert run(shlex.split(command)[1:]) == 0, command
    printed = capsys.readouterr().out
    for row in re.findall(r"^\| demo/.*$", TEXT, re.M):
        for value in re.findall(r"\d?\.\d{3}", row):
            shown = value if value[0].isdigit() else f"0{value}"
            assert _near(shown, printed), (row, shown)


def _near(value, text):
    """Whether a number of the text is the value, up to another machine's rounding."""
    found = [float(one) for one in re.findall(r"\d\.\d{3}", text)]
    return any(one == pytest.approx(float(value), abs=0.005) for one in found)


def test_the_python_runs(capsys):
    exec(compile(blocks("python")[0], "docs/attacks.md", "exec"), {})
    assert "112 matrices, relative error 0.09" in capsys.readouterr().out
