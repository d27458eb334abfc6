"""Do the commands still say and write what they did? Made by `golden/make_commands.py`."""

import json

import pytest
from support.agreement import agreed
from support.command_cases import CASES, ENVIRONMENT
from support.command_golden import GOLDEN, Stage, difference, stored
from support.verdict_support import page_data

from lensaudit.doors.gate import Policy, gate
from lensaudit.errors import InputError
from lensaudit.report.shelf import ANCHORS
from lensaudit.verdict.collect import verdicts


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """All cases play in one folder and share what they build on."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with Stage(tmp_path_factory.mktemp("commands"), CASES) as opened:
            yield opened


SLOWER = {
    *("refused", "demo", "demo_again", "patch_prefix", "sweep_run", "sweep_verify", "watch"),
    *("patch_two", "patch_oracle", "patch_uds_lens", "patch_boundary", "sweep_status"),
}
"""Variants of what another golden holds, or tens of seconds: run under `slow`."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(c.name, marks=[pytest.mark.slow] if c.slow or c.name in SLOWER else [])
        for c in CASES.values()
    ],
)
def test_a_command_says_and_writes_what_it_did(stage, name):
    assert difference(stored(name), stage.play(name), name, CASES[name].tau) is None


def with_verdict(name):
    """Does a case leave a summary that a verdict stands in?"""
    own = (one for one in stored(name).get("files", {}).items() if one[0].startswith("out/"))
    texts = [lines for path, lines in own if path.endswith("summary.json")]
    return any('"verdict"' in line for lines in texts for line in lines)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOWER else [])
        for name in CASES
        if with_verdict(name)
    ],
)
def test_a_model_has_one_word_on_page_terminal_json_and_gate(stage, name, tmp_path):
    """Over every folder that a golden case leaves behind."""
    said = stage.play(name)["stdout"]
    folder = stage.folder / name / "out"
    if "--score em" in CASES[name].argv:
        with pytest.raises(InputError, match="holds no result that a verdict can be made from"):
            verdicts([folder])
        return
    found = verdicts([folder])
    codes = {one.source: one.code for one in found.models}
    texts = [path.read_text() for path in folder.rglob("summary.json")]
    written = [one for text in texts if "verdict" in (one := json.loads(text))]
    assert {one["source"]: one["verdict"]["code"] for one in written} == codes
    lens = all(one["score"] == "lens" for one in written)
    terminal = "\n".join(said)
    for one in found.models:
        shown = terminal if "--json" not in CASES[name].argv else json.dumps(json.loads(said[0]))
        # `demo` ends in one table of words; its sentences are on its page
        said_there = one.verdict.sentence if name != "demo" else one.source
        assert lens or said_there in shown.replace("\\u2026", "…"), one.verdict.sentence
    decided = gate(found, Policy(passing=("erased",)))
    assert {one.source: one.code for one, _ in decided.models} == codes
    words = agreed(tmp_path, folder)
    data = page_data(tmp_path / "agreed.html")
    on_page = {m["name"]: m["verdict"] for m in data["models"] if m["role"] not in ANCHORS}
    assert {model: code for model, code in on_page.items() if code} == codes
    assert len(words) == len(codes)


def test_every_golden_has_its_case():
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(CASES)


def test_the_first_difference_is_named():
    wanted = {"exit": 0, "files": {"a.csv": ["x,y", "1,0.5"]}}
    assert difference(wanted, wanted) is None
    assert "line 2" in (difference(wanted, {"exit": 0, "files": {"a.csv": ["x,y", "1,0.6"]}}) or "")
    assert "a.csv" in (difference(wanted, {"exit": 0, "files": {}}) or "")
    assert "exit" in (difference(wanted, {"exit": 4, "files": wanted["files"]}) or "")
    assert "no line" in (difference(wanted, {"exit": 0, "files": {"a.csv": ["x,y"]}}) or "")


LAYER = "24,3,3,0.06681013107299805,0.005542278289794922,1,0.08295565843582153"
PACKED = (
    '<script type="application/json" id="data">{"scores":[0.6305812, 0.1933877],"n":16}</script>'
)
SAID = "demo/npo: partly erased: UDS 0.631 [0.458, 0.775], held .37 of 16. ▕▃▄▅▏"


def changed(line, old, new, path="x.jsonl"):
    """Is a line with `new` in the place of `old` another line?"""
    assert old in line
    head = ["idx,group,layer,s1,s2,ke,erasure"] if path == "x.csv" else []
    return difference({path: [*head, line]}, {path: [*head, line.replace(old, new)]}) is not None


