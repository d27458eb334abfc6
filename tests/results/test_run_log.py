"""The log of runs is what manifests say; runs differ by what can move a number."""

import json
import re

import pytest

from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.files import write_json
from lensaudit.results.records import mark_of, signed
from lensaudit.results.run_log import compare, find_runs, read_run, remove


def made(folder, *, uds=0.5, tau=0.05, weights="sha256:a", torch="2.13", when="2026-01-01T00:00"):
    """A folder as `patch` leaves it, with what is looked at here."""
    folder.mkdir(parents=True)
    manifest = {
        "command": "patch",
        "options": {"tau": tau, "batch_size": None, "device": "cpu"},
        "inputs": {
            "full": {"name": "full", "weights": "sha256:f"},
            "source": {"name": str(folder), "weights": weights},
            "examples": {"n": 4, "hash": "e"},
        },
        "device": "cpu",
        "seconds": 1.5,
        "finished": when,
        "versions": {"torch": torch},
        "git_commit": None,
    }
    write_json(folder / "summary.json", {"score": "uds", "uds": uds, "n": 4})
    files = {"summary.json": vars(mark_of(folder / "summary.json"))}
    write_json(folder / "manifest.json", signed({**manifest, "files": files}))
    return folder


def test_runs_are_found_by_their_manifests_the_latest_first(tmp_path):
    made(tmp_path / "a", when="2026-01-01T00:00")
    made(tmp_path / "deep" / "b", when="2026-01-02T00:00", uds=0.25)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "manifest.json").write_text("[]")
    found = find_runs([tmp_path])
    assert [one.folder.name for one in found] == ["b", "a"]
    assert (found[0].score, found[0].value, found[0].data) == ("uds", 0.25, "4 examples")
    assert found[0].models["full"] == "full"
    assert found[0].model == str(tmp_path / "deep" / "b")
    with pytest.raises(InputError, match="no such folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="finished run"):
        read_run(tmp_path / "deep")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tau": 0.1}, r"explained by options\.tau: 0\.05 -> 0\.1"),
        ({"weights": "sha256:b"}, r"explained by inputs\.source\.weights: sha256:a -> sha256:b"),
        ({"torch": "2.14"}, r"nothing that was asked for differs, but versions\.torch"),
        ({}, "nothing that is recorded differs"),
        ({"tau": 0.1, "weights": "sha256:b"}, "2 things could explain it"),
    ],
)
def test_a_difference_is_put_down_to_what_can_move_a_number(tmp_path, changes, said):
    first = read_run(made(tmp_path / "a"))
    second = read_run(made(tmp_path / "b", uds=0.75, when="2026-02-02T00:00", **changes))
    found = compare(first, second)
    assert found.values == {"uds": (0.5, 0.75)}
    assert re.search(said, found.sentence()), found.sentence()
    # the name of the source and the hour differ as well, and move nothing
    idle = {one.name for one in found.of("does not matter")}
    assert idle == {"inputs.source.name", "finished"}


def test_equal_numbers_need_no_reason(tmp_path):
    first, second = read_run(made(tmp_path / "a")), read_run(made(tmp_path / "b", tau=0.1))
    assert compare(first, second).sentence().startswith("no number differs, though options.tau")
    assert compare(first, first).sentence() == "no number differs"


def test_a_run_is_deleted_whole_and_a_model_is_not(tmp_path):
    one = made(tmp_path / "a")
    size = sum(path.stat().st_size for path in one.iterdir())
    assert remove(read_run(one), dry_run=True) == size
    assert one.exists()
    assert remove(read_run(one)) == size
    assert not one.exists()
    model = made(tmp_path / "model")
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match="holds a model"):
        remove(read_run(model))
    (tmp_path / "link").symlink_to(model)
    with pytest.raises(InputError, match="is a link"):
        remove(read_run(tmp_path / "link"))


def test_the_commands_list_show_compare_and_delete(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LENSAUDIT_OUT", str(tmp_path))
    made(tmp_path / "a")
    made(tmp_path / "b", uds=0.75, tau=0.1)
    assert run(["runs", "ls", "--json"]) == 0
    assert [one["value"] for one in json.loads(capsys.readouterr().out)] == [0.75, 0.5]
    assert run(["runs", "ls", "--command", "eval"]) == 0
    assert "no runs" in capsys.readouterr().out
    assert run(["runs", "ls"]) == 0
    assert "uds 0.75" in capsys.readouterr().out
    assert run(["runs", "show", "b"]) == 0
    assert "tau: 0.1" in capsys.readouterr().out
    assert run(["runs", "diff", "a", "b"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("explained by options.tau")
    assert run(["runs", "rm", "a", "gone"]) == 2
    assert (tmp_path / "a").exists()
    assert run(["runs", "rm", "a", "b", "--dry-run"]) == 0
    assert run(["runs", "rm", "a"]) == 0
    capsys.readouterr()
    assert [one.folder.name for one in find_runs([tmp_path])] == ["b"]


@pytest.mark.parametrize("of", ["summary.json", "manifest.json"])
def test_an_edited_run_is_neither_shown_nor_compared(tmp_path, capsys, of):
    for name in "ab":
        made(tmp_path / name)
    path = tmp_path / "b" / of
    assert run(["runs", "diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    path.write_text(path.read_text().replace("0.5" if of == "summary.json" else "0.05", "0.9"))
    capsys.readouterr()
    for command in (["show"], ["diff", str(tmp_path / "a")]):
        assert run(["runs", *command, str(path.parent)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert f"{of}: was changed" in said.err or f"{of}: has" in said.err


@pytest.mark.parametrize(
    "change", [{"options": []}, {"inputs": 3}, {"seconds": "x"}, {"command": 1}]
)
def test_a_manifest_of_another_shape_is_told_in_a_line(tmp_path, capsys, change):
    path = made(tmp_path / "a") / "manifest.json"
    write_json(path, signed({**json.loads(path.read_text()), **change}))
    assert run(["runs", "show", str(tmp_path / "a")]) == 2
    assert f"manifest.json: {next(iter(change))}: found" in capsys.readouterr().err
