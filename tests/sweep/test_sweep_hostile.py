"""Sweep folders that somebody else wrote into: one line each, and nothing outside is touched."""

import json
import os

import pytest
from sweep_helpers import VALUE, swept, toy_plan, toy_run_unit

from lensaudit.cli.main import run
from lensaudit.errors import InputError, LensAuditError, VerificationError
from lensaudit.files import digest, remove_below, write_json
from lensaudit.partials import process_name
from lensaudit.results.records import signed
from lensaudit.sweep.attempts import history
from lensaudit.sweep.claims import claimed, holder
from lensaudit.sweep.collect import collect
from lensaudit.sweep.failures import MAX_TRIES
from lensaudit.sweep.layout import Layout, checked_id
from lensaudit.sweep.plan import read_plan
from lensaudit.sweep.room import Room
from lensaudit.sweep.upkeep import remove
from lensaudit.sweep.weights import Weights


def forged(root, change):
    """A plan that was changed and hashed again."""
    content = json.loads((root / "plan.json").read_text())
    content.pop("hash")
    content = change(content) or content
    write_json(root / "plan.json", {**content, "hash": digest(content)})


def set_at(*path_and_value):
    """A change of one place."""
    *path, last, value = path_and_value

    def change(content):
        for key in path:
            content = content[key]
        content[last] = value

    return change


@pytest.fixture
def witness(tmp_path):
    """A folder beside the sweep that nobody may touch."""
    place = tmp_path / "victim"
    place.mkdir()
    (place / "thesis.txt").write_text("years of work")
    yield place
    assert (place / "thesis.txt").read_text() == "years of work"
    assert len(list(place.iterdir())) == 1


BAD = [
    set_at("units", 0, "id", "../../victim"),
    set_at("units", 0, "id", "/etc"),
    set_at("units", 0, "id", ""),
    set_at("units", 0, "id", 7),
    set_at("units", 0, "variant", "../.."),
    set_at("units", 0, "target", "nobody"),
    set_at("units", []),
    set_at("units", 5),
    set_at("units", 0, 5),
    set_at("targets", 0, "name", None),
    set_at("targets", {}),
    set_at("anchors", {}),
    set_at("anchors", "full", "nobody"),
    set_at("conditions", 3),
    set_at("conditions", "metrics", 3),
    set_at("conditions", "limit", "many"),
    set_at("conditions", "unknown", 1),
    set_at("attacks", None),
    set_at("data", None),
    lambda content: {"schema": 1},
    lambda content: content["units"].append(content["units"][0]),
]


