"""Every kind of result comes back as its command wrote it, and every room knows what to do."""

import json
import re

import pytest
from support import GOLDEN

from lensaudit.doors.export import FACTS
from lensaudit.doors.frames import POINTS
from lensaudit.errors import InputError
from lensaudit.report.assemble import Document
from lensaudit.report.kinds import PAGE
from lensaudit.results.kinds.effort import EffortArm, EffortPoint, EffortRecord, TrainingRate
from lensaudit.results.kinds.know import (
    KnowControl,
    KnownRelation,
    KnowPower,
    KnowRecord,
)
from lensaudit.results.kinds.sample import LeakRow, SampleRecord
from lensaudit.results.kinds.table import KINDS, record_in
from lensaudit.results.kinds.worst import WorstAttack, WorstFact, WorstRecord
from lensaudit.results.locate import Found, locate
from lensaudit.results.manifest import manifest, models_in
from lensaudit.results.reading import JsonObject, document
from lensaudit.scores.estimate import Estimate
from lensaudit.verdict.attacks import VIEWS
from lensaudit.verdict.collect import Verdicts

WRITTEN = {
    "rtt": ("rtt", "rtt/summary.json"),
    "rtt_summarize": ("rtt", "rtt/summary.json"),
    "steer_audit": ("directions", "steering/summary.json"),
    "relearn_audit": ("relearn", "experiments/out/demo-npo-relearn/audit.json"),
}
"""Golden of a command -> the kind of its result, and where that lies."""


def of_golden(name, file):
    """A JSON file as the real command wrote it; what is not shown there is an empty object."""
    lines = json.loads((GOLDEN / "commands" / f"{name}.json").read_text())["files"][file]
    return json.loads(re.sub("{…}|…|<[a-z]+>", "{}", "\n".join(lines)))


@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_command_wrote_comes_back_field_by_field_in_its_order(name):
    kind, file = WRITTEN[name]
    content = of_golden(name, file)
    if isinstance(content, dict):
        content.pop("check", None)
    found = record_in(kind, content, file)
    again = list(map(document, found)) if isinstance(found, list) else document(found)
    assert json.dumps(again) == json.dumps(content)


POINT = EffortPoint(1, 2, 3, 4, 0.5, 1.0, None, 0.25, None, "3 authors: no interval")
RECORDS = {
    "effort": EffortRecord(
        model="x",
        data="demo",
        readout="said",
        by="estimate",
        rates=[TrainingRate(1e-3, 4)],
        arms={
            "T": EffortArm(
                e50=1,
                e80=None,
                censored={"e50": False, "e80": True},
                lr=1e-3,
                reason="",
                trained_on="rows",
                cost={"e50": {"steps": 1}, "e80": None},
                curve=[POINT],
            )
        },
        notes=["few authors"],
    ),
    "know": KnowRecord(
        source="x",
        headline="binds",
        finds=True,
        p=0.01,
        z=3.0,
        bits=Estimate(1.5, 1.0, 2.0, n=8),
        bits_familiar=Estimate(0.5, n=8, why="3 authors: no interval"),
        power=KnowPower(None, 0.8, "few"),
        named=[3],
        controls=[KnowControl("kept", True, "found")],
        n_subjects=8,
        relations=[KnownRelation("born in", 8, 1.0, 3.0, 0.01)],
        max_bits=3.0,
        unscored={"5": "no value"},
    ),
    "sample": SampleRecord(
        source="x",
        retain=["r"],
        n_scored=2,
        samples=4,
        leak=[LeakRow(1.0, 1.0, 2, 0.5, 0.1, 0.4, None, None, None, 0.0, "2 authors")],
        errors={"sensitivity": 0.9, "specificity": 0.8},
        unscored={"7": "lost"},
    ),
    "worst": WorstRecord(
        source="x",
        retain=["r"],
        n_scored=2,
        n_out=1,
        expected=0.5,
        excess=0.25,
        ci95=(0.0, 0.5),
        named=[1],
        attacks=[
            WorstAttack("greedy", "cheap", "", 2, 1.0, 0.5, 0.0, True, 1, 0.5, 0.1, 2, 20),
        ],
        facts=[WorstFact(1, 4, "Rome", "greedy", q="0.01"), WorstFact(2, unscored="lost")],
    ),
}
"""Records of kinds whose commands have no golden."""


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_comes_back_from_its_file_as_it_was(kind):
    written = json.loads(json.dumps(document(RECORDS[kind])))
    assert record_in(kind, written, "x") == RECORDS[kind]


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
