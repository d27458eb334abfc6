"""Whoever checks or lists folders is told what could not be read there."""

import os
from pathlib import Path

import pytest

from lensaudit.cli.main import run
from lensaudit.files import write_json
from lensaudit.results.locate import locate
from lensaudit.results.manifest import Manifest
from lensaudit.results.run_log import find_runs


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A result, beside one that may not be read and a folder that may not be listed."""
    for name in ("good", "files"):
        (folder := tmp_path / name).mkdir()
        write_json(folder / "summary.json", {"score": "uds", "uds": 0.5, "n": 4})
        (folder / "layers.csv").write_text("idx,layer\n")
        Manifest("patch", options={}, inputs={}).write(folder, ["summary.json", "layers.csv"])
    (tmp_path / "listed").mkdir()

    def refusing(real, where):
        def opened(path, *args, **kwargs):
            if where(Path(path)):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *args, **kwargs)

        return opened

    monkeypatch.setattr(os, "scandir", refusing(os.scandir, lambda path: path.name == "listed"))
    for name in ("open", "read_bytes"):
        real = getattr(Path, name)
        monkeypatch.setattr(Path, name, refusing(real, lambda path: path.parent.name == "files"))
    return tmp_path


def test_verify_names_what_it_may_not_read_and_does_not_call_it_changed(closed, capsys):
    assert run(["verify", str(closed)]) == 4
    said = capsys.readouterr()
    assert f"{closed / 'listed'}: access refused (Permission denied)" in said.out
    assert f"{closed / 'files' / 'manifest.json'}: access refused" in said.out
    assert "compared: 1 result; 0 damaged; 3 cannot be read" in said.out
    assert "3 cannot be read, so nobody can check" in said.err
    assert run(["verify", str(closed / "good")]) == 0
    assert capsys.readouterr().out == "compared: 1 result; 0 damaged\n"


def test_a_link_to_nowhere_is_damage_and_not_what_cannot_be_read(tmp_path, capsys):
    (tmp_path / "manifest.json").symlink_to("nowhere.json")
    assert run(["verify", str(tmp_path)]) == 4
    said = capsys.readouterr()
    assert f"{tmp_path / 'manifest.json'}: no such file" in said.out
    assert "1 damaged" in said.out
    assert "cannot be read" not in said.out + said.err


def test_a_list_of_runs_and_a_search_of_results_name_a_folder_that_they_may_not_list(closed):
    told = []
    assert [one.folder.name for one in find_runs([closed], told.append)] == ["good"]
    assert f"{closed / 'listed'}: cannot be read (Permission denied); runs in it" in told[-1]
    found, left = locate([closed])
    assert [(one.path, one.reason) for one in left] == [
        (str(closed / "listed"), "cannot be read (Permission denied)")
    ]
    # a result that may not be read is found: its reader says why it has none
    assert closed / "files" / "summary.json" in [one.path for one in found]
