"""Rules of the terminal that hold for every command."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from lensaudit.cli import terminal
from lensaudit.cli.main import run
from lensaudit.models.registry import load_registry, resolve
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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell):
    environment = os.environ | {"_LENSAUDIT_COMPLETE": f"{shell}_source"}
    done = subprocess.run(PROGRAM, capture_output=True, text=True, env=environment, check=False)
    if shell == "bash" and done.returncode:  # click asks the bash it finds for its version
        pytest.skip("no bash from version 4.4")
    assert "lensaudit" in done.stdout


def test_json_alone_is_on_stdout_and_quiet_leaves_stderr_empty(tmp_path, capsys):
    place = ["--activations", str(tmp_path / "a"), "--out", str(tmp_path / "out")]
    command = ["patch", "--source", "demo/npo", "--limit", "2", "--json", *place]
    assert run(command) == 0
    loud = capsys.readouterr()
    assert json.loads(loud.out)["source"] == "demo/npo"
    assert "caching demo/npo: 2/2" in loud.err.splitlines()
    assert "\r" not in loud.err
    assert "\x1b" not in loud.err
    assert run([*command, "--fresh", "-q"]) == 0
    still = capsys.readouterr()
    assert json.loads(still.out) == json.loads(loud.out)
    assert still.err == ""


def test_quiet_keeps_errors(capsys):
    assert run(["--quiet", "patch", "--source", "nonsense"]) == 2
    assert "unknown model" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "sweep plan demo/npo --metric uds --limit 2 -o s --json",
        "steer extract --model demo/full --trait demo_idk --layers 8 --position prompt_last "
        "--method mean_diff --out v --json",
    ],
)
def test_every_json_is_one_document(command, tmp_path, capsys, monkeypatch):
    """Of other commands goldens hold what `--json` prints, to the letter."""
    monkeypatch.chdir(tmp_path)
    assert run(command.split()) == 0
    json.loads(capsys.readouterr().out)


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


def test_a_pipe_cuts_no_name(capsys):
    long = "organisation/" + "a-rather-long-name-" * 8 + "end"
    row = (long, *("0.123",) * 8)
    terminal.tell([tables.table("", ["name", *"abcdefgh"], [row], left=("name",))])
    assert any(long in line for line in capsys.readouterr().out.splitlines())


def test_a_listing_keeps_one_line_per_row_however_wide(capsys):
    rows = [("a", "x" * 300, "1"), ("long name", "y", "22")]
    terminal.listing(rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"a          {'x' * 300}  1", f"long name  y{' ' * 299}  22"]


def test_folders_with_brackets_go_through_the_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = resolve("demo/npo", load_registry()).local
    names = ["x[/lr]", "gd[a=1]"]
    for name in names:
        shutil.copytree(model, tmp_path / name)
    two = ["--source", f"./{names[0]}", "--source", f"./{names[1]}"]
    small = ["--limit", "4", "--activations", "a", "--data", "demo"]
    anchors = ["--full", "demo/full", "--retain", "demo/retain"]
    for command in (
        ["patch", *two, *anchors, *small, "--out", "p"],
        ["activations", "ls", "--activations", "a"],
        ["quantize", "--source", f"./{names[1]}", "--out", "q[b]"],
    ):
        assert run(command) == 0
        out = capsys.readouterr().out
        assert "gd[a=1]" in out or "x[/lr]" in out
        assert "\x1b" not in out
    assert "q[b]" in out
