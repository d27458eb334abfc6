"""Who wrote what lies in a folder, and does it fit together?"""

import json
import os
import socket

import pytest

from lensaudit.errors import InputError, TryAgainError
from lensaudit.files import append_jsonl, check_output, read_text, write_bytes
from lensaudit.results.integrity import check_result, check_whole
from lensaudit.results.manifest import BEGUN, MANIFEST, manifest, signed, signed_object
from lensaudit.results.owner import claim, other_owner
from lensaudit.results.renewal import renew
from lensaudit.turns import alone

FILES = ("results.jsonl", "summary.json")


def finish(folder, command="patch"):
    """A run of a command from its first mark to its manifest."""
    claim(folder, command, FILES)
    for name in FILES:
        (folder / name).write_text("{}")
    made = manifest(command, options={}, inputs={}, device="cpu", started=0.0)
    return made.write(folder, FILES)


def test_a_command_takes_a_new_folder_and_its_own(tmp_path):
    finish(tmp_path / "new")
    finish(tmp_path / "new")
    assert not (tmp_path / "new" / BEGUN).exists()


def test_a_manifest_keeps_its_hour_while_nothing_is_made(tmp_path, monkeypatch):
    path = finish(tmp_path)
    (tmp_path / "more.csv").write_text("1\n")
    first, made = path.read_bytes(), path.stat().st_mtime_ns
    monkeypatch.setattr("lensaudit.results.manifest.package_versions", lambda: {"torch": "later"})
    finish(tmp_path)  # the same files, made the same way
    renew(tmp_path, FILES)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (first, made)
    renew(tmp_path, ["more.csv"])
    assert "more.csv" in json.loads(path.read_text())["files"]
    finish(tmp_path)  # answers for other files
    again = json.loads(path.read_text())
    assert again["versions"] == {"torch": "later"}
    path.write_text(path.read_text().replace("cpu", "gpu"))  # edited: no hour to keep
    finish(tmp_path)
    assert json.loads(path.read_text())["device"] == "cpu"


def test_a_run_that_was_killed_goes_on_where_it_left_files(tmp_path):
    claim(tmp_path, "patch", FILES)
    (tmp_path / "results.jsonl").write_text("{}")
    claim(tmp_path, "patch", FILES)
    assert (tmp_path / "results.jsonl").read_text() == "{}"
    # and it is known as one of ours
    with pytest.raises(InputError):
        claim(tmp_path, "eval", FILES)