@pytest.mark.parametrize("change", BAD)
def test_a_forged_plan_is_one_line_and_removes_nothing(tmp_path, witness, capsys, change):
    root = tmp_path / "sweep" / "inner"
    toy_plan(root)
    forged(root, change)
    for command in ("status", "run", "retry", "gc", "collect"):
        assert run(["sweep", command, str(root)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("lensaudit: ")


@pytest.mark.parametrize("text", ["", "[]", "{", "NaN", '{"schema": 1, "x": NaN}', "[" * 5000])
def test_a_plan_that_is_none_is_one_line(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(InputError):
        read_plan(tmp_path)


@pytest.mark.parametrize("text", ["..", "a/b", "A" * 32, "0" * 31, "0" * 32 + "\n", "٠" * 32])
def test_an_id_is_a_hash_or_nothing(tmp_path, text):
    with pytest.raises(InputError):
        checked_id(text)
    with pytest.raises(InputError):
        Layout(tmp_path).unit(text)


def test_nothing_outside_the_folder_is_removed(tmp_path, witness):
    root = tmp_path / "sweep"
    (root / "work").mkdir(parents=True)
    (root / "link").symlink_to(witness)
    (root / "work" / "link").symlink_to(witness)
    elsewhere = (witness, root / ".." / "victim", root / "link" / "thesis.txt", root / "work/..")
    for path in (*elsewhere, root):
        with pytest.raises(InputError, match="does not lie in"):
            remove_below(root, path)
    remove(Layout(root), [root / "work"])  # the link in it goes, not what it points to
    assert not (root / "work").exists()


def test_a_journal_cannot_name_a_folder_elsewhere(tmp_path, witness):
    plan = toy_plan(tmp_path / "sweep")
    layout = Layout(tmp_path / "sweep")
    layout.weights.mkdir()
    row = {"state": "ready", "bytes": 1, "owner": None, "users": []}
    for journal in ({"../../victim": row}, {"a": 3}, [], {"a": {**row, "bytes": "x"}}):
        write_json(layout.weights / "journal.json", journal)
        with pytest.raises(InputError, match=r"journal\.json"):
            Weights(layout, plan).used_bytes()


GOOD = [
    {"event": "start", "attempt": "a", "run": "r", "process": "00000000-1", "time": 0},
    {"event": "end", "attempt": "a", "run": "r", "outcome": "permanent", "seconds": 1},
]
JUNK = [
    5,
    {},
    {"event": "start"},
    {"event": "start", "attempt": ["x"], "run": "r", "process": "p-1"},
    {"event": "start", "attempt": "x", "run": "r", "process": "nobody"},
    {"event": "start", "attempt": "x", "run": "r", "process": 5},
    {"event": "end", "attempt": {}, "outcome": "done"},
    {"event": "end", "attempt": "x", "run": "r", "outcome": "fine", "seconds": 1},
    {"event": "end", "attempt": "x", "run": "r", "outcome": "transient", "seconds": "long"},
    {"event": "end", "attempt": "x", "run": "r", "outcome": "done", "seconds": 1e999},
    {"event": "told to stop", "attempt": []},
]


def test_lines_of_nobody_count_as_little_as_torn_ones(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*JUNK, *GOOD, *JUNK]))
    found = history(path)
    assert (found.n_attempts, found.n_killed) == (1, 0)
    assert found.failed is not None


@pytest.mark.parametrize(
    "text", ["", "5", "{}", '{"process": 5}', '{"process": "x-y"}', "[" * 5000, "\xff"]
)
def test_a_claim_of_nobody_is_no_traceback(tmp_path, text):
    path = tmp_path / "claim.json"
    path.write_bytes(text.encode("latin-1"))
    # it may be in the middle of being written
    free = holder(path) is None
    with claimed(path) as ours:
        assert ours == free
    path.write_bytes(text.encode("latin-1"))
    os.utime(path, (0, 0))
    assert holder(path) is None
    with claimed(path) as ours:
        assert ours
        assert holder(path) == process_name()
    assert not path.exists()


def test_a_unit_that_ends_well_without_a_result_is_not_tried_for_ever(tmp_path):
    plan = toy_plan(tmp_path, n=1)
    with pytest.raises(LensAuditError, match="has no result"):
        swept(tmp_path, runner="sweep_helpers:toy_run_nothing")
    unit = plan.anchor_units()[0]
    assert history(Layout(tmp_path).attempts(unit.id)).n_attempts == MAX_TRIES


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"value": 0.75}, "does not hold 0.75"),
        ({"low": 0.5, "high": 0.125}, "upside down|does not hold"),
    ],
)
def test_a_value_outside_its_interval_is_not_collected(tmp_path, change, said):
    plan, layout = toy_plan(tmp_path, n=1), Layout(tmp_path)
    for unit in plan.units:
        toy_run_unit(layout, plan, unit, None, Room(tmp_path))
    path = layout.unit(plan.units[0].id) / "result.json"
    content = json.loads(path.read_text())
    content["values"]["toy"] = VALUE | {"low": 0.25, "high": 0.625} | change
    write_json(path, content)
    with pytest.raises(VerificationError, match=r"result\.json was changed"):
        collect(layout, plan)
    write_json(path, signed(content))
    with pytest.raises(InputError, match=said):
        collect(layout, plan)
