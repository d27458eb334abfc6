"""Every kind of result comes back as its command wrote it, and every room knows what to do."""

import functools
import json
import shutil
from collections.abc import Mapping

import pytest
from support import GOLDEN, as_written, lay_out

from lensaudit.doors.export.model import FACTS
from lensaudit.doors.frames import POINTS
from lensaudit.errors import InputError
from lensaudit.report.assemble import Document
from lensaudit.report.kinds import PAGE
from lensaudit.results.kinds.eval import entries_of
from lensaudit.results.kinds.patch import read_patch
from lensaudit.results.kinds.table import Kind, ResultKind, kinds, record_in
from lensaudit.results.locate import Found, locate
from lensaudit.results.manifest import MANIFEST, manifest, models_in, signed
from lensaudit.results.reading import JsonObject, document
from lensaudit.verdict.beside import speaking
from lensaudit.verdict.collect import Verdicts

WRITTEN: Mapping[Kind, Mapping[str, str]] = {
    "patch": {
        **dict.fromkeys(
            ("patch", "patch_em", "patch_em_teacher", "patch_lens", "patch_uds_lens", "patch_own"),
            "out/summary.json",
        ),
        "patch_two": "out/demo-idknll/summary.json",
        "audit": "out/patch/summary.json",
    },
    "counterfactual": {"patch_alone": "out/summary.json"},
    "eval": {
        "eval": "out/TOFU_EVAL.json",
        "eval_upstream": "out/TOFU_EVAL.json",
        "eval_muse": "out/MUSE_EVAL.json",
        "eval_from_log": "again/TOFU_EVAL.json",
    },
    "know": {"audit": "out/know/summary.json"},
    "worst": {"worst": "out/summary.json"},
    "sample": {"sample": "out/summary.json"},
    "effort": {"effort": "out/summary.json"},
    "rtt": {"rtt": "rtt/summary.json", "rtt_summarize": "rtt/summary.json"},
    "relearn": {"relearn_audit": "experiments/out/demo-npo-relearn/audit.json"},
    "directions": {"steer_audit": "steering/summary.json"},
    "steering": {"steer_eval": "out/results.json", "steer_sweep": "out/layer_sweep.json"},
    "traits": {"steer_cross": "out/traits.json"},
    "curve": {"watch": "out/curve.json"},
    "meta": {"meta_table": "table/meta_table.json"},
    "aggregate": {"meta_aggregate": "table/aggregate.json"},
    "judge": dict.fromkeys(
        ("judge_run", "judge_words", "judge_coherence", "judge_batch_run"), "out/summary.json"
    ),
}
"""Kind of a result -> goldens of commands that write one, and where it lies."""
FILES = [(kind, name, file) for kind, some in WRITTEN.items() for name, file in some.items()]


def of_golden(name, file):
    """A JSON file as the real command wrote it."""
    golden = json.loads((GOLDEN / "commands" / f"{name}.json").read_text())
    return json.loads(as_written(golden["files"][file]))


def plain(found):
    """A record, or several, as they are written."""
    if isinstance(found, Mapping):
        return {name: plain(one) for name, one in found.items()}
    return list(map(plain, found)) if isinstance(found, list) else document(found)


def test_of_every_kind_a_file_is_held_that_the_real_command_wrote():
    assert set(WRITTEN) == set(kinds())