def test_files_of_nobody_we_know_stay_as_they_are(tmp_path):
    (tmp_path / "results.jsonl").write_text("mine")
    with pytest.raises(InputError, match=r"results\.jsonl: was written by an unknown program"):
        claim(tmp_path, "patch", FILES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.jsonl"]


def test_a_plan_is_a_sweeps_where_it_says_so(tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text('{"format_version": "1.2", "planned_values": {}}')  # Terraform writes such
    assert other_owner(tmp_path, "patch") is None
    for ours in ('{"lensaudit": "0.1", "units": []}', '{"lensaudit": "0.1", "uni'):
        plan.write_text(ours)
        assert other_owner(tmp_path, "patch") == "`lensaudit sweep`"
    plan.write_text("")  # cut by a full disk
    (tmp_path / "units").mkdir()
    assert other_owner(tmp_path, "patch") == "`lensaudit sweep`"


def test_the_result_of_another_command_stays_as_it_is(tmp_path):
    finish(tmp_path, "eval")
    with pytest.raises(InputError, match="`lensaudit eval`"):
        claim(tmp_path, "patch", FILES)
    check_result(tmp_path / "summary.json")


def test_a_result_that_the_manifest_does_not_name_is_of_another_run(tmp_path):
    finish(tmp_path)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(InputError, match="another run"):
        check_result(tmp_path / "results.json")


def test_a_whole_result_is_one_that_fits_its_manifest(tmp_path):
    finish(tmp_path)
    check_whole(tmp_path)
    check_whole(tmp_path / "summary.json")


def edited(folder, change):
    """The manifest with a change, and the checksum that it had."""
    content = json.loads((folder / MANIFEST).read_text())
    change(content)
    (folder / MANIFEST).write_text(json.dumps(content))


SPOILT = {
    "edited": (lambda at: (at / FILES[1]).write_text('{"uds": 0.9}'), r"summary\.json: has 12"),
    "other content": (lambda at: (at / FILES[1]).write_text("[]"), r"summary\.json: was changed"),
    "beside it": (lambda at: (at / FILES[0]).write_text("[]"), r"results\.jsonl: was changed"),
    "missing beside it": (lambda at: (at / FILES[0]).unlink(), r"results\.jsonl: is gone"),
    "missing": (lambda at: (at / FILES[1]).unlink(), "is gone"),
    "no manifest": (lambda at: (at / MANIFEST).unlink(), "no manifest.json to compare it with"),
    "cut manifest": (
        lambda at: (at / MANIFEST).write_text("{"),
        "manifest.json: line 1 is not JSON",
    ),
    "edited manifest": (
        lambda at: edited(at, lambda content: content.update(command="eval")),
        r"manifest\.json: was changed",
    ),
    "no hashes": (
        lambda at: edited(at, lambda content: (content.pop("files"), content.pop("check"))),
        r"manifest\.json: was changed",
    ),
    "none of its files": (
        lambda at: (at / MANIFEST).write_text(json.dumps(signed({"files": {}}))),
        "holds no hashes of files",
    ),
}


@pytest.mark.parametrize("how", SPOILT)
def test_whoever_believes_a_result_is_told_in_a_line_what_was_done_to_it(tmp_path, how):
    finish(tmp_path)
    spoil, said = SPOILT[how]
    spoil(tmp_path)
    for place in (tmp_path / FILES[1], tmp_path):
        with pytest.raises(InputError, match=said) as found:
            check_whole(place)
        assert str(found.value).endswith("; run again the command that made it")
        assert "\n" not in str(found.value)


def test_an_object_that_was_edited_or_is_not_signed_is_refused(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(signed({"views": {"uds": 0.5}})))
    assert signed_object(path) == {"views": {"uds": 0.5}}
    for text, said in (("0.6", "was changed"), ("NaN", "was changed")):
        path.write_text(json.dumps(signed({"views": {"uds": 0.5}})).replace("0.5", text))
        with pytest.raises(InputError, match=said):
            signed_object(path)
    path.write_text('{"views": {}}')
    with pytest.raises(InputError, match="has no checksum"):
        signed_object(path)


def test_every_manifest_of_a_folder_is_compared(tmp_path):
    finish(tmp_path)
    (tmp_path / "comparison.json").write_text("{}")
    made = manifest("patch", options={}, inputs={}, device="cpu", started=0.0)
    made.write(tmp_path, ("comparison.json",), "comparison_manifest.json")
    (tmp_path / "comparison.json").write_text("[]")
    check_whole(tmp_path / "summary.json")
    for place in (tmp_path, tmp_path / "comparison.json"):
        with pytest.raises(InputError, match=r"comparison\.json: was changed"):
            check_whole(place)


@pytest.fixture(params=["pipe", "socket", "device", "link to a device"])
def special(request, tmp_path):
    """Something at a path that is no ordinary file."""
    path = tmp_path / "x"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    elif request.param == "device":
        return type(path)("/dev/null")
    else:
        path.symlink_to("/dev/null")
    return path


def test_devices_pipes_and_sockets_are_neither_read_nor_written(special):
    before = os.lstat(special)
    for touch in (
        lambda: write_bytes(special, b"x"),
        lambda: append_jsonl(special, [{}]),
        lambda: read_text(special),
        lambda: check_output(special, ours=lambda content: True, force=True),
    ):
        with pytest.raises(InputError, match="ordinary file"):
            touch()
    assert os.lstat(special)[:3] == before[:3]


def test_a_folder_is_worked_in_by_one_process_at_a_time(tmp_path):
    with alone(tmp_path / "a"):
        with pytest.raises(TryAgainError, match="another process"), alone(tmp_path / "a"):
            pass
        with alone(tmp_path / "b"):
            pass
    with alone(tmp_path / "a"):
        assert list((tmp_path / "a").iterdir()) == []


def test_an_output_is_new_or_empty_or_ours(tmp_path):
    path = tmp_path / "page"
    ours = lambda content: content.startswith(b"page")  # noqa: E731
    check_output(path, ours=ours)
    for content in (b"", b" \n", b"page 1"):
        path.write_bytes(content)
        check_output(path, ours=ours)
    path.write_bytes(b"a novel")
    with pytest.raises(InputError, match="--force"):
        check_output(path, ours=ours)
    check_output(path, ours=ours, force=True)
