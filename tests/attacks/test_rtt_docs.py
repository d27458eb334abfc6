"""docs/attacks.md of retraining is true: its commands and its Python run."""

import re
import shlex
import subprocess
import sys

import pytest
from pages import page

from lensaudit.cli.main import run as lensaudit

PAGE = page("attacks#Retraining on some facts, measuring others")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in "".join(blocks("sh")).splitlines():
        assert lensaudit(shlex.split(line)[1:]) == 0, line


@pytest.mark.slow
def test_the_python_of_the_page_runs(tmp_path):
    (source,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Estimate(")
