"""Models of one shape that compute with other settings: a command that compares them says so."""

import json
import shutil

import pytest

from lensaudit.cli.main import run
from lensaudit.models.registry import EMBEDDED


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """An embedded model with another epsilon in its norms."""
    folder = tmp_path_factory.mktemp("other") / "npo"
    shutil.copytree(EMBEDDED / "npo", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    return folder


@pytest.mark.parametrize("command", ["patch", "steer audit", "worst"])
def test_one_line_says_which_settings_differ(command, other, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    anchors = ["--full", "demo/full", "--retain", "demo/retain", "--data", "demo"]
    asked = [*command.split(), "--source", str(other), *anchors, "--limit", "20", "--dry-run"]
    assert run(asked) == 0, capsys.readouterr().err
    said = capsys.readouterr().err.splitlines()
    (line,) = [one for one in said if "models with other settings" in one]
    assert "npo has rms_norm_eps 0.001" in line
    assert "1e-05" in line
