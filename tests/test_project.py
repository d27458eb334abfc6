"""The project file: what it may say, where its places lie, and who reads it."""

import subprocess
import sys
from pathlib import Path

import pytest

from lensaudit.errors import InputError
from lensaudit.project import find_project, read_project


def written(folder, text):
    file = folder / "lensaudit.toml"
    file.write_text(text)
    return file


def test_places_are_relative_to_the_file_and_names_stay(tmp_path, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "lora").mkdir()
    file = written(
        tmp_path,
        'full = "full"\nretain = "demo/retain"\nsources = ["./npo", "org/model", "full+lora"]\n'
        'forget = "rows/qa.jsonl"\nout = "found"\n[patch]\ntau = 0.1\n[steer.audit]\nfolds = 3\n',
    )
    monkeypatch.chdir(tmp_path)
    found = read_project(file)
    assert found.full == "./full"  # a folder beside the file, not the published model of that name
    assert found.retain == ("demo/retain",)
    assert found.sources == ("./npo", "org/model", "./full+./lora")
    assert (found.forget, found.data) == (Path("rows/qa.jsonl"), "rows/qa.annotated.json")
    assert found.commands == {"patch": {"tau": 0.1}, "steer audit": {"folds": 3}}
    assert found.activations is None

    (below := tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(below)
    found = read_project(find_project())
    assert str(find_project()) == "../../lensaudit.toml"
    assert found.full == "../../full"
    assert (found.out, found.activations) == (Path("../../found"), Path("../../activations"))


def test_all_problems_are_listed_at_once(tmp_path):
    file = written(tmp_path, 'ful = "x"\nretain = [1]\nbatch_size = "many"\ndata = 3\n')
    with pytest.raises(InputError) as error:
        read_project(file)
    for said in ("'ful', did you mean full?", "retain is not text", "batch_size", "data is not"):
        assert said in str(error.value)
    with pytest.raises(InputError, match="not TOML"):
        read_project(written(tmp_path, "full = "))


def test_a_set_is_named_and_a_file_is_a_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_project(written(tmp_path, 'data = "forget10"')).data == "forget10"
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    assert read_project(written(tmp_path, 'data = "set.json"')).data == "../set.json"


def test_help_reads_no_project(tmp_path):
    written(tmp_path, "not TOML at all")
    code = (
        "import sys; from lensaudit.cli.main import run;"
        "print(run(['--help']), 'tomllib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 False"
