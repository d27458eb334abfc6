"""The log of runs is what manifests say; runs differ by what can move a number."""

import json
import os
import re
import shutil
import socket

import click
import numpy as np
import pytest
from support import lay_out

from lensaudit.cli import terminal
from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.evaluation.store import kept
from lensaudit.files import write_json
from lensaudit.partials import partial_path
from lensaudit.results.ledger import Ledger
from lensaudit.results.locate import locate
from lensaudit.results.manifest import mark_of, signed
from lensaudit.results.run_folder import RunFolder
from lensaudit.results.run_log import compare, difference, find_runs, read_run, remove
from lensaudit.turns import in_turn


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
    files = {"summary.json": mark_of(folder / "summary.json")}
    write_json(folder / "manifest.json", signed({**manifest, "files": files}))
    return folder


def test_runs_are_found_by_their_manifests_the_latest_first(tmp_path):
    made(tmp_path / "a", when="2026-01-01T00:00")
    made(tmp_path / "deep" / "b", when="2026-01-02T00:00", uds=0.25)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "manifest.json").write_text("[]")
    told = []
    found = find_runs([tmp_path], told.append)
    assert [one.folder.name for one in found] == ["b", "a"]
    (line,) = told
    assert line.startswith(f"{tmp_path / 'c' / 'manifest.json'}: ")
    assert line.endswith("; the run is left out")
    assert (found[0].score, found[0].value, found[0].data) == ("uds", 0.25, "4 examples")
    assert found[0].models["full"] == "full"
    assert found[0].model == str(tmp_path / "deep" / "b")
    with pytest.raises(InputError, match="no such folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="finished run"):
        read_run(tmp_path / "deep")
    made(tmp_path.joinpath(*"123456789012"), when="2026-01-03T00:00")
    assert [one.folder.name for one in find_runs([tmp_path])] == ["2", "b", "a"]
    assert len(locate([tmp_path])[0]) == 3


@pytest.mark.parametrize("named", ["summary.json", "model.safetensors"])
@pytest.mark.parametrize("letter", ['"finished"', '"files"', "2026-01-01"])
def test_a_manifest_that_was_changed_is_told_whatever_it_tells_of(tmp_path, named, letter):
    folder = made(tmp_path / "a")
    place = folder / "manifest.json"
    if named != "summary.json":  # as `unlearn` leaves it: weights, and no numbers
        (folder / "summary.json").rename(folder / named)
        content = json.loads(place.read_text())
        write_json(place, signed({**content, "files": {named: mark_of(folder / named)}}))
    told = []
    find_runs([tmp_path], told.append)
    assert told == []
    place.write_text(place.read_text().replace(letter, letter[:-2] + "x" + letter[-1]))
    (found,) = find_runs([tmp_path], told.append)
    says = "manifest.json: was changed after the run wrote it; its numbers are left out"
    assert told == [f"{folder}: {says}"]
    assert not found.values


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
    idle = {one.partition(":")[0] for one in found.of("does not matter")}
    assert idle == {"inputs.source.name", "finished"}


def rewritten(folder, change):
    """The run of a folder whose manifest was made with other content."""
    content = json.loads((folder / "manifest.json").read_text())
    write_json(folder / "manifest.json", signed(change(content)))
    return read_run(folder)


@pytest.mark.parametrize("told", ["data_digest", "n"])
def test_where_rows_lay_explains_nothing_where_their_hash_is_recorded(tmp_path, told):
    one, other = (
        rewritten(
            made(tmp_path / name, uds=uds),
            lambda had, name=name, length=length: (
                had
                | {"options": {"data": f"{name}/rows.json", "max_new_tokens": length}}
                | {"inputs": {"data": f"{name}/rows.json", told: "d"}}
            ),
        )
        for name, uds, length in (("a", 0.5, 8), ("b", 0.75, 9))
    )
    found = compare(one, other)
    names = {line.partition(":")[0] for line in found.of("explains")}
    places = {"options.data", "inputs.data"} if told == "n" else set()
    assert names == {"options.max_new_tokens"} | places


def test_scores_of_other_versions_may_explain_and_how_many_there_are_does_not(tmp_path):
    def by(name, **scored):
        folder = made(tmp_path / name, uds=len(name) / 4)
        return rewritten(
            folder, lambda had: had | {"inputs": had["inputs"] | {"scores_computed_by": scored}}
        )

    first, fewer, later = by("a", old=256), by("aa", old=128), by("aaa", old=128, new=128)
    assert compare(first, fewer).sentence() == "nothing that is recorded differs"
    line = "inputs.scores_computed_by.new: not recorded -> true"
    assert compare(fewer, later).of("may explain") == [line]


def test_a_unit_of_a_sweep_is_listed_once_by_its_name(tmp_path):
    units = tmp_path / "s" / "units"
    made(units / "2cf7" / "patch")
    made(units / "fc57" / "patch", uds=0.7)  # not collected yet
    shutil.copytree(units / "2cf7" / "patch", tmp_path / "s/results/base/npo/patch")
    names = [one.folder.relative_to(tmp_path).as_posix() for one in find_runs([tmp_path])]
    assert sorted(names) == ["s/results/base/npo/patch", "s/units/fc57/patch"]


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
    (model / "config.json").unlink()  # lost, and still a model
    with pytest.raises(InputError, match="holds a model"):
        remove(read_run(model), dry_run=True)
    (tmp_path / "link").symlink_to(model)
    with pytest.raises(InputError, match="is a link"):
        remove(read_run(tmp_path / "link"))


def with_text(text):
    return lambda at: at.write_text(text)


def as_pipe(at):
    os.mkfifo(at)


def as_socket(at):
    here = os.getcwd()
    os.chdir(at.parent)  # a socket's address is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(at.name)
    os.chdir(here)


FOREIGN = {
    "thesis.tex": with_text("years of work"),
    ".git/config": with_text("[core]"),
    "manifest.json": with_text('{"name": "My PWA"}'),
    "other_manifest.json": with_text('{"command": "patch", "files": {"index.html": {}}}'),
    "package.json": with_text('{"check": "' + "0" * 32 + '"}'),
    "rows.jsonl": with_text('{"question": "?"}\n'),
    "results.npz": with_text("PK"),
    "passes/mine.npz": with_text("PK"),
    "weights.safetensors": with_text("x"),
    "notes.partial": with_text("not named as ours are"),
    "summary.json.bak": with_text("{}"),
    "linked": lambda at: at.symlink_to("/etc"),
    "linked.json": lambda at: at.symlink_to("/etc/hostname"),
    "pipe": as_pipe,
    "socket": as_socket,
}
"""Name below a result folder -> how somebody else puts it there."""


@pytest.mark.parametrize("depth", ["", "sub", "sub/a/b"])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_with_anything_of_others_stays_and_that_is_named(tmp_path, name, depth):
    folder = made(tmp_path / "run")
    inner = made(folder / "sub")  # a run of ours inside
    at = (inner if (depth, name) == ("", "manifest.json") else folder) / depth / name
    if depth == "sub" and name == "manifest.json":
        at = folder / "site" / name
    at.parent.mkdir(parents=True, exist_ok=True)
    at.unlink(missing_ok=True)
    FOREIGN[name](at)
    before = sorted(folder.rglob("*"))
    with pytest.raises(InputError) as error:
        remove(read_run(folder), inner=[inner])
    assert at.relative_to(folder).as_posix() in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "content",
    [
        {"name": "My PWA"},
        {"name": "My PWA", "command": "serve", "files": {"index.html": {}}},
        signed({"name": "My PWA", "command": "serve", "files": {"index.html": {}}}),
    ],
)
def test_the_manifest_of_another_program_deletes_nothing(tmp_path, capsys, content):
    (tmp_path / "index.html").write_text("<html>")
    write_json(tmp_path / "manifest.json", content)
    assert run(["runs", "rm", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert (tmp_path / "index.html").exists()


def test_what_a_signed_manifest_of_another_program_names_is_not_ours(tmp_path):
    site = made(tmp_path / "run") / "site"
    site.mkdir()
    (site / "index.html").write_text("<html>")
    write_json(site / "manifest.json", signed({"name": "My PWA", "files": {"index.html": {}}}))
    with pytest.raises(InputError, match=r"site/index\.html"):
        remove(read_run(site.parent))
    assert (site / "index.html").exists()


def resealed(folder, change):
    content = json.loads((folder / "manifest.json").read_text())
    change(content)
    write_json(folder / "manifest.json", signed(content))


@pytest.mark.parametrize(
    "name", ["../witness", "a/../../witness", "/etc/hostname", "", ".", "a\0b", "a\0/b"]
)
def test_a_manifest_deletes_nothing_outside_its_folder(tmp_path, name):
    folder = made(tmp_path / "run")
    (tmp_path / "witness").write_text("x")
    resealed(folder, lambda content: content["files"].update({name: {}}))
    with pytest.raises(InputError, match="not below its folder"):
        remove(read_run(folder))
    assert (tmp_path / "witness").exists()
    assert (folder / "summary.json").exists()


def test_a_manifest_deletes_nothing_behind_a_link(tmp_path):
    folder, thesis = made(tmp_path / "run"), tmp_path / "mine" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("x")
    (folder / "sub").symlink_to(thesis.parent)
    resealed(folder, lambda content: content["files"].update({"sub/thesis.tex": {}}))
    with pytest.raises(InputError, match="not below its folder"):
        RunFolder(usual=folder, command="patch", key="another", force=True).begin()
    assert thesis.exists()
    assert (folder / "summary.json").exists()


def test_a_run_writes_nothing_through_a_link(tmp_path):
    folder, thesis = made(tmp_path / "run"), tmp_path / "thesis.tex"
    thesis.write_text("x")
    (folder / "latest").symlink_to("summary.json")
    (folder / ".venv").mkdir()
    (folder / ".venv" / "python").symlink_to(thesis)
    RunFolder(usual=folder, command="patch", key="another", force=True).begin()
    (folder / "facts.csv").symlink_to(thesis)
    with pytest.raises(InputError, match=r"facts\.csv: is a link"):
        RunFolder(usual=folder, command="patch", key="another", force=True).begin()


def test_an_edited_manifest_and_one_without_hashes_delete_nothing(tmp_path):
    edited, old = made(tmp_path / "edited"), made(tmp_path / "old")
    path = edited / "manifest.json"
    path.write_text(path.read_text().replace("0.05", "0.06"))
    content = json.loads((old / "manifest.json").read_text())
    write_json(old / "manifest.json", {k: v for k, v in content.items() if k != "check"})
    for folder in (edited, old):
        with pytest.raises(InputError, match=r"changed after|no checksum"):
            remove(read_run(folder))
        assert (folder / "summary.json").exists()


def test_what_a_run_keeps_for_the_next_goes_with_it_and_a_model_below_stays(tmp_path):
    folder = made(tmp_path / "run")
    made(folder / "inner")
    (folder / "inner" / "summary.json").unlink()  # named and gone
    kept([folder / "passes"], "text", "0" * 32, lambda: [{"a": np.zeros(2)}])
    Ledger(folder / "log.jsonl", "jobs", {"a": 1}).append([{"row": 1}])
    write_json(folder / "begun.json", {"command": "patch"})
    write_json(folder / "cells.json", signed({"key": "k"}))
    partial_path(folder / "rows.json").write_text("{")
    for name in ("batch_state.json", "batch-requests-1.jsonl", "batch-b-1-0123abcd-output.jsonl"):
        (folder / name).write_text("x")
    (model := folder / "inner" / "checkpoint").mkdir()
    (model / "adapter_config.json").write_text("{}")
    (model / "adapter_model.safetensors").write_text("x")
    with pytest.raises(InputError, match="checkpoint: holds a model"):
        remove(read_run(folder), inner=[folder / "inner"])
    for path in model.iterdir():
        path.unlink()
    assert remove(read_run(folder), inner=[folder / "inner"]) > 0
    assert not folder.exists()


def test_another_run_and_its_books_in_a_folder_stay_until_they_are_named(tmp_path, capsys):
    folder = made(tmp_path / "run")
    inner = made(folder / "know")
    kept([inner / "passes"], "text", "0" * 32, lambda: [{"a": np.zeros(2)}])
    before = sorted(folder.rglob("*"))
    for more in ([], ["--dry-run"]):
        assert run(["runs", "rm", str(folder), *more]) == 2
        assert "holds know/manifest.json, know/summary.json, know/" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before
    assert run(["runs", "rm", str(folder), str(inner)]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == [
        str(inner),
        str(folder),
    ]
    assert not folder.exists()


@pytest.mark.parametrize("place", ["know/book.jsonl", "act/passes/book.jsonl"])
def test_books_in_the_folder_of_no_manifest_are_not_the_runs(tmp_path, place):
    folder = made(tmp_path / "run")
    Ledger(folder / place, "know", {"a": 1}).append([{"row": 1}])
    (folder / place).with_name("mark.json").write_text(json.dumps(signed({"a": 1})))
    with pytest.raises(InputError, match=re.escape(f"holds {place}, ")):
        remove(read_run(folder))
    assert (folder / place).exists()


@pytest.mark.parametrize(
    ("golden", "inner"),
    [
        ("eval_retain:out", "retain"),
        ("relearn_audit:experiments/out/demo-npo-relearn", "before/demo-npo"),
    ],
)
def test_runs_that_a_run_made_for_its_own_go_with_it(tmp_path, golden, inner):
    folder = lay_out(golden, tmp_path / "run")
    assert (folder / inner / "manifest.json").exists()
    for path in folder.rglob("*<key>*"):  # as goldens call what differs from run to run
        path.unlink()
    remove(read_run(folder))
    assert not folder.exists()


def test_what_lies_beside_a_manifest_that_a_run_names_is_the_runs(tmp_path):
    folder = made(tmp_path / "run")
    part = made(folder / "eval")
    kept([part / "passes"], "text", "0" * 32, lambda: [{"a": np.zeros(2)}])
    names = [f"eval/{one}" for one in ("manifest.json", "summary.json")]
    marks = {name: mark_of(folder / name) for name in names}
    resealed(folder, lambda content: content["files"].update(marks))
    assert remove(read_run(folder)) > 0
    assert not folder.exists()


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
    assert run(["runs", "rm", "a", "./a"]) == 0
    capsys.readouterr()
    assert [one.folder.name for one in find_runs([tmp_path])] == ["b"]


def test_where_a_process_works_nothing_is_deleted(tmp_path, capsys):
    folder = lay_out("patch:out", tmp_path / "a")
    before = sorted(folder.rglob("*"))
    with in_turn(folder):
        assert run(["runs", "rm", str(folder)]) == 75
    assert "another process works in it; run again later" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before
    assert run(["runs", "rm", str(folder)]) == 0
    assert not folder.exists()


def test_a_remark_is_one_line_whatever_a_folder_is_called(tmp_path, capsys):
    with click.Context(click.Command("x")):
        terminal.notice(f"{tmp_path}/z\nlensaudit: all is well: held another run")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_of_two_runs_other_models_are_told_first():
    def asked(name, weights):
        return {"inputs": {"weights": [weights], "source": {"name": name, "weights": weights}}}

    said = difference(asked("demo/npo", "a"), asked("demo/graddiff", "b"))
    assert said == "source.name: demo/npo, here demo/graddiff"
