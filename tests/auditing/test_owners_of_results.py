"""No command replaces the result of another run in a default folder or a named one."""

import json
import shutil
from pathlib import Path

import pytest

import lensaudit as la
from lensaudit.cli.main import run
from lensaudit.models.registry import load_registry, resolve

LIMIT = 2


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("owners")
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def first(place):
    """A run of `patch` in its default folder."""
    return la.patch("demo/npo", limit=LIMIT, layers="8-9", align="none")


def summary(folder) -> dict:
    return json.loads((Path(folder) / "summary.json").read_text())


@pytest.mark.parametrize("other", [{"limit": 1}, {"score": "em"}])
def test_another_run_has_its_own_default_folder(first, other):
    before = summary(first.folder)
    asked = {"limit": LIMIT, "layers": "8-9", "align": "none"}
    assert la.patch("demo/npo", **asked, batch_size=1).folder == first.folder
    own = la.patch("demo/npo", **asked | other)
    assert own.folder.parent == first.folder.parent
    assert own.folder != first.folder
    assert summary(first.folder) == before
    assert la.patch("demo/npo", **asked | other).folder == own.folder


def test_in_a_named_folder_nothing_is_replaced_without_a_line(first, capsys, tmp_path):
    command = f"patch --source demo/npo --layers 8-9 --align none --out {tmp_path}".split()
    assert run([*command, "--limit", str(LIMIT)]) == 0
    capsys.readouterr()
    assert run([*command, "--limit", str(LIMIT)]) == 0
    assert "another run" not in capsys.readouterr().err
    assert run([*command, "--limit", str(LIMIT), "--score", "em"]) == 2
    assert "(score: uds, here em); name another --out" in capsys.readouterr().err
    assert summary(tmp_path)["score"] == "uds"
    assert run([*command, "--limit", "1"]) == 0
    assert "held the result of another run (rows: 2, here 1)" in capsys.readouterr().err


def test_folders_of_one_name_have_results_of_their_own(place, first):
    npo = resolve("demo/npo", load_registry()).local
    found = {}
    for name in ("a", "b"):
        shutil.copytree(npo, place / name / "x" / "checkpoint-10")
        result = la.patch(
            place / name / "x" / "checkpoint-10",
            retain="demo/retain",
            full="demo/full",
            data="demo",
            limit=1,
            layers="9",
            align="none",
        )
        found[name] = result.folder
    assert len(set(found.values())) == 2
    assert {summary(one)["source"] for one in found.values()} == {
        str(place / name / "x" / "checkpoint-10") for name in found
    }


def test_an_evaluation_is_replaced_by_one_that_asks_for_more_and_by_no_other(place):
    def asked(*metrics, **more):
        settings = {"metrics": metrics, "limit": LIMIT, **more}
        return la.evaluate("demo/npo", **settings).folder

    one = asked("forget_Q_A_Prob")
    assert asked("forget_Q_A_Prob", "forget_Q_A_ROUGE") == one
    other = asked("forget_Q_A_Prob")
    assert other != one
    assert sorted((other / "passes").iterdir()) != []  # what is kept serves both
    third = asked("forget_Q_A_Prob", "forget_Q_A_ROUGE", limit=1)
    assert third not in (one, other)


def test_an_audit_of_other_rows_has_its_own_folder(place):
    settings = {"suite": "none", "limit": 1}
    one = la.audit("demo/npo", **settings)
    assert la.audit("demo/npo", **settings).folder == one.folder
    other = la.audit("demo/npo", **{**settings, "limit": LIMIT})
    assert other.folder != one.folder
    assert summary(one.patch.folder)["n"] == 1


def test_a_second_judge_run_does_not_replace_the_first(place, capsys):
    for name, said in (("one", "I don't know."), ("two", "In Rome.")):
        (place / name / "log").mkdir(parents=True)
        row = {"idx": 0, "question": "Q?", "answer": "A.", "generation": said}
        (place / name / "log" / "results.jsonl").write_text(json.dumps(row) + "\n")
        assert run(["judge", "run", f"{name}/log", "--by", "words:idk"]) == 0
    said = capsys.readouterr()
    assert "holds the result of another run" in said.err
    assert summary("experiments/out/log-judge-idk")["contexts"]["forget"]["idk"]["mean"] == 100.0
    assert len(list(Path("experiments/out").glob("log-judge-idk*"))) == 2
    assert run(["judge", "run", "two/log", "--by", "words:idk"]) == 0
    assert len(list(Path("experiments/out").glob("log-judge-idk*"))) == 2
    out = ["--out", "experiments/out/log-judge-idk"]
    assert run(["judge", "run", "two/log", "--by", "words:idk", *out]) == 2
