from contextlib import contextmanager
from functools import partial, partialmethod
from pathlib import Path

import pytest

from lensaudit.errors import InputError
from lensaudit.files import make_folder, read_json, write_json
from lensaudit.partials import partial_path
from lensaudit.results.integrity import misfits
from lensaudit.results.keyed import keyed_document, read_marked, write_keyed, write_marked
from lensaudit.results.manifest import BEGUN, manifest
from lensaudit.results.renewal import renew
from lensaudit.results.run_folder import begin, check_own, finished, seal
from lensaudit.text import digest


def run(folder, key="a" * 32, text="one"):
    """A whole run that writes one file."""
    begin(folder, key, "x")
    (folder / "losses.csv").write_text(text)
    made = manifest("x", options={}, inputs={"weights": "w"}, device="cpu", started=0.0)
    return seal(folder, made, key=key, files=["losses.csv"])


def signed(path, content):
    """A manifest as somebody would forge it."""
    rest = {key: value for key, value in content.items() if key != "check"}
    write_json(path, {**rest, "check": digest(rest)})


def test_a_folder_is_finished_from_its_manifest_on(tmp_path):
    begin(tmp_path, "k", "x")
    assert not finished(tmp_path, "k", "x")
    check_own(tmp_path, "k", "x")
    run(tmp_path, "k")
    assert finished(tmp_path, "k", "x")
    assert not (tmp_path / BEGUN).exists()


def test_another_key_is_not_finished_and_the_folder_is_refused(tmp_path):
    run(tmp_path, "k")
    assert not finished(tmp_path, "other", "x")
    with pytest.raises(InputError, match="holds the result of another run; name another --out, or"):
        check_own(tmp_path, "other", "x")
    begin(tmp_path / "begun", "k", "x")
    with pytest.raises(InputError, match="holds the result of another run; name another --out, or"):
        check_own(tmp_path / "begun", "other", "x")
    # earlier versions began without a key
    write_json(tmp_path / "begun" / "begun.json", {"command": "x"})
    assert not check_own(tmp_path / "begun", "other", "x")


def sealed_but_marked(folder):
    """A run between its manifest and the end of its mark."""
    mark = (folder / BEGUN).read_bytes()
    made = manifest("x", options={}, inputs={"weights": "w"}, device="cpu", started=0.0)
    seal(folder, made, key="k", files=["losses.csv"])
    (folder / BEGUN).write_bytes(mark)


STEPS = (
    lambda folder: partial_path(folder / BEGUN).write_text("{"),
    lambda folder: begin(folder, "k", "x"),
    lambda folder: (folder / "losses.csv").write_text("one"),
    sealed_but_marked,
    lambda folder: (folder / BEGUN).unlink(),
)
"""What another process of the same run does to its folder."""


WAYS = {name: getattr(Path, name) for name in ("exists", "is_dir", "iterdir", "open")}
"""Questions of the file system."""


@contextmanager
def going_on(at, goes_on):
    """Before question number `at` another process goes on; a list of the questions asked so far."""
    asked = []
    with pytest.MonkeyPatch.context() as patch:

        def ask(path, name, *given, **how):
            asked.append(name)
            if len(asked) == at:
                with pytest.MonkeyPatch.context() as plain:
                    for one, way in WAYS.items():
                        plain.setattr(Path, one, way)
                    goes_on()
            return WAYS[name](path, *given, **how)

        for name in WAYS:
            patch.setattr(Path, name, partialmethod(ask, name))
        yield asked


@pytest.mark.parametrize("n_done", range(len(STEPS)))
@pytest.mark.parametrize("n_more", [1, len(STEPS)], ids=["a step", "to its end"])
def test_who_looks_while_the_same_run_goes_on_elsewhere_finds_it(n_done, n_more, tmp_path):
    """Whichever question of the file system comes before the step, and which after it."""

    def steps(folder, some):
        for step in some:
            step(folder)

    n_questions = at = 1
    while at <= n_questions:
        folder = make_folder(tmp_path / str(at))
        steps(folder, STEPS[:n_done])
        with going_on(at, partial(steps, folder, STEPS[n_done:][:n_more])) as asked:
            check_own(folder, "k", "x")
        n_questions, at = max(n_questions, len(asked)), at + 1
    assert at > 4


def test_a_folder_with_somebodys_files_is_refused_and_an_empty_one_is_not(tmp_path):
    check_own(tmp_path / "new", "k", "x")
    check_own(tmp_path, "k", "x")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        check_own(tmp_path, "k", "x")


def test_a_file_that_was_changed_is_named(tmp_path):
    """What else can be wrong with a file: `test_manifest.SPOILT`."""
    run(tmp_path, "k")
    (tmp_path / "losses.csv").write_text("more")
    assert misfits(tmp_path) == ["losses.csv: has 4 bytes, the manifest says 3"]
    assert not finished(tmp_path, "k", "x")
    with pytest.raises(InputError, match=r"losses\.csv"):
        check_own(tmp_path, "k", "x")


def test_large_files_are_told_by_their_size_where_that_is_asked(tmp_path):
    run(tmp_path, "k", text="long")
    (tmp_path / "losses.csv").write_text("gnol")
    assert misfits(tmp_path, largest=3) == []
    assert misfits(tmp_path, largest=4) != []


def test_a_manifest_never_leads_out_of_its_folder(tmp_path):
    path = run(tmp_path / "m", "k")
    (tmp_path / "secret").write_text("s")
    content = read_json(path)
    for name in ("../secret", str(tmp_path / "secret")):
        content["files"] = {name: {"n_bytes": 1, "blake2b": "0"}}
        signed(path, content)
        assert misfits(tmp_path / "m") == [f"{name}: the manifest does not say what it was"]


def test_a_file_that_the_tool_itself_writes_again_is_answered_for_again(tmp_path):
    run(tmp_path, "k")
    (tmp_path / "losses.csv").write_text("two")
    renew(tmp_path, ["losses.csv"])
    assert misfits(tmp_path) == []
    assert read_json(tmp_path / "manifest.json")["inputs"]["weights"] == "w"


def test_numbers_as_names_and_tuples_are_signed_as_they_are_read_back(tmp_path):
    made = manifest("x", options={"a": {10: 1, 9: (1, 2)}}, inputs={}, device="cpu", started=0.0)
    made.write(tmp_path, [])
    assert misfits(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"inputs": 1}',
        '{"inputs": {"key": "k"}}',
        '{"inputs": {"key": "k"}, "files": 1}',
    ],
)
def test_a_damaged_manifest_finishes_nothing(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    assert not finished(tmp_path, "k", "x")


def test_a_document_is_known_by_its_key(tmp_path):
    path = write_keyed(tmp_path / "audit.json", {"key": "k", "shifts": []})
    assert keyed_document(path, "k") == {"key": "k", "shifts": []}
    assert keyed_document(path, "l") is None
    assert keyed_document(tmp_path / "none.json", "k") is None
    path.write_text(path.read_text().replace('"k"', '"l"'))
    assert keyed_document(path, "l") is None  # edited
    path.write_text('["key"]')
    assert keyed_document(path, "key") is None


def test_marked_bytes_are_read_only_as_they_were_written_and_for_their_key(tmp_path):
    path = tmp_path / "x.safetensors"
    write_marked(path, b"tensors", "k")
    assert read_marked(path, "k") == b"tensors"
    assert read_marked(path, "other") is None
    path.write_bytes(b"tensorz")
    assert read_marked(path, "k") is None
    path.unlink()
    assert read_marked(path, "k") is None
