"""Folders as people have them: the four commands of the README lead to a page in each."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from support import EMBEDDED
from support.hostile import commands

from lensaudit.cli.main import run
from lensaudit.data.tofu import forget_set
from lensaudit.project import FILE, VARIABLE

ELSEWHERE = Path("/dev/shm")
"""Another file system, where there is one."""


def rows(path, examples, question="question", answer="answer"):
    lines = [
        {question: one.question, answer: one.answer, "author": f"author {one.group}"}
        for one in examples
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def store():
    """A folder outside the project's, on another file system if there is one."""
    parent = ELSEWHERE if os.access(ELSEWHERE, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(dir=parent))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def laid_out(place, layout, store):
    """Models and rows of one layout."""
    names = ["full", "npo"] if "no retain" in layout else ["full", "retain", "npo"]
    (place / "models").mkdir()
    for name in names:
        away = layout in ("linked models", "another disk")
        shutil.copytree(EMBEDDED / name, (store if away else place / "models") / name)
        if layout == "linked models":
            (place / "models" / name).symlink_to(store / name)
    own = ("prompt", "response") if layout == "other fields" else ("question", "answer")
    rows(place / "forget_rows.jsonl", forget_set("demo")[:16], *own)
    if layout != "no retain":
        rows(place / "retain_rows.jsonl", forget_set("demo")[-8:], *own)
    if layout == "another disk":
        says = [f'full = "{store}/full"', f'retain = ["{store}/retain"]']
        says += [f'sources = ["{store}/npo"]', 'forget = "forget_rows.jsonl"', 'group = "author"']
        (place / FILE).write_text("\n".join([*says, 'retain_rows = "retain_rows.jsonl"', ""]))


@pytest.mark.parametrize(
    "layout",
    ["linked models", "no retain", "kept rows, no retain", "other fields", "another disk"],
)
def test_four_commands_lead_to_a_page(layout, place, store, monkeypatch, capsys, one_type):
    laid_out(place, layout, store)
    if layout != "another disk":
        assert run(["init"]) == 0
        said = capsys.readouterr()
        assert "next: lensaudit annotate, then lensaudit audit" in said.out
        assert ("never saw the facts was found" in said.err) == ("no retain" in layout)
    if layout in ("linked models", "another disk"):
        # what lies outside is told, with what to do, and read once that is done
        assert run(["audit"]) == 2
        assert f"name it with --project or {VARIABLE}" in capsys.readouterr().err
        monkeypatch.setenv(VARIABLE, str(place / FILE))
    assert run(["annotate"]) == 0
    capsys.readouterr()
    assert run(["audit", "--limit", "4", "--suite", "none", "--association", "none"]) == 0
    left_out = capsys.readouterr().err.count("of the project file left out: --validity-data")
    assert left_out == (layout == "kept rows, no retain")
    assert run(["report", "-o", "page.html"]) == 0
    assert (place / "page.html").stat().st_size > 10_000


CALLS = [
    *("patch --source ./npo", "audit --source ./npo", "sample --source ./npo"),
    *("know --source ./npo", "cache --model ./npo", "eval --model ./npo"),
    *("effort --source ./npo --retain ./retain", "rtt run --source ./npo --retain ./retain"),
    *("relearn --source ./npo --out x", "unlearn --method NPO --model ./npo --out x"),
    *("steer audit --source ./npo", "sweep plan ./npo --retain ./retain --out x"),
    "worst --source ./npo --retain ./retain",
    "meta faithfulness --pool-knows ./full --pool-forgot ./npo --retain ./retain --out x",
    "meta robustness --source ./npo --retain ./retain --attack relearn --filter none --out x",
]
"""Every command that asks a model about rows, with own folders and none named."""


