"""Sweep folders that somebody else wrote into: one line each, and nothing outside is touched."""

import json
import os
import shutil

import pytest
from support.sweep_helpers import swept, toy_sweep

from lensaudit.association import run as know_run
from lensaudit.cli.main import run
from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import remove_files, write_json
from lensaudit.partials import process_name
from lensaudit.patching import outcome
from lensaudit.results.kinds.eval import LOGS
from lensaudit.results.kinds.know import PERSONS
from lensaudit.sweep import upkeep
from lensaudit.sweep.attempts import MAX_TRIES, claimed, finished, holder, set_back, state_of
from lensaudit.sweep.plan import is_id, read_plan
from lensaudit.sweep.removal import remove_below
from lensaudit.sweep.upkeep import remove
from lensaudit.sweep.weights import Weights, folder_name
from lensaudit.text import digest


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
    toy_sweep(root)
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
def test_an_id_is_a_hash_or_nothing(text):
    assert not is_id(text)


def test_nothing_outside_the_folder_is_removed(tmp_path, witness):
    root = tmp_path / "sweep"
    sweep = toy_sweep(root)
    (root / "work").mkdir()
    (root / "link").symlink_to(witness)
    (root / "work" / "link").symlink_to(witness)
    elsewhere = (witness, root / ".." / "victim", root / "link" / "thesis.txt", root / "work/..")
    for path in (*elsewhere, root):
        with pytest.raises(InputError, match="does not lie in"):
            remove_below(root, path)
        with pytest.raises(InputError, match="does not lie in"):
            remove(sweep, {path: [path]})
    remove_below(root, root / "work")  # the link in it goes, not what it points to
    assert not (root / "work").exists()


