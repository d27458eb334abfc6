"""One rule of roles for every command: weights that stand in two roles are refused, or left out."""

import itertools
import json

import pytest
from support import EMBEDDED

import lensaudit as la
from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.models.checkpoint import open_model

pytestmark = pytest.mark.usefixtures("one_type")
ANCHORS = "--full {full} --retain {retain} --data demo"
COMMANDS = {
    "patch": f"patch --source {{source}} {ANCHORS} --limit 4",
    "patch lens": f"patch --source {{source}} {ANCHORS} --limit 4 --score lens",
    "patch em": f"patch --source {{source}} {ANCHORS} --limit 4 --score em",
    "audit": f"audit --source {{source}} {ANCHORS} --limit 4 --suite none",
    "eval": f"eval --model {{source}} {ANCHORS} --limit 2 --metric uds",
    "worst": f"worst --source {{source}} {ANCHORS} --limit 2 --attack greedy",
    "sample": f"sample --source {{source}} {ANCHORS} --limit 2 --samples 2 --k 2",
    "relearn": f"relearn --source {{source}} {ANCHORS} --audit",
    "rtt": f"rtt run --source {{source}} {ANCHORS} --lr 1e-3",
    "effort": f"effort --source {{source}} {ANCHORS} --limit 4 --steps 1",
    "steer audit": f"steer audit --source {{source}} {ANCHORS} --kept demo --layers 8",
    "sweep plan": f"sweep plan {{source}} {ANCHORS} --metric extraction_strength --limit 2",
    "know": "know --source {source} --base {base} --retain {retain} --data demo --limit 8",
}
"""Models in roles; a retain model may be named twice."""
METRIC = "extraction_strength"
USUAL = {
    "source": "demo/npo",
    "full": "demo/full",
    "retain": "demo/retain",
    "base": "demo/base",
}
SEVERAL = ("patch", "patch lens", "patch em", "audit", "worst", "sample", "effort", "know")
"""Commands that take several retain models."""
SOURCES = ("patch", "patch lens", "patch em", "audit", "rtt", "effort", "sweep plan")
"""Commands that take several sources."""


def elsewhere(name):
    """The same weights under another name."""
    return str(EMBEDDED / name.removeprefix("demo/"))


