"""The documentation is true: commands run, Python runs, links and files exist.

Blocks marked `sh` and `python` are run page by page, in one folder, from the top. `sh hub` needs
the Hub and must say so in one line without it; `sh yours` names files of the reader's and is only
parsed; `sh fails` ends with 4, as a gate does. A block marked `jsonl NAME` or `toml NAME` is a file
that later commands read.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from lensaudit.cli.main import COMMANDS, cli, run

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = (
    "tutorial",
    "gate",
    "project",
    "own-model",
    "own-forget-set",
    "python",
    "terminal",
    "uds",
    "gym",
    "comparison",
    "sweep",
    "effort",
    "collateral",
    "worst_case",
    "know",
)
FAST = ("gate", "project", "own-forget-set", "terminal")
"""Run by default; the others take 10 to 60 seconds each and are `slow`."""


def text_of(page):
    return (DOCS / f"{page}.md").read_text()


def blocks(page):
    """Language, name or kind, and content of every fenced block."""
    return re.findall(r"```(\w+)(?: ([\w.-]+))?\n(.*?)```", text_of(page), re.S)


def commands(block):
    lines = (re.split(r"\s#", line)[0].strip() for line in block.splitlines())
    return [line for line in lines if line.startswith("lensaudit ")]


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=[] if p in FAST else [pytest.mark.slow]) for p in PAGES]
)
def test_the_commands_and_the_python_of_a_page_run_in_order(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    n_run = 0
    for language, kind, content in blocks(page):
        if language == "jsonl" or (language == "toml" and kind):
            (tmp_path / kind).write_text(content)
        elif language == "python":
            exec(compile(content, f"{page}.md", "exec"), {})
            n_run += 1
        elif language == "sh" and kind in ("", "fails"):
            for command in commands(content):
                code = run(shlex.split(command)[1:])
                said = capsys.readouterr()
                assert (code, command) == (4 if kind else 0, command), said.err[-500:]
                assert said.out.strip(), command
                n_run += 1
    assert n_run >= 1


def commands_of(page, wanted):
    """Of the `sh` blocks of one kind."""
    every = [(kind, content) for language, kind, content in blocks(page) if language == "sh"]
    return [one for kind, content in every if kind == wanted for one in commands(content)]


OF_READERS = [page for page in PAGES if commands_of(page, "yours")]
OF_THE_HUB = [page for page in PAGES if commands_of(page, "hub")]


def test_some_pages_have_commands_on_the_readers_files_and_on_the_hubs():
    assert {"own-model", "sweep"} <= {*OF_READERS, *OF_THE_HUB}
    assert OF_READERS
    assert OF_THE_HUB


@pytest.mark.parametrize("page", OF_READERS)
def test_commands_on_the_readers_own_files_are_well_formed(page):
    for command in commands_of(page, "yours"):
        name, *arguments = shlex.split(command)[1:]
        found = cli.get_command(click.Context(cli), name)
        assert found is not None, name
        found.make_context(name, arguments, parent=click.Context(cli))


@pytest.mark.parametrize("page", OF_THE_HUB)
def test_commands_that_need_the_hub_say_so_in_one_line(page, tmp_path, monkeypatch, capsys):
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for command in commands_of(page, "hub"):
        assert run(shlex.split(command)[1:]) == 2
        said = capsys.readouterr().err
        assert "not in the local cache" in said or "cannot be fetched" in said
        assert len(said.strip().splitlines()) <= 3


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda p: p.name)
def test_every_link_leads_somewhere(path):
    targets = re.findall(r"\]\((?!http)([^)#\s]+)\)", path.read_text())
    assert [t for t in targets if not os.path.exists(path.parent / t)] == []


def test_the_index_lists_every_page_that_is_tested_here():
    index = (DOCS / "README.md").read_text()
    assert [page for page in PAGES if f"({page}.md)" not in index] == []


def elsewhere():
    """Pages whose commands another test file runs: it names the page and runs `sh` blocks."""
    tests = [one.read_text() for one in Path(__file__).parent.glob("*/test_*.py")]
    return {
        page.stem
        for page in DOCS.glob("*.md")
        for text in tests
        if f'"{page.name}"' in text and "```" in text and "run(" in text
    }


def test_every_page_with_commands_is_run_by_a_test():
    with_commands = {
        page.stem
        for page in DOCS.glob("*.md")
        if any("lensaudit " in content for _, _, content in blocks(page.stem))
    }
    assert with_commands >= {"steering", "lm_eval", "tutorial"}
    assert with_commands - set(PAGES) - elsewhere() == set()


MENTIONED = sorted(
    (page.name, command)
    for page in (DOCS.parent / "README.md", DOCS.parent / "CHANGELOG.md", *DOCS.glob("*.md"))
    for command in re.findall(
        r"`lensaudit ([a-z][^`]*)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    )
)


def test_commands_and_options_in_the_text_exist():
    assert len(MENTIONED) > 50
    odd = []
    for page, text in MENTIONED:
        found, words = cli, shlex.split(text)
        while isinstance(found, click.Group) and words and re.fullmatch("[a-z][a-z-]*", words[0]):
            found = found.get_command(click.Context(found), words.pop(0))
        known = {option for one in found.params for option in one.opts} if found else set()
        unknown = [word for word in words if word[:2] == "--" and word not in known]
        if found is None or unknown:
            odd.append((page, text))
    assert odd == []


def test_the_exit_codes_of_the_pages_are_those_of_the_errors():
    from lensaudit import errors

    table = dict(re.findall(r"^\| (\d+) \| (.+?) \|$", text_of("terminal"), re.M))
    codes = {str(kind.exit_code) for kind in vars(errors).values() if hasattr(kind, "exit_code")}
    assert codes | {"0", "130"} == table.keys()
    readme = (DOCS.parent / "README.md").read_text()
    assert dict(re.findall(r"^\| (\d+) \| (.+?) \|$", readme, re.M)) == table


def test_the_agreement_of_the_page_is_that_of_the_experiment():
    stated = (DOCS.parent / "experiments" / "annotation_agreement.py").read_text()
    rows = re.findall(r"^(\d+ to \d+) +(\d+)" + 5 * r" +([\d.]+)" + "$", stated, re.M)
    assert [row[0] for row in rows] == ["0 to 9", "10 to 19"]
    for row in rows:
        shares = " | ".join(f"{round(100 * float(share))} %" for share in row[2:])
        assert f"| {row[0]} | {row[1]} | {shares} |" in text_of("own-forget-set")


def test_every_command_is_in_the_reference():
    reference = (DOCS / "reference" / "commands.md").read_text()
    assert [name for name in COMMANDS if f"## lensaudit {name}\n" not in reference] == []


def test_the_reference_is_current():
    # a process of its own: click keeps the help option a command was first called with
    script = [sys.executable, str(DOCS / "make_reference.py"), "--check"]
    ended = subprocess.run(script, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
