"""Every kind of result comes back as its command wrote it, and every room knows what to do."""

import json
from collections.abc import Mapping

import pytest
from support import GOLDEN, as_written

from lensaudit.doors.export.model import FACTS
from lensaudit.doors.frames import POINTS
from lensaudit.errors import InputError
from lensaudit.report.assemble import Document
from lensaudit.report.kinds import PAGE
from lensaudit.results.kinds.eval import entries_of
from lensaudit.results.kinds.table import KINDS, Kind, record_in
from lensaudit.results.locate import Found, locate
from lensaudit.results.manifest import manifest, models_in
from lensaudit.results.reading import JsonObject, document
from lensaudit.verdict.attacks import VIEWS
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
    "curve": {"watch": "out/curve.json"},
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
    assert set(KINDS) - set(WRITTEN) == {"meta", "aggregate", "steering"}  # read as plain JSON


@pytest.mark.parametrize(("kind", "name", "file"), FILES, ids=[f"{k} {n}" for k, n, _ in FILES])
def test_what_a_command_wrote_comes_back_field_by_field_in_its_order(kind, name, file):
    content = of_golden(name, file)
    if isinstance(content, dict):
        content.pop("check", None)
    found = entries_of(content, file) if kind == "eval" else record_in(kind, content, file)
    assert json.dumps(plain(found)) == json.dumps(content)


@pytest.mark.parametrize("room", [VIEWS, PAGE, POINTS, FACTS])
def test_a_room_knows_no_kind_that_is_not_in_the_table(room):
    assert set() < set(room) <= set(KINDS)


def test_a_kind_that_no_room_knows_is_found_listed_and_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "new", JsonObject)
    (tmp_path / "anything.json").write_text(json.dumps({"kind": "new", "source": "x"}))
    manifest("new", options={}, inputs={}, device="cpu", started=0.0).write(
        tmp_path, ["anything.json"]
    )
    ((found,), _) = locate([tmp_path])
    assert (found.kind, found.record["source"]) == ("new", "x")
    page = Document(Verdicts({}))
    page.take(found, {})
    assert page.empty
    assert [one["content"]["command"] for one in page.beside] == ["new"]
    assert page.verdicts.models == ()
    (tmp_path / "anything.json").write_text(json.dumps({"kind": "new", "source": "y"}))
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
