"""docs/steering.md is true: its commands and its Python run, in order."""

import re
import shlex

import pytest
from pages import page

from lensaudit.cli.main import run
from lensaudit.cli.measure import steer

TEXT = page("steering")


@pytest.mark.slow
def test_the_commands_and_the_python_of_the_page_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(sh|python)\n(.*?)```", TEXT, re.S)
    assert [language for language, _ in blocks] == ["sh", "python"]
    for language, content in blocks:
        if language == "python":
            exec(compile(content, "steering.md", "exec"), {})
            continue
        for line in content.splitlines():
            code = run(shlex.split(line)[1:])
            assert (code, line) == (0, line), capsys.readouterr().err[-500:]


def test_options_on_the_page_exist():
    commands = steer.commands.values()
    known = {flag for command in commands for one in command.params for flag in one.opts}
    named = set(re.findall(r"`(--[a-z-]+)", TEXT))
    assert named
    assert named <= known
