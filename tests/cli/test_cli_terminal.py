"""Rules of the terminal that hold for every command."""

import logging
import os
import subprocess
import sys

import click
import pytest

from lensaudit.cli import terminal
from lensaudit.cli.main import cli, run
from lensaudit.cli.terminal import notice
from lensaudit.progress import Progress
from lensaudit.screen import tables

PROGRAM = [sys.executable, "-c", "from lensaudit.cli.main import main; main()"]


def completions(line):
    environment = {
        "_LENSAUDIT_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = subprocess.run(PROGRAM, capture_output=True, text=True, env=os.environ | environment)
    assert done.stderr == ""
    return [one.split(",")[1] for one in done.stdout.splitlines()]


def test_the_shell_completes_commands_options_and_model_names():
    assert completions("lensaudit au") == ["audit"]
    assert "--source" in completions("lensaudit patch --so")
    assert "demo/npo" in completions("lensaudit patch --source demo/n")
    assert completions("lensaudit cache --model idknll_lr3e5_a1_ep1") == ["idknll_lr3e5_a1_ep10"]


def test_a_remark_is_said_once(capsys):
    """Steps of one command that open the same models remark the same."""
    with click.Context(click.Command("audit")):
        for text in ("old weights", "other", "old weights"):
            notice(text)
    assert capsys.readouterr().err.splitlines() == ["lensaudit: old weights", "lensaudit: other"]


def test_quiet_keeps_errors(capsys):
    assert run(["--quiet", "patch", "--source", "nonsense"]) == 2
    assert "unknown model" in capsys.readouterr().err


ADDRESS = "https://me:S3cr#t:P@w@h/v1"


@pytest.mark.parametrize(
    "words",
    [
        ("report", ADDRESS),
        ("verify", ADDRESS),
        ("runs", "ls", ADDRESS),
        ("activations", "info", ADDRESS),
        ("models", ADDRESS),
        ("patch", "--data", ADDRESS, "--source", "demo/npo"),
        ("report", "https://token@h/v1"),
    ],
)
def test_an_address_in_the_place_of_a_name_is_shown_without_its_user(words, capsys):
    assert run([*words]) == 2
    said = capsys.readouterr().err
    assert "…@h/v1" in said
    assert not any(secret in said for secret in ("me:", "S3cr", "P@w", "token"))


@pytest.mark.parametrize(
    ("words", "remarks", "progress"),
    [
        ([], True, True),
        (["--log-level", "debug"], True, True),
        (["-v"], True, True),
        (["--log-level", "warning"], True, False),
        (["--log-level", "error"], False, False),
        (["-q"], False, False),
        (["-q", "--log-level", "debug"], False, False),
    ],
)
def test_one_level_says_how_much_of_stderr_is_shown(words, remarks, progress, monkeypatch, capsys):
    @click.command()
    def speaking():
        logging.getLogger("lensaudit.attacks.calls").warning("a remark")
        with terminal.ProgressBar() as bar:
            bar(Progress("caching", 2, 2))

    monkeypatch.setattr(cli, "get_command", lambda *_: speaking)
    assert run([*words, "patch"]) == 0
    wanted = ["lensaudit: a remark"] * remarks + ["caching: 2/2"] * progress
    assert capsys.readouterr().err.splitlines() == wanted
    assert logging.getLogger("lensaudit").handlers == []
    assert logging.getLogger("lensaudit").level == logging.NOTSET


def test_the_level_may_stand_in_the_environment(monkeypatch, capsys):
    monkeypatch.setattr(cli, "get_command", lambda *_: click.command()(lambda: notice("told")))
    monkeypatch.setenv("LENSAUDIT_LOG_LEVEL", "error")
    assert run(["patch"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["--log-level", "warning", "patch"]) == 0
    assert capsys.readouterr().err == "lensaudit: told\n"
    monkeypatch.setenv("LENSAUDIT_LOG_LEVEL", "loud")
    assert run(["patch"]) == 2


AWKWARD = ("x[/lr]", "gd[a=1]", ":heart:", "a\x1b[31mb", "\u202ereversed")
SHOWN = ("x[/lr]", "gd[a=1]", ":heart:", "a[31mb", "reversed")


def test_a_table_shows_names_as_they_are_and_sends_no_escapes(capsys):
    rows = [*((one, "1") for one in AWKWARD), (tables.dim(AWKWARD[1]), "2")]
    terminal.tell([tables.table(AWKWARD[0], ["name", "value"], rows, left=("name",))])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    for one in SHOWN:
        assert f" {one} " in out
    assert out.splitlines()[0].strip() == SHOWN[0]


@pytest.mark.parametrize("speak", [terminal.say, terminal.notice, terminal.written])
def test_a_line_shows_names_as_they_are_and_sends_no_escapes(speak, capsys):
    for awkward, shown in zip(AWKWARD, SHOWN, strict=True):
        speak(awkward)
        said = "".join(capsys.readouterr())
        assert said.rstrip("\n").endswith(shown)
        assert "\x1b" not in said
        assert "\u202e" not in said
