"""The action's steps, run in a shell as a runner runs them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from support import verdict_support as made

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
INSTALL, AUDIT, GATE = ACTION["runs"]["steps"]
ASKED = re.compile(r"\$\{\{\s*inputs\.([\w-]+)\s*\}\}")


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """What a runner gives to a step; `lensaudit` is this checkout's."""
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "lensaudit"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lensaudit "$@"\n')
    tool.chmod(0o755)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.setenv(name, str(tmp_path / name))
        (tmp_path / name).touch()
    monkeypatch.setenv("RUNNER_TEMP", str(tmp_path / "temp with space"))
    (tmp_path / "temp with space").mkdir()
    monkeypatch.setenv("GITHUB_ACTION_PATH", str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def step(one, **given):
    """A step's shell, with the inputs given and the defaults of the others."""
    inputs = {name: str(what.get("default", "")) for name, what in ACTION["inputs"].items()}
    assert set(given) <= set(inputs)
    inputs |= given
    assert one["shell"] == "bash"
    # what somebody types into an input is never part of the program
    assert "${{" not in one["run"]
    env = {k: ASKED.sub(lambda found: inputs[found[1]], v) for k, v in one["env"].items()}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", one["run"]],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def outputs(runner):
    return dict(line.split("=", 1) for line in (runner / "GITHUB_OUTPUT").read_text().splitlines())


def test_a_model_that_passes_passes_the_step_by_the_defaults_of_the_gate(runner):
    (runner / "bin" / "lensaudit").write_text('#!/bin/sh\necho "$1" "$2" "$3"\n')
    done = step(GATE, results="results")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["verdict results --gate", *["export results --to"] * 2]
    said = outputs(runner)
    assert said["passed"] == "true"
    assert (Path(said["report"]) / "defaults.toml").read_text() == ""
    assert (runner / "GITHUB_STEP_SUMMARY").read_text() == "verdict results --gate\n"


def test_a_model_that_fails_the_policy_fails_the_step_with_every_reason(runner):
    made.save_run(runner / "results")
    (runner / "policy.toml").write_text("[gate]\nmin_rows = 1000\n")
    done = step(GATE, results="results", policy="policy.toml")
    assert done.returncode == 4
    assert "::error title=lensaudit release gate::" in done.stdout
    assert "64 rows are scored, wanted 1000" in done.stdout
    said = outputs(runner)
    assert said["passed"] == "false"
    assert "**fail**" in (runner / "GITHUB_STEP_SUMMARY").read_text()
    suite = ElementTree.parse(Path(said["report"]) / "lensaudit_junit.xml").getroot()
    assert suite.get("failures") == "1"
    assert "0.970" in (Path(said["report"]) / "lensaudit_gate.md").read_text()


def test_two_uses_in_one_job_keep_a_report_each(runner):
    (runner / "bin" / "lensaudit").write_text("#!/bin/sh\n")
    reports = []
    for name in ("one", "other"):
        assert step(GATE, results=name).returncode == 0
        reports.append(Path(outputs(runner)["report"]))
    assert reports[0] != reports[1]
    assert all(one.is_dir() for one in reports)


def test_nothing_to_judge_ends_with_the_line_and_the_code_of_the_command(runner):
    (runner / "results").mkdir()
    done = step(GATE, results="results")
    assert done.returncode == 2
    assert "holds no result that a verdict can be made from" in done.stderr
    assert "passed" not in outputs(runner)


def test_options_of_an_audit_keep_their_quotes_and_run_nothing(runner):
    tool = runner / "bin" / "lensaudit"
    tool.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c '
        f"'import json, sys; print(json.dumps(sys.argv[1:]))' \"$@\"\n"
    )
    text = '--source "my model"\n--full full\n--data $(touch made);touch made'
    done = step(AUDIT, audit=text, results="r")
    assert AUDIT["if"] == "inputs.audit != ''"
    assert json.loads(done.stdout) == [
        *("audit", "--out", "r", "--source", "my model", "--full", "full"),
        *("--data", "$(touch", "made);touch", "made"),
    ]
    assert not (runner / "made").exists()


@pytest.mark.slow
def test_an_audit_is_gated(runner):
    asked = "--source demo/npo --limit 4 --suite none --association none"
    done = step(AUDIT, audit=asked, results="results")
    assert done.returncode == 0, done.stderr
    gated = step(GATE, results="results")
    assert gated.returncode == 4
    assert "4 rows are scored, wanted 40" in gated.stdout


def test_pip_is_asked_for_this_checkout_under_its_own_pins(runner):
    (runner / "bin" / "python").write_text('#!/bin/sh\nfor one; do echo "$one"; done\n')
    (runner / "bin" / "python").chmod(0o755)
    pins = str(ROOT / "constraints.txt")
    bare = step(INSTALL).stdout.split("\n")[:-1]
    assert bare == ["-m", "pip", "install", "-c", pins, str(ROOT)]
    other = step(INSTALL, install="a wheel.whl", constraints="p.txt").stdout.split("\n")[:-1]
    assert other == ["-m", "pip", "install", "-c", "p.txt", "a wheel.whl"]
    assert Path(pins).exists()
    assert shutil.which("bash")


def test_the_workflow_of_the_page_gives_inputs_that_there_are():
    page = (ROOT / "docs" / "gate.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    (used,) = [one for one in yaml.safe_load(block) if one["uses"] == "./lensaudit"]
    assert set(used["with"]) <= set(ACTION["inputs"])
    named = set(re.findall(r"steps\.lensaudit\.outputs\.(\w+)", block))
    assert named <= set(ACTION["outputs"])
