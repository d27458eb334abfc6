import json

import pytest

from lensaudit.errors import InputError
from lensaudit.files import make_folder, write_json
from lensaudit.report.shelf import labels
from lensaudit.results.owner import check_beside, differences, folder_of, folders_for, known_as
from lensaudit.results.run_folder import RunFolder

KIND = ("score",)


def held(folder, run):
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"run": run}))
    return folder


def read(manifest):
    return manifest["run"]


def test_a_folder_is_taken_where_it_is_new_unfinished_or_ones_own(tmp_path):
    run = {"limit": 8, "weights": "a"}
    for wanted in (tmp_path / "new", held(tmp_path / "own", run)):
        assert folder_of(wanted, run, read, named=True, kind=KIND) == wanted
    (begun := tmp_path / "unfinished").mkdir()
    assert folder_of(begun, run, read, named=True, kind=KIND) == begun


def test_another_runs_folder_is_left_to_it(tmp_path):
    wanted, run, said = held(tmp_path / "npo", {"limit": 8}), {"limit": 20}, []
    own = folder_of(wanted, run, read, named=False, tell=said.append, kind=KIND)
    assert own.parent == tmp_path
    assert own.name.startswith("npo-")
    assert said == [
        f"{wanted}: holds the result of another run (limit: 8, here 20); this run goes to {own}"
    ]
    held(own, run)
    # the same command finds it again
    assert folder_of(wanted, run, read, named=False, kind=KIND) == own
    with pytest.raises(InputError, match=r"limit: 8, here 20\); name another --out"):
        folder_of(wanted, run, read, named=True, kind=["limit"])


def test_in_a_named_folder_a_result_of_the_same_kind_is_replaced_and_that_is_told(tmp_path):
    wanted, said = held(tmp_path / "npo", {"score": "uds", "limit": 8}), []
    run = {"score": "uds", "limit": 20}
    assert folder_of(wanted, run, read, named=True, kind=KIND, tell=said.append) == wanted
    assert said == [f"{wanted}: held the result of another run (limit: 8, here 20); it is replaced"]
    with pytest.raises(InputError, match="score: uds, here em"):
        folder_of(wanted, {"score": "em", "limit": 8}, read, named=True, kind=KIND)


def test_a_run_that_asks_for_more_may_replace(tmp_path):
    wanted = held(tmp_path / "eval", {"retain": None})

    def grew(name, old, new):
        return name == "retain" and old is None

    assert differences(wanted, {"retain": "r"}, read, grew) == {}
    other = held(tmp_path / "other", {"retain": "q"})
    assert differences(other, {"retain": "r"}, read, grew) == {"retain": "retain: q, here r"}


def patched(folder, source, command="patch"):
    models = {"source": {"name": source, "weights": "w"}}
    write_json(make_folder(folder) / "manifest.json", {"command": command, "inputs": models})
    return folder


def test_results_of_one_source_and_of_several_do_not_lie_in_one_another(tmp_path):
    one = patched(tmp_path / "one", "demo/npo")
    several = patched(tmp_path / "several" / "demo-npo", "demo/npo").parent
    patched(several / "more", "demo/npo", "eval")
    for folder, n_sources, there in ((one, 2, one), (several, 1, several / "demo-npo")):
        with pytest.raises(InputError, match=f"{folder}: the result in {there} would stay beside"):
            check_beside(folder, "patch", n_sources)
        check_beside(folder, "patch", 3 - n_sources)  # replaces what it finds
    check_beside(several, "eval", 2)  # the other command is inside
    check_beside(tmp_path / "missing", "patch", 2)
    check_beside(tmp_path / "missing", "patch", 1)


def test_what_was_put_inside_by_name_or_only_begun_is_in_nobodys_way(tmp_path):
    patched(tmp_path / "c" / "attn", "demo/npo")
    check_beside(tmp_path / "c", "patch", 1)
    patched(patched(tmp_path / "d", "demo/npo") / "demo-npo", "demo/npo")
    check_beside(tmp_path / "d", "patch", 1)  # what lies beside lay there before
    for begun in (tmp_path / "e", tmp_path / "f" / "demo-npo"):
        write_json(make_folder(begun) / "begun.json", {"command": "patch"})
    check_beside(tmp_path / "e", "patch", 2)
    check_beside(tmp_path / "f", "patch", 1)


@pytest.mark.parametrize("text", ['{"inputs": 1}', "[]", "7", "torn"])
def test_a_manifest_that_says_nothing_is_not_replaced_silently(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    said = list[str]()
    assert folder_of(tmp_path, {}, read, named=True, kind=KIND, tell=said.append) == tmp_path
    assert "(manifest.json is no record of such a run); it is replaced" in said[0]
    with pytest.raises(InputError, match=f"^{tmp_path}"):  # what took long
        _ = RunFolder(usual=tmp_path, command="know", key="k").path
    assert folder_of(tmp_path, {}, read, named=False, kind=KIND) != tmp_path


def test_a_folder_is_known_by_its_place_and_other_models_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert known_as("runs") == known_as(str(tmp_path / "runs")) == str(tmp_path / "runs")
    assert known_as("demo/npo") == "demo/npo"


def test_a_place_that_was_named_from_another_folder_is_told_by_its_content(tmp_path, monkeypatch):
    here = make_folder(tmp_path / "models" / "npo")
    make_folder(tmp_path / "sub")
    manifest = {"command": "patch", "source": "models/npo", "weights": "a"}
    write_json(tmp_path / "manifest.json", manifest)

    def told(name, weights="a"):
        run = {"command": "patch", "source": known_as(name), "weights": weights}
        read_here = {**manifest, "source": known_as("models/npo")}
        return list(differences(tmp_path, run, lambda _: read_here))

    monkeypatch.chdir(tmp_path / "sub")  # from where models/npo leads nowhere
    assert told("../models/npo") == told(str(here)) == []
    assert told("../models/npo", weights="b") == ["weights"]
    other = make_folder(tmp_path / "sub" / "models" / "npo")  # and now it leads to another model
    assert told(str(here)) == ["source"]
    assert told(str(other)) == []
    assert told(str(make_folder(tmp_path / "copies" / "npo2"))) == ["source"]
    assert told("demo/npo") == ["source"]


def test_a_name_of_a_model_hangs_on_its_word_and_not_on_what_lies_on_the_disk(
    tmp_path, monkeypatch
):
    names = ("runs/x", "demo/npo", "./runs/y", str(tmp_path / "z"))
    called = {"runs/x": "runs/x", "demo/npo": "demo/npo", "./runs/y": "y", names[3]: "z"}
    places = {name: tmp_path / "out" / label.replace("/", "-") for name, label in called.items()}
    for name in names:
        (make_folder(tmp_path / name) / "config.json").write_text("{}")
    for here in (tmp_path, tmp_path / "runs"):  # beside folders of these names, and elsewhere
        monkeypatch.chdir(here)
        assert labels(names) == called
        assert folders_for(names, tmp_path / "out") == places


def test_results_of_a_folder_not_written_as_a_path_stay_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (make_folder(tmp_path / "runs" / "x") / "config.json").write_text("{}")
    old = patched(tmp_path / "out" / "runs-x", "runs/x")
    assert folders_for(["runs/x", "demo/npo"], old.parent)["runs/x"] == old
    with pytest.raises(InputError, match="would stay beside"):
        check_beside(old.parent, "patch", 1)
