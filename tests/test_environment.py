"""What do environment variables change? One rule, and one table."""

import logging
import os
import re
from dataclasses import fields
from pathlib import Path

import pytest
from support import lay_out

import lensaudit as la
from lensaudit import settings
from lensaudit.cli.main import run
from lensaudit.patching.settings import PatchSettings
from lensaudit.project import read_project
from lensaudit.settings import activations_folder, results_folder

ROOT = Path(__file__).resolve().parents[1]
NAME = re.compile(r"(?<![A-Z_])LENSAUDIT_[A-Z_]+")


def test_the_page_lists_every_variable_of_the_package_and_no_other():
    read = {
        name
        for path in (ROOT / "lensaudit").rglob("*.py")
        for name in NAME.findall(path.read_text())
    }
    page = (ROOT / "docs" / "environment.md").read_text()
    assert set(re.findall(r"^\| `(LENSAUDIT_[A-Z_]+)` \|", page, flags=re.MULTILINE)) == read
    assert len(page.split()) <= 450


def test_a_folder_is_where_the_option_says_else_the_variable_else_the_file(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LENSAUDIT_OUT", raising=False)
    (tmp_path / "lensaudit.toml").write_text('out = "file"\nactivations = "of-file"\n')
    lay_out("patch:out", tmp_path / "file")
    (tmp_path / "variable").mkdir()

    def said(*words):
        assert run([*words]) == 0
        return capsys.readouterr().out

    def results():
        return read_project("lensaudit.toml").results.name, "demo/npo" in said("runs", "ls")

    ask = ("patch", "--source", "demo/npo", "--limit", "1", "--dry-run")
    assert results() == ("file", True)
    assert "--activations: of-file (lensaudit.toml)" in said(*ask)
    monkeypatch.setenv("LENSAUDIT_OUT", "variable")
    monkeypatch.setenv("LENSAUDIT_ACTIVATIONS", "of-variable")
    assert results() == ("variable", False)
    assert "--activations: of-variable (environment)" in said(*ask)
    assert "--activations: typed (command line)" in said(*ask, "--activations", "typed")
    # an empty variable is none, as the shell has it
    monkeypatch.setenv("LENSAUDIT_OUT", "")
    monkeypatch.setenv("LENSAUDIT_ACTIVATIONS", "")
    assert results() == ("file", True)
    assert "--activations: of-file (lensaudit.toml)" in said(*ask)


def test_a_tilde_is_the_home_folder_where_no_shell_says_so(tmp_path, monkeypatch, capsys):
    home = tmp_path / "home"
    home.mkdir()
    (home / "p.toml").write_text('sources = ["demo/npo"]\nactivations = "of-file"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LENSAUDIT_OUT", "~/out")
    monkeypatch.setenv("LENSAUDIT_ACTIVATIONS", "~/kept")
    assert (results_folder(), activations_folder()) == (home / "out", home / "kept")
    ask = ("patch", "--limit", "1", "--dry-run", "--project=~/p.toml")
    for words, place in (((), "kept"), (("--activations=~/typed",), "typed")):
        assert run([*ask, *words]) == 0
        assert f"--activations: {home / place} (" in capsys.readouterr().out
    monkeypatch.setenv("LENSAUDIT_PROJECT", "~/p.toml")
    assert run(["models"]) == 0
    assert run(["runs", "ls", "~/nowhere"]) == 2
    assert f"{home}/nowhere: no such folder" in capsys.readouterr().err


def test_python_reads_the_variables_when_it_is_called(tmp_path, monkeypatch):
    monkeypatch.setenv("LENSAUDIT_ACTIVATIONS", str(tmp_path / "a"))
    assert PatchSettings().activations == tmp_path / "a"
    assert PatchSettings(activations="b").activations == "b"
    with la.cache_prompts("demo/full", "The river ends", name="mine") as made:
        assert made.folder.parent == tmp_path / "a"
    with la.open_activations("mine") as found:
        assert found.folder == made.folder
    monkeypatch.delenv("LENSAUDIT_ACTIVATIONS")
    assert PatchSettings().activations == settings.ACTIVATIONS
    assert {one.default for one in fields(PatchSettings)} & {settings.ACTIVATIONS} == set()


@pytest.fixture
def sealed(tmp_path, monkeypatch):
    """A working folder in which nobody may write: root may everywhere, so the system's word."""
    monkeypatch.chdir(tmp_path)
    for name in ("LENSAUDIT_OUT", "LENSAUDIT_ACTIVATIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    settings._say_once.cache_clear()
    return tmp_path / "xdg" / "lensaudit"


def said_of(cache, folder):
    variable = {"activations": "LENSAUDIT_ACTIVATIONS"}.get(folder, "LENSAUDIT_OUT")
    used = f"{cache}/{folder} is used"
    return f"{folder} cannot be made here: {used}; {variable} names another folder"


def test_where_nothing_can_be_written_folders_lie_in_the_users_cache(sealed, caplog):
    with caplog.at_level(logging.WARNING, "lensaudit"):
        for _ in range(2):
            assert results_folder() == sealed / "experiments" / "out"
            assert activations_folder() == sealed / "activations"
    assert caplog.messages == [said_of(sealed, one) for one in ("experiments/out", "activations")]


def test_what_is_there_or_named_or_can_be_made_is_not_exchanged(sealed, caplog, monkeypatch):
    Path("activations").mkdir()
    assert str(activations_folder()) == "activations"
    monkeypatch.setenv("LENSAUDIT_OUT", "named")
    assert str(results_folder()) == "named"
    monkeypatch.undo()
    monkeypatch.delenv("LENSAUDIT_OUT", raising=False)
    assert results_folder() == settings.RESULTS
    assert caplog.messages == []


def test_a_command_says_so_in_one_line(sealed, capsys):
    assert run(["activations", "ls"]) == 0
    said = capsys.readouterr().err
    assert said == f"lensaudit: {said_of(sealed, 'activations')}\n"
    settings._say_once.cache_clear()
    assert run(["-q", "activations", "ls"]) == 0
    assert capsys.readouterr().err == ""