@pytest.mark.parametrize(
    "name", ["work", "slurm", "work/ID", "work/ID/eval", "work/ID/registry.json", "units/ID"]
)
def test_a_sweep_with_a_link_where_a_run_writes_is_not_run(tmp_path, witness, capsys, name):
    root = tmp_path / "sweep"
    link = root / name.replace("ID", toy_sweep(root).anchor_units()[0].id)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(witness / "thesis.txt" if link.suffix else witness)
    before = sorted(root.rglob("*"))
    for command in ("run", "retry", "fetch", "verify"):
        assert run(["sweep", command, str(root)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line == f"lensaudit: {link}: is a link, and lensaudit makes none; move it away"
    assert sorted(root.rglob("*")) == before


def test_a_log_of_attempts_is_not_written_through_a_link(tmp_path, witness):
    log = tmp_path / "log.jsonl"
    log.symlink_to(witness / "thesis.txt")
    with pytest.raises(InputError, match="symbolic link"):
        set_back(log)


@pytest.fixture
def over(tmp_path):
    """A finished sweep with a leftover of every kind; and those by name."""
    root = tmp_path / "sweep"
    sweep = toy_sweep(root, n=1)
    swept(root, runner="support.sweep_helpers:toy_run_unit")
    own, fetched, old = sweep.units[0].id, folder_name(sweep.by_name["m0"]), "0" * 32
    for name in (
        *(f"claims/{own}.lock", f"work/{own}/registry.json", f"work/{own}/result.json"),
        *(f"work/{own}/eval/TOFU_EVAL.json", f"work/{own}/eval/retain/begun.json"),
        *(f"work/{own}/eval/passes/text-{'0' * 16}.npz", f"work/{own}/patch/layers.csv"),
        *(f"work/{own}/checkpoint/model.safetensors", f"work/{own}/checkpoint/errors.csv"),
        f"work/{own}/checkpoint/training/training-00000001.safetensors",
        *(f"weights/{fetched}/model.safetensors", "weights/journal.lock"),
        f"weights/{fetched}.partial/.cache/huggingface/download/x.lock",
        *(f"weights/trash/{fetched}-0123abcd/config.json", "slurm/12_0_log.out"),
        "slurm/0123456789abcdef/12_0_result.pkl",
        *(f"work/{old}/patch/results.jsonl", "weights/trash/x-01234567/notes.txt"),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    (root / "weights/trash/x-01234567/notes.txt").unlink()
    shutil.copytree(sweep.unit(own), root / "units" / old)
    return root, {"ID": own, "NAME": fetched, "OLD": old}


def collected(root):
    return run(["sweep", "gc", str(root), "--others"])


def test_every_leftover_of_a_finished_sweep_goes(over, capsys):
    root, names = over
    assert run(["sweep", "gc", str(root)]) == 0
    assert (root / "units" / names["OLD"]).exists()
    assert (root / "work" / names["OLD"]).exists()
    assert collected(root) == 0
    assert "stays" not in capsys.readouterr().out
    left = {path.relative_to(root).parts[0] for path in root.rglob("*") if path.is_file()}
    assert left.isdisjoint({"claims", "work", "weights", "slurm"})
    assert not (root / "units" / names["OLD"]).exists()
    sweep = read_plan(root)
    assert all(finished(sweep, unit) is not None for unit in sweep.units)


def test_a_leftover_that_cannot_be_removed_is_not_called_removed(over, monkeypatch, capsys):
    root, _ = over

    def some(folder, files):
        if folder.parent.name == "work":
            raise InputError(f"{folder}: access refused")
        return remove_files(folder, files)

    monkeypatch.setattr("lensaudit.sweep.upkeep.remove_files", some)
    assert run(["sweep", "gc", str(root)]) == 2
    said = [line.removeprefix("removed: ") for line in capsys.readouterr().out.splitlines()]
    assert said
    assert not [path for path in said if os.path.exists(path)]


@pytest.mark.parametrize("kind", ["file", "link"])
@pytest.mark.parametrize(
    "name",
    [
        *("claims/ID.txt", "work/ID/thesis.tex", "work/ID/eval/thesis.tex", "work/ID/eval/x.npz"),
        *("work/ID/patch/model.safetensors", "work/ID/checkpoint/notes.md", "work/mine/eval/x"),
        *("work/OLD/thesis.tex", "units/OLD/thesis.tex", "units/OLD/eval/x.json", "units/mine/x"),
        *("weights/NAME/thesis.tex", "weights/NAME/sub/model.safetensors", "weights/notes.txt"),
        *("weights/mine/model.safetensors", "weights/trash/mine/model.safetensors"),
        *("weights/trash/NAME-0123abcd/thesis.tex", "weights/trash/NAME/config.json"),
        *("slurm/run.sh", "slurm/mine/thesis.tex"),
        *("slurm/0123456789abcdef/thesis.tex", "slurm/mine/12_0_result.pkl"),
    ],
)
def test_a_leftover_with_anything_of_others_stays_whole_and_is_named(over, capsys, name, kind):
    root, names = over
    for word, own in names.items():
        name = name.replace(word, own)
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(root / "plan.json") if kind == "link" else path.write_text("mine")
    parts = name.split("/")
    top = root.joinpath(*parts[: 3 if parts[:2] == ["weights", "trash"] else 2])
    before = sorted(top.rglob("*"))
    assert collected(root) == 0
    said = capsys.readouterr().out
    assert f"removed: {top}\n" not in said
    assert f"{top}: " in said
    assert top == path or path.relative_to(top).as_posix() in said
    assert path.is_symlink() or path.read_text() == "mine"
    assert sorted(top.rglob("*")) == before


def test_a_journal_cannot_name_a_folder_elsewhere(tmp_path, witness):
    sweep = toy_sweep(tmp_path / "sweep")
    sweep.weights.mkdir()
    row = {"state": "ready", "bytes": 1, "users": []}
    for journal in ({"../../victim": row}, {"a": 3}, [], {"a": {**row, "bytes": "x"}}):
        write_json(sweep.weights / "journal.json", journal)
        with pytest.raises(InputError, match=r"journal\.json"):
            Weights(sweep).used_bytes()


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
    sweep = toy_sweep(tmp_path)
    path = sweep.attempts(sweep.units[0].id)
    path.parent.mkdir()
    path.write_text("".join(json.dumps(row) + "\n" for row in [*JUNK, *GOOD, *JUNK]))
    found = state_of(sweep, sweep.units[0])
    assert (found.name, found.n_attempts, found.n_killed) == ("failed", 1, 0)


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
    sweep = toy_sweep(tmp_path, n=1)
    with pytest.raises(LensAuditError, match="has no result"):
        swept(tmp_path, runner="support.sweep_helpers:toy_run_nothing")
    unit = sweep.anchor_units()[0]
    assert state_of(sweep, unit).n_attempts == MAX_TRIES


def test_whatever_patch_eval_and_know_write_may_go_with_its_unit():
    written = {*know_run.FILES, PERSONS, *outcome.FILES, *LOGS}
    assert written <= upkeep._WRITTEN
