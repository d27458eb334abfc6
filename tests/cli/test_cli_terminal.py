"""Rules of the terminal that hold for every command."""

import json
import os
import subprocess
import sys

import pytest

from lensaudit.cli.main import run

PROGRAM = [sys.executable, "-c", "from lensaudit.cli.main import main; main()"]


def completions(line):
    environment = {
        "_LENSAUDIT_COMPLETE": "bash_complete", "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }  # fmt: skip
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
    assert run(["--quiet", *command, "--fresh"]) == 0
    still = capsys.readouterr()
    assert json.loads(still.out) == json.loads(loud.out)
    assert still.err == ""


def test_quiet_keeps_errors(capsys):
    assert run(["--quiet", "patch", "--source", "nonsense"]) == 2
    assert "unknown model" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["models", "--role", "full", "--json"],
        ["activations", "ls", "--json", "--activations", "none"],
        ["cache", "--model", "demo/npo", "--limit", "1", "--json", "--activations", "a"],
        ["rtt", "validate", "demo", "--splits", "4", "--write", "mcq", "--json"],
        ["sweep", "plan", "demo/npo", "--metrics", "uds", "--limit", "2", "-o", "s", "--json"],
        [
            "steer",
            "extract",
            "--model",
            "demo/full",
            "--trait",
            "demo_idk",
            "--layers",
            "8",
            "--position",
            "prompt_last",
            "--method",
            "mean_diff",
            "--out",
            "v",
            "--json",
        ],
    ],
)
def test_every_json_is_one_document(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(command) == 0
    json.loads(capsys.readouterr().out)