@pytest.mark.parametrize("call", CALLS)
def test_own_folders_are_never_asked_about_rows_that_nobody_named(call, place, capsys):
    for name in ("full", "retain", "npo"):
        (place / name).symlink_to(EMBEDDED / name)
    anchored = " --full ./full" * (call.split()[0] not in ("know", "cache", "unlearn", "relearn"))
    assert run([*call.split(), *anchored.split(), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "a folder of your own; name the rows to ask it about with --data" in said
    assert len(said.splitlines()) == 1


BETWEEN = [
    *("patch --source ./npo", "audit --source ./npo", "sample --source ./npo --retain ./retain"),
    *("worst --source ./npo", "worst --source ./npo --full ./full", "effort --source ./npo"),
    *("rtt run --source ./npo", "relearn --source ./npo --audit", "steer audit --source ./npo"),
    *("sweep plan ./npo --out x", "watch . --once", "watch . --once --full ./full"),
    "meta faithfulness --pool-knows ./full --pool-forgot ./npo --out x",
    "meta robustness --source ./npo --attack relearn --filter none --out x",
]
"""Every command that reads a model between others, with own folders and others left unnamed."""
NAMES_NONE = {"eval", "gym make", "gym submit", "meta aggregate"}
"""A depth inside `eval` asks as `patch`, the gym brings its models, and the last reads results."""


@pytest.mark.parametrize("call", BETWEEN)
def test_no_command_reads_own_folders_between_published_models(call, place, capsys):
    for name in ("full", "retain", "npo"):
        (place / name).symlink_to(EMBEDDED / name)
    rows = ["--data", "forget10" if call.startswith("watch") else "demo"]
    assert run([*call.split(), *rows, *["--dry-run"] * ("watch" not in call)]) == 2
    said = capsys.readouterr().err
    assert "of your own; name the model before" in said or "; name a model that never saw" in said
    assert len(said.splitlines()) == 1


def test_every_command_with_a_full_model_is_among_them():
    asked = {name for name, one in commands() if any("--full" in o.opts for o in one.params)}
    named = {one for one in asked if any(call.startswith(one) for call in BETWEEN)}
    assert asked - named == NAMES_NONE


def test_checkpoints_that_are_watched_are_asked_about_named_rows_alone(place, capsys):
    (place / "run").mkdir()
    assert run(["watch", "run", "--once", "--full", "demo/full", "--retain", "demo/retain"]) == 2
    assert "run: checkpoints of your own; name the rows" in capsys.readouterr().err


def test_a_name_that_a_folder_has_too_is_the_names_and_told_once(place, capsys):
    (place / "demo").mkdir()
    (place / "demo" / "npo").symlink_to(EMBEDDED / "simnpo")
    assert run(["patch", "--source", "demo/npo", "--limit", "2", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert said.err.count("demo/npo: the model of that name; the folder is ./demo/npo") == 1
    assert "source demo/npo" in said.out


OF_DEMO = ["eval --model", "audit --source", "effort --source", "rtt run --source", "sweep plan"]


@pytest.mark.parametrize("call", OF_DEMO)
def test_a_folder_called_demo_is_not_the_data_demo(call, place, capsys):
    (place / "demo").mkdir()
    size = ["--limit", "4"] * (call != "rtt run --source")
    typed = [*call.split(), "demo/npo", "--out", "x", "--dry-run", *size]
    for data in ("demo", "./demo"):
        # the folder is empty
        assert run([*typed, "--data", data]) == (0 if data == "demo" else 2)
    assert "demo: " in capsys.readouterr().err


def test_a_sweep_without_a_retain_model_says_what_to_name_at_once(place, capsys):
    for name in ("full", "npo"):
        (place / name).symlink_to(EMBEDDED / name)
    for last in ([], ["--dry-run"]):
        call = "sweep plan ./npo --full ./full --data demo --out s"
        assert run([*call.split(), *last]) == 2
        said = capsys.readouterr().err
        assert said.startswith("lensaudit: --retain: a sweep compares every model with one")
        assert "none:" not in said
    assert not (place / "s").exists()
