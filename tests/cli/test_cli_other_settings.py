"""Models of one shape that compute with other settings: a command that compares them says so."""

import json
import shutil

import pytest

from lensaudit.cli.main import run
from lensaudit.models.registry import EMBEDDED

COMMANDS = (
    ("patch", "--source"),
    ("audit", "--source"),
    ("steer audit", "--source"),
    ("effort", "--source"),
    ("worst", "--source"),
    ("sweep plan",),
)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """An embedded model with another epsilon in its norms."""
    folder = tmp_path_factory.mktemp("other") / "npo"
    shutil.copytree(EMBEDDED / "npo", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    return folder


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_one_line_says_which_settings_differ(command, other, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name, *option = command
    anchors = ["--full", "demo/full", "--retain", "demo/retain", "--data", "demo"]
    asked = [*name.split(), *option, str(other), *anchors, "--limit", "20", "--dry-run"]
    if name == "sweep plan":
        asked = [*asked[:-3], "--out", "planned", "--dry-run"]
    assert run(asked) == 0, capsys.readouterr().err
    lines = [x for x in capsys.readouterr().err.splitlines() if "models with other settings" in x]
    assert len(lines) == 1
    assert "npo has rms_norm_eps 0.001" in lines[0]
    assert "1e-05" in lines[0]
