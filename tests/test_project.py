"""The project file: what it may say, where its places lie, and who reads it."""

import os
from pathlib import Path

import pytest

from lensaudit import project
from lensaudit.errors import InputError
from lensaudit.project import find_project, read_project, strangeness


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
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(InputError, match="not TOML"):
        read_project(written(tmp_path, "full = "))


def test_a_set_is_named_and_a_file_is_a_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_project(written(tmp_path, 'data = "forget10"')).data == "forget10"
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    assert read_project(written(tmp_path, 'data = "set.json"')).data == "../set.json"


def test_forget_and_kept_rows_of_one_annotation_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    both = 'forget = "rows.jsonl"\nretain_rows = "{}"\n'
    with pytest.raises(InputError, match=r"of forget and retain_rows would both be rows\.annot"):
        read_project(written(tmp_path, both.format("rows.csv")))
    apart = both.format("rows.csv") + 'retain_data = "kept.json"'
    assert read_project(written(tmp_path, apart)).retain_data == "kept.json"
    assert read_project(written(tmp_path, both.format("kept.csv"))).data == "rows.annotated.json"


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        ("", "kept.jsonl"),
        ('group = "author"', "kept.jsonl"),
        ('group = "Person"', "kept.annotated.json"),
        ('answer = "reply"', "kept.annotated.json"),
    ],
)
def test_kept_rows_whose_fields_only_the_project_knows_are_read_annotated(tmp_path, names, kept):
    found = read_project(written(tmp_path, f'retain_rows = "kept.jsonl"\n{names}\n'))
    assert Path(found.kept_rows).name == kept


def test_the_search_ends_at_the_home_folder_and_where_a_file_system_ends(tmp_path, monkeypatch):
    home, deep = tmp_path / "home", tmp_path / "home" / "a" / "b"
    deep.mkdir(parents=True)
    written(tmp_path, "")
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    assert find_project(deep).resolve() == tmp_path / "lensaudit.toml"  # it is there to be found
    with monkeypatch.context() as patch:
        patch.setattr(project, "_device", lambda folder: folder.is_relative_to(home))
        assert find_project(deep) is None
    monkeypatch.setenv("HOME", str(home))
    assert find_project(deep) is None
    written(home, "")
    assert find_project(deep).resolve() == home / "lensaudit.toml"


def test_a_file_or_a_link_of_another_user_is_strange(tmp_path, monkeypatch):
    file = written(tmp_path, 'full = "demo/full"')
    assert strangeness(file) is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
        assert "another user" in strangeness(file)
    if os.getuid() == 0:  # a link to our file that somebody else made
        (link := tmp_path / "lensaudit.toml.link").symlink_to(file)
        os.chown(link, 12345, 12345, follow_symlinks=False)
        assert "another user (uid 12345)" in strangeness(link)


OUTSIDE = ("/etc", "..", "../x", "~/x", "a/../../x", "link/x", "full+/x", "demo/full+../x")
PLACES = (
    *(key for key in project.KEYS if key not in ("retain", "sources", "batch_size")),
    *("patch.out", "patch.data", "steer.audit.vector", "activations.gc.activations", "a.b.c.d"),
)


def leading_out(folder, monkeypatch):
    """Every key with every spelling of a place that is not in the folder; what was believed."""
    (folder / "link").symlink_to(folder.parent)
    (folder / "experiments").mkdir()
    monkeypatch.chdir(folder)
    n, believed = 0, []
    for text in OUTSIDE:
        lists = [f'{key} = ["demo/npo", "{text}"]' for key in ("retain", "sources", "patch.retain")]
        for line in (*(f'{key} = "{text}"' for key in PLACES), *lists):
            n += 1
            if strangeness(written(folder, line)) is None:
                believed.append(line)
    return n, believed


def test_no_place_outside_the_folder_is_believed_unasked(tmp_path, monkeypatch):
    (own := tmp_path / "own").mkdir()
    n, believed = leading_out(own, monkeypatch)
    assert (n, believed) == (8 * (len(PLACES) + 3), [])
    # what a file may say of its own folder, and texts that are no places
    good = 'full = "full"\nsources = ["./a/../b", "org/model@main"]\n[patch]\nlayers = "8-15"\n'
    assert strangeness(written(own, good + 'note = "' + "x" * 9999 + '\\u0000"\n')) is None
    # where the file names none, commands write to experiments/out
    (own / "experiments").rmdir()
    (own / "experiments").symlink_to(tmp_path)
    assert strangeness(written(own, good)).startswith("out names experiments/out")