@pytest.mark.parametrize(("kind", "name", "file"), FILES, ids=[f"{k} {n}" for k, n, _ in FILES])
def test_what_a_command_wrote_comes_back_field_by_field_in_its_order(kind, name, file):
    content = of_golden(name, file)
    if isinstance(content, dict):
        content.pop("check", None)
    found = entries_of(content, file) if kind == "eval" else record_in(kind, content, file)
    assert json.dumps(plain(found)) == json.dumps(content)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Lays out the folder of a golden, once: the one at the top of a file in it."""
    place = tmp_path_factory.mktemp("kinds")

    @functools.cache
    def laid(name: str, file: str):
        top = file.rpartition("/")[0] if name == "relearn_audit" else file.partition("/")[0]
        return lay_out(f"{name}:{top}", place / name)

    return laid


def located(folder):
    return [(one.kind, one.path.relative_to(folder).as_posix()) for one in locate([folder])[0]]


@pytest.mark.parametrize(("kind", "name", "file"), FILES, ids=[f"{k} {n}" for k, n, _ in FILES])
def test_a_result_is_found_by_the_kind_in_its_manifest_and_without_it(
    kind, name, file, folders, tmp_path
):
    folder = folders(name, file)
    found = located(folder)
    assert kind in [one for one, _ in found]
    assert {path.rpartition("/")[2] for one, path in found if one == kind} == {file.split("/")[-1]}
    # as an earlier version wrote it
    older = shutil.copytree(folder, tmp_path / "older")
    for place in older.rglob(f"*{MANIFEST}"):
        content = json.loads(place.read_text())
        del content["kind"]
        place.write_text(json.dumps(signed(content)))
    assert located(older) == found


def test_what_a_manifest_says_counts_before_what_a_file_says(tmp_path):
    lines = {"summary.json": {"kind": "worst"}, "audit.json": {}, "TOFU_EVAL.json": {}}
    for name, content in lines.items():
        (tmp_path / name).write_text(json.dumps(content))
    of = {"options": {}, "inputs": {}, "device": "cpu", "started": 0.0}
    manifest("patch", kind="sample", **of).write(tmp_path, ["summary.json"])
    manifest("x", kind="checkpoint", **of).write(tmp_path, ["audit.json"], f"x_{MANIFEST}")
    # of the log no manifest tells: another tool's
    assert located(tmp_path) == [("eval", "TOFU_EVAL.json"), ("sample", "summary.json")]


NO_RESULTS = {"audit", "comparison", "checkpoint", "vectors"}
NO_RESULTS |= {"faithfulness", "robustness", "collection"}
"""Kinds in manifests of which no file is a result that a verdict, a page or a frame reads."""


def test_every_manifest_of_a_golden_says_its_kind():
    said = {}
    for path in (GOLDEN / "commands").glob("*.json"):
        files = json.loads(path.read_text()).get("files", {})
        for name in (one for one in files if one.endswith(MANIFEST)):
            said[f"{path.stem} {name}"] = json.loads(as_written(files[name]))["kind"]
    assert set(said.values()) == {*kinds(), *NO_RESULTS}


@pytest.mark.parametrize("room", [speaking(), PAGE, POINTS, FACTS])
def test_a_room_knows_no_kind_that_is_not_in_the_table(room):
    assert set() < set(room) <= set(kinds())


@pytest.mark.misuse
def test_a_kind_that_no_room_knows_is_found_listed_and_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(kinds(), "new", ResultKind(record=JsonObject, files=("anything.json",)))
    (tmp_path / "anything.json").write_text(json.dumps({"source": "x"}))
    manifest("new", kind="new", options={}, inputs={}, device="cpu", started=0.0).write(
        tmp_path, ["anything.json"]
    )
    ((found,), _) = locate([tmp_path])
    assert (found.kind, found.record["source"]) == ("new", "x")
    page = Document(Verdicts({}))
    page.take(found, {})
    assert page.empty
    assert [one["content"]["command"] for one in page.beside] == ["new"]
    assert page.verdicts.models == ()
    (tmp_path / "anything.json").write_text(json.dumps({"source": "y"}))
    with pytest.raises(InputError, match=r"anything\.json: "):
        _ = Found(found.kind, found.path).record


ROLES = {
    ("patch", "out"): ["full", "retain", "source"],
    ("eval_retain", "out"): ["model", "patched_full", "patched_retain", "retain"],
    ("relearn_audit", "experiments/out/demo-npo-relearn"): ["source", "full", "retain"],
    ("rtt", "rtt"): ["full", "retain", "source 1"],
    ("steer_audit", "steering"): ["full", "unlearned", "retain"],
    ("steer_eval", "out"): ["model"],
}
"""Golden and folder -> the models that its result names by their weights."""


@pytest.mark.parametrize(("name", "folder"), ROLES)
def test_a_result_names_every_model_by_name_and_weights(name, folder):
    found = models_in(of_golden(name, f"{folder}/manifest.json"))
    assert list(found) == ROLES[name, folder]
    assert all(one["name"] and one["weights"] for one in found.values())


def test_a_run_whose_manifest_has_no_options_is_read(tmp_path):
    folder = lay_out("patch:out", tmp_path / "out")
    content = json.loads((folder / "manifest.json").read_text()) | {"options": None}
    (folder / "manifest.json").write_text(json.dumps(signed(content)))
    assert read_patch(folder / "summary.json").manifest["options"] is None