@pytest.mark.parametrize(
    ("line", "old", "new", "path"),
    [
        (LAYER, "0.066810", "0.066813", "x.csv"),  # 3e-6
        # NATS of s1 and s2 each, over s1: 1.9e-5 / 0.0668 = 2.9e-4
        (LAYER, "0.08295565", "0.08322565", "x.csv"),
        ('   "erasure": 0.08295565843582153', "0.08295", "0.08324", "x.json"),
        ('{"uds": 0.63058123}', "123", "456", "x.json"),
        (PACKED, "0.6305812", "0.6305839", "x.html"),
        ('{"gap": 0.0}', "0.0", "-1.2e-08", "x.json"),
        ('{"gap": 1e-08}', "1e-08", "0", "x.json"),
        ('{"uds": 1.0}', "1.0", "0.9999998", "x.json"),
        (SAID, "0.631", "0.630", "stdout"),
        (SAID, ".37", ".38", "stdout"),
        (SAID, "▃▄▅", "▃▃▅", "stdout"),
        ('{"sentence": "UDS .37, of 16"}', ".37", ".36", "x.json"),
        ('{"p": 0.5228738563071846, "z": 0.1}', "0.5228", "0.5227", "x.json"),
        ('   "trace": 1.9316037499999983,', "1.93160", "1.93163", "x.json"),
        ("│ 1.235e-05 │", "1.235", "1.236", "stdout"),
        ("│ 0.000 │", "0.000", "-0.000", "stdout"),
        ("│ ▬▬▬▬ │", "▬▬▬▬", "▬▬▬", "stdout"),
    ],
)
def test_what_another_processor_adds_up_otherwise_is_the_same(line, old, new, path):
    assert not changed(line, old, new, path)


@pytest.mark.parametrize(
    ("line", "old", "new", "path"),
    [
        (LAYER, "0.066810", "0.066910", "x.csv"),  # 1e-4
        (LAYER, "0.08295565", "0.08335565", "x.csv"),
        ("0,0,0,1.5,0.3,1,0.2", "0.2", "0.2001", "x.csv"),
        (LAYER, "24,", "25,", "x.csv"),
        (LAYER, ",1,", ",0,", "x.csv"),
        ('{"uds": 0.63058123}', "0.6305", "0.6306", "x.json"),
        ('{"p": 0.5228738563071846, "z": 0.1}', "0.5228", "0.5226", "x.json"),
        ('{"p": 4.999750012499375e-05}', "4.999", "9.999", "x.json"),
        ('{"share": 0.5}', "0.5", "0.6", "x.json"),
        ('{"at": "0.5"}', "0.5", "0.6", "x.json"),
        ('{"ke": [5, 6]}', "6", "7", "x.json"),
        ('{"ke": 6}', "6", "6.1", "x.json"),
        ('{"rows": 1}', "1", "2", "x.json"),
        ('{"value": 0.5}', "0.5", "null", "x.json"),
        (PACKED, "0.1933877", "0.1934877", "x.html"),
        (PACKED, "16", "17", "x.html"),
        (SAID, "partly", "hardly", "stdout"),
        (SAID, "0.631", "0.633", "stdout"),
        (SAID, ".37", ".39", "stdout"),
        (SAID, "16.", "17.", "stdout"),
        (SAID, "▃▄▅", "▃▂▅", "stdout"),
        (SAID, "0.631", "0.6310", "stdout"),
        ("│ 1.2e-05 │", "1.2e-05", "1.2e-06", "stdout"),
        ("│ ▬▬▬▬ │", "▬▬▬▬", "▬▬", "stdout"),
        ("strength 1.0", "1.0", "1.1", "stdout"),
    ],
)
def test_what_no_rounding_explains_is_another_line(line, old, new, path):
    assert changed(line, old, new, path)


def test_where_a_tiny_tau_divides_scores_move_and_what_was_read_does_not():
    wanted = {"results.jsonl": ['{"s1": [0.0041], "uds": 0.5055}']}
    moved = {"results.jsonl": ['{"s1": [0.0041], "uds": 0.5095}']}
    read = {"results.jsonl": ['{"s1": [0.0043], "uds": 0.5055}']}
    assert difference(wanted, moved) is not None
    assert difference(wanted, moved, tau=0.001) is None
    assert difference(wanted, read, tau=0.001) is not None


def test_a_metric_that_divides_by_a_small_spread_moves_further_in_its_own_section():
    log = [' "mia_min_k_plus_plus": {', '    "score": 10.047289', " },"]
    other = '    "score": 10.048057'
    assert difference({"x.json": log}, {"x.json": [log[0], other, *log[2:]]}) is None
    loss, moved = ([' "mia_loss": {', one] for one in (log[1], other))
    assert difference({"x.json": loss}, {"x.json": moved}) is not None


def test_few_printed_numbers_lie_beside_a_boundary():
    # of 300 numbers printed to 0.001 three move where each is off by 1e-5; cut off, half of them do
    lines = [f"UDS {number / 1000:.3f} of x" for number in range(100, 400)]
    moved = [f"UDS {number / 1000 + 0.001:.3f} of x" for number in range(100, 400)]
    assert difference({"stdout": lines}, {"stdout": moved[:5] + lines[5:]}) is None
    said = difference({"stdout": lines}, {"stdout": moved[:150] + lines[150:]}) or ""
    assert "150 last digits moved" in said