def cases():
    for of, words in COMMANDS.items():
        roles = [one for one in USUAL if f"{{{one}}}" in words]
        for one, other in itertools.combinations(roles, 2):
            if {one, other} != {"retain", "base"}:
                place = elsewhere(USUAL[other])
                # `sample` takes `full` beside a model of one's own alone
                own = {"source": elsewhere("demo/npo")} if of == "sample" else {}
                said = f"{one} {place}"
                yield pytest.param(of, own | {one: place}, said, id=f"{of}, {one} = {other}")
        if of in SEVERAL:
            twins = f"demo/retain --retain {elsewhere('demo/retain')}"
            own = {"source": elsewhere("demo/npo")} if of == "sample" else {}
            yield pytest.param(of, own | {"retain": twins}, "name each once", id=f"{of}, twins")
        if of in SOURCES:
            again = "" if of == "sweep plan" else "--source "
            both = f"demo/npo {again}{elsewhere('demo/npo')}"
            yield pytest.param(of, {"source": both}, "name each once", id=f"{of}, two names")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows with an author, a relation and wrong answers, as every command takes them."""
    return tmp_path_factory.mktemp("roles")


@pytest.mark.parametrize(("of", "changed", "said"), [*cases()])
def test_weights_in_two_roles_are_refused_before_any_model_runs(
    of, changed, said, folder, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    words = COMMANDS[of].format(**USUAL | changed).split()
    # a plan and a run are opened alike: what tells them apart is tried of one pair
    for more in (["--dry-run"], []) if changed.keys() == {"source"} else (["--dry-run"],):
        assert run([*words, "--out", "out", *more]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "have the same weights" in error
        assert not (folder / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        "know --source demo/npo --base demo/retain --retain demo/retain --limit 8",
        f"eval --model demo/npo {ANCHORS} --reference demo/full --limit 2 --metric mia_reference"
        " --metric uds",
        f"eval --model demo/npo {ANCHORS} --reference demo/npo --limit 2 --metric mia_reference"
        " --metric uds",
        f"patch --source demo/npo {ANCHORS} --also retain --base demo/full --limit 4",
        f"patch --source demo/npo {ANCHORS} --also retain --base demo/retain --limit 4",
        "eval --model demo/full --limit 2 --metric extraction_strength",
    ],
)
def test_a_base_or_a_reference_may_be_another_model_of_the_run(words, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert run([*words.format(**USUAL).split(), "--out", "out", "--dry-run"]) == 0
    told = capsys.readouterr().out
    if words.startswith("know"):  # it counts once
        assert told.count("demo/retain: ") == 1


def test_a_typed_retain_log_of_the_model_itself_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = {"value_by_index": {"0": {"score": 0.5}, "1": {"score": 0.7}}, "agg_value": 0.6}
    weights = open_model("demo/npo", None).weights
    made = {"inputs": {"model": {"name": "another", "weights": weights}}}
    (tmp_path / "TOFU_EVAL.json").write_text(json.dumps({"forget_truth_ratio": rows}))
    (tmp_path / "manifest.json").write_text(json.dumps(made))
    words = "eval --metric forget_quality --limit 2 --retain-log"
    for asked in ("--model demo/npo --data demo --dry-run", "--from-log TOFU_EVAL.json"):
        assert run([*words.split(), "TOFU_EVAL.json", *asked.split()]) == 2
        assert "have the same weights" in capsys.readouterr().err


def test_python_refuses_them_too(tmp_path):
    for own in ({"full": EMBEDDED / "npo"}, {"retain": str(EMBEDDED / "npo")}):
        with pytest.raises(InputError, match="have the same weights"):
            la.patch("demo/npo", tmp_path, limit=4, **{name: str(one) for name, one in own.items()})


def test_an_anchor_that_a_pattern_or_a_list_brings_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.txt").write_text("demo/npo\ndemo/retain\n")
    for words in (
        "sweep plan demo/*npo demo/f* --full demo/full --retain demo/retain",
        "sweep plan --models models.txt --full demo/full --retain demo/retain",
    ):
        assert (
            run([*words.split(), "--metric", METRIC, "--limit", "2", "-o", "s", "--dry-run"]) == 0
        )
        error = capsys.readouterr().err
        assert error.count("left out of the sources") == 1
    alone = "sweep plan demo/full* --full demo/full --limit 2 -o s"
    assert run(alone.split()) == 2
    assert "is empty: left out of the sources: demo/full is full" in capsys.readouterr().err


def test_an_anchor_that_a_project_brings_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    listed = ["demo/npo", elsewhere("demo/full"), "demo/retain"]
    (tmp_path / "lensaudit.toml").write_text(
        f'full = "demo/full"\nretain = "demo/retain"\nsources = {json.dumps(listed)}\n'
    )
    for words in ("patch --limit 4", "effort --limit 4 --steps 1", "rtt run --lr 1e-3"):
        assert (
            run([*words.split(), "--data", "demo", "--project", "lensaudit.toml", "--dry-run"]) == 0
        )
        told = capsys.readouterr()
        assert told.err.count("left out of the sources: ") == 1
        assert "is full demo/full, demo/retain is retain demo/retain" in told.err
        assert "demo/npo" in told.out
    # one that is typed is refused all the same, and what full says may be evaluated by itself
    given = ["--project", "lensaudit.toml", "--limit", "2", "--data", "demo"]
    assert run(["patch", "--source", "demo/full", *given]) == 2
    assert run(["eval", "--model", "demo/full", *given, "--metric", METRIC, "--dry-run"]) == 0
