"""docs/judge.md: its commands run in order against a server; its figures are those of the code."""

import json
import re
import shlex

import pytest
from support.pages import page

from lensaudit.cli.main import run
from lensaudit.judge.calibrate import calibrate, read_labels, shipped_sets
from lensaudit.judge.programmatic import TRAITS, declines
from lensaudit.judge.prompts import BUILT_IN, MAX_CHARS
from lensaudit.judge.settings import CalibrationSettings

TEXT = page("judge")
PROMPTS = page("doors/judge-prompts")
EVIDENCE = page("evidence/judge")


def blocks(wanted: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"```{re.escape(wanted)}\n(.*?)```", text, re.S)


def test_the_commands_of_the_page_run_in_order(stub_of, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answers.jsonl").write_text(blocks("jsonl answers.jsonl")[0])
    stub = stub_of()
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) >= 9
    for command in commands:
        line = command.replace("http://127.0.0.1:8000/v1", stub.url)
        code = run(shlex.split(line)[1:])
        said = capsys.readouterr()
        assert (code, command) == (0, command), said.err
        assert said.out.strip()
    files = {path.name for path in (tmp_path / "judged").iterdir()}
    assert files >= set(re.findall(r"^\| `(\w+\.\w+)`", TEXT, re.M))


def test_the_python_of_the_page_runs():
    assert blocks("python", PROMPTS)
    for source in blocks("python", PROMPTS):
        exec(compile(source, "judge-prompts.md", "exec"), {})


def test_the_numbers_of_the_page_are_those_of_the_code():
    for name in shipped_sets():
        assert f"| `{name}` | {len(read_labels(name))} |" in EVIDENCE
    assert all(f"`{name}`" in TEXT for name in BUILT_IN)
    assert f"cut at {MAX_CHARS} characters" in TEXT
    by_words = [("idk", "idk"), ("variety", "coherence"), *((one.name, one.name) for one in TRAITS)]
    for judge, labels in by_words:
        assert f"\nlensaudit judge calibrate --by {labels} --words {judge}\n" in EVIDENCE
        found = calibrate(CalibrationSettings(by=labels, words=judge)).spearman
        assert found == pytest.approx(
            float(re.search(rf"^\| `{judge}` \| `{labels}` \| ([\d.]+) \|$", EVIDENCE, re.M)[1]),
            abs=0.005,
        )


def test_four_gold_answers_of_tofu_decline(shared):
    lines = (shared / "data" / "tofu" / "forget10_qa.jsonl").read_text().split("\n")
    answers = [json.loads(line)["answer"] for line in lines if line]
    assert len(answers) == 393
    assert sum(map(declines, answers)) == 4
    assert "takes 4 of 393 gold answers" in EVIDENCE
