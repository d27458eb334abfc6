"""docs/general-ability.md: its commands can be given, and run with the harness."""

import json
import re
import shlex

import pytest
from support.pages import page

from lensaudit.cli.main import run

TEXT = page("general-ability")


def blocks(language):
    return re.findall(rf"```{re.escape(language)}\n(.*?)```", TEXT, re.S)


def commands(language):
    return [line for block in blocks(language) for line in block.splitlines()]


@pytest.mark.slow
def test_the_commands_and_the_python_of_the_page_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed (extra lmeval)")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "own_choice.yaml").write_text(blocks("yaml own_choice.yaml")[0])
    (tmp_path / "tasks" / "rows.jsonl").write_text(blocks("jsonl rows.jsonl")[0])
    (tmp_path / "lm_eval.yaml").write_text(blocks("yaml lm_eval.yaml")[0])
    for line in commands("sh"):
        assert run(shlex.split(line)[1:]) == 0, line
        said = capsys.readouterr().out
        assert "own_choice/acc,none" in said
        if "--json" in line:
            assert json.loads(said)
    exec(compile(blocks("python")[0], "general-ability.md", "exec"), {})
    assert "own_choice/acc,none" in capsys.readouterr().out

    def log_probs(name):
        rows = (tmp_path / "out" / name / "own_choice.samples.jsonl").read_text().splitlines()
        return [choice[0] for row in rows for choice in json.loads(row)["resps"]]

    assert len(log_probs("full")) == 4
    assert log_probs("silenced") != log_probs("full") != log_probs("full-nf4")
