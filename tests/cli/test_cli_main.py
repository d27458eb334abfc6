import subprocess
import sys

import pytest

from lensaudit.cli.main import complain, run


def test_an_unknown_command_is_usage(capsys):
    assert run(["pach"]) == 2
    assert "No such command" in capsys.readouterr().err


def test_a_missing_option_is_usage(capsys):
    assert run(["patch"]) == 2
    assert "--source" in capsys.readouterr().err


def test_at_most_three_lines_and_no_terminal_escapes(capsys):
    assert complain("a\x1b[31m\nb\nc\nd", 4) == 4
    assert capsys.readouterr().err == "lensaudit: a[31m\nb\nc\n"


def test_an_interruption_is_130(monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("lensaudit.auditing.patch.patch_into", interrupted)
    assert run(["patch", "--source", "demo/npo"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_closed_pipe_ends_quietly():
    code = "from lensaudit.cli.main import main; main(['models'])"
    done = subprocess.run(
        f'{sys.executable} -c "{code}" | head -1', shell=True, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_the_commands(option, capsys):
    assert run([option]) == 0
    text = capsys.readouterr().out
    assert "cache" in text
    assert "patch" in text
