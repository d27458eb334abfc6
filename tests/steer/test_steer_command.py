"""`lensaudit steer extract`, `sweep` and `eval` on the embedded family, to their files."""

import json
import shlex
import shutil

import pytest
from support import lines_of
from support.judge_server import JudgeStub

from lensaudit.cli.main import run
from lensaudit.files import write_json
from lensaudit.judge.prompts import OF_TRAITS
from lensaudit.steer import asking as room
from lensaudit.steer.trait import question_hash

ASK = (
    "--model demo/full --trait demo_idk --positions last_prompt --questions 6 --rollouts 1 "
    "--max-new-tokens 12"
)
EXTRACT = "--model demo/full --trait demo_idk --position prompt_last"


def steer(command, *more):
    return run(["steer", *shlex.split(command), *map(str, more)])


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Vectors of two layers, and the folder of their activations."""
    out = tmp_path_factory.mktemp("steer")
    extract = f"extract {EXTRACT} --layers 8-9 --method mean_diff --method random"
    assert steer(extract, "--activations", out / "activations", "--out", out) == 0
    return out / "vectors"


def evaluate(vectors, out, *more, judge="idk", layer=8, coefficients="0,1,2", method="mean_diff"):
    vector = vectors / f"{method}_layer{layer}.safetensors"
    how = f"eval {ASK} --judge {judge} --coefficients {coefficients}"
    return steer(how, "--vector", vector, "--out", out, *more)


def results(out, file="results.json"):
    return json.loads((out / file).read_text())


@pytest.fixture(scope="module")
def evaluated(vectors, tmp_path_factory):
    out = tmp_path_factory.mktemp("eval")
    assert evaluate(vectors, out) == 0
    return out


@pytest.fixture
def copied(evaluated, tmp_path):
    """The same run in a folder of its own."""
    return shutil.copytree(evaluated, tmp_path / "copied")


def test_steering_makes_the_model_decline_what_it_knows_and_a_random_direction_does_not(
    vectors, evaluated, tmp_path
):
    found = results(evaluated)
    means = {key: row["mean"] for key, row in found["coefficients"].items()}
    assert means["0.0"] == found["baseline"] == 0.0
    assert means["1.0"] >= 50.0
    assert found["schema"] == "steer-results/1"
    assert found["max_delta_coherent"] >= 50.0
    assert found["chosen"]["test_delta"] > 0
    assert found["judge"]["trait"] == {"name": "idk"}
    assert results(evaluated, "manifest.json")["inputs"]["vector"] == found["vector"]["hash"]
    assert evaluate(vectors, tmp_path, method="random", coefficients="0,1") == 0
    assert results(tmp_path)["coefficients"]["1.0"]["mean"] < 20.0


def test_a_run_that_was_cut_generates_what_is_missing_and_a_whole_one_asks_nothing_again(
    vectors, evaluated, copied, monkeypatch, capsys
):
    log = copied / "responses" / "coef_1.0.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:3]) + lines[3][:20])
    (copied / "results.json").unlink()
    assert evaluate(vectors, copied, "--dry-run") == 0
    assert "= 18 answers of at most" in (said := capsys.readouterr().out)
    assert said.endswith("; 14 answers kept from before\n")
    assert evaluate(vectors, copied) == 0
    assert len(list(lines_of(log))) == 6
    assert results(copied) == results(evaluated)
    monkeypatch.setattr(room, "load", None)
    assert evaluate(vectors, copied) == 0
    assert results(copied) == results(evaluated)


def test_a_finished_run_in_a_folder_that_was_moved_is_left_as_it_is(
    vectors, evaluated, copied, tmp_path
):
    assert evaluate(vectors, copied) == 0
    assert results(copied, "manifest.json") == results(evaluated, "manifest.json")
    sweep = f"sweep {ASK} --layers 8-9 --judge idk --temperature 0"
    assert steer(sweep, "--vectors", vectors, "--out", tmp_path / "s") == 0
    moved = shutil.move(tmp_path / "s", tmp_path / "t")
    before = results(moved, "layer_sweep_manifest.json")
    assert steer(sweep, "--vectors", vectors, "--out", moved) == 0
    assert results(moved, "layer_sweep_manifest.json") == before


NOTHING = "nothing to do: {} holds this run already\n"


def test_the_plan_of_a_finished_run_says_so_and_the_run_reads_it(vectors, copied, tmp_path, capsys):
    own = ["--activations", tmp_path / "a", "--out", tmp_path / "x"]
    extract = f"extract {EXTRACT} --layers 8 --method mean_diff --method random"
    assert steer(extract, *own) == 0
    sweep = [f"sweep {ASK} --layers 8 --judge idk --temperature 0", "--vectors", vectors]
    sweep += ["--out", tmp_path / "s"]
    assert steer(*sweep) == 0
    before = results(tmp_path / "s", "layer_sweep.json")
    write_json(tmp_path / "s" / "layer_sweep.json", before | {"timestamp": "then"})
    assert steer(*sweep) == 0  # the table was changed: it is made anew
    before = results(tmp_path / "s", "layer_sweep.json")
    assert before["timestamp"] != "then"
    asked = {
        tmp_path / "x": (lambda *more: steer(extract, *own, *more), ["--seed", "1"], "2 vec"),
        copied: (lambda *more: evaluate(vectors, copied, *more), ["--seed", "1"], "18 answers"),
        tmp_path / "s": (lambda *more: steer(*sweep, *more), ["--rollouts", "2"], "24 answers"),
    }
    for folder, (ask, other, said) in asked.items():
        capsys.readouterr()
        assert ask("--dry-run") == 0
        assert capsys.readouterr().out == NOTHING.format(folder)
        assert ask() == 0
        assert f"{folder} holds this run already; nothing to do" in capsys.readouterr().err
        assert ask(*other, "--dry-run") == 0
        told = capsys.readouterr()
        assert said in told.out
        assert f"{folder}: held the result of another run (" in told.err
    assert results(tmp_path / "s", "layer_sweep.json") == before
    (tmp_path / "x" / "vectors" / "random_layer8.json").write_text("{}")
    assert steer(extract, *own, "--dry-run") == 0
    assert "2 vectors" in capsys.readouterr().out


def test_a_plan_refuses_what_the_run_refuses(vectors, tmp_path, capsys):
    elicited = "extract --model demo/full --trait refusal --position span"
    for dry in ([], ["--dry-run"]):
        assert steer(elicited, "--out", tmp_path / "x", *dry) == 2
        assert "have no entity; give annotated rows" in capsys.readouterr().err
        away = ["--base-url", "https://judge.example", *dry]
        assert evaluate(vectors, tmp_path / "y", *away, judge="stub") == 2
        assert "no key for judge.example" in capsys.readouterr().err
        assert not (tmp_path / "y").exists()


def test_answers_of_another_vector_are_not_taken_for_this_ones(vectors, copied):
    assert evaluate(vectors, copied, layer=9, coefficients="0,1") == 0
    rows = list(lines_of(copied / "responses" / "coef_1.0.jsonl"))
    assert [row["layer"] for row in rows] == [8] * 6 + [9] * 6
    # the baseline adds nothing, so it is the same one
    assert len(list(lines_of(copied / "responses" / "coef_0.0.jsonl"))) == 6
    assert results(copied)["layer"] == 9


def test_a_language_model_is_paid_once_and_a_budget_stops_before_the_call(
    vectors, copied, tmp_path, capsys
):
    (copied / "judgements.jsonl").unlink()
    with JudgeStub() as stub:
        model = ["--base-url", stub.url, "--judge-cache", tmp_path / "judge.sqlite"]
        assert evaluate(vectors, copied, *model, "--max-calls", 5, judge="stub-judge") == 3
        assert len(stub.chats) <= 5
        assert "verdicts on trait or coherence are missing" in capsys.readouterr().err
        partial = results(copied)
        assert sum(row["n_invalid"] for row in partial["coefficients"].values()) > 0
        assert evaluate(vectors, copied, *model, judge="stub-judge") == 0
        n_calls = len(stub.chats)
        assert n_calls > 6
        assert evaluate(vectors, copied, *model, judge="stub-judge") == 0
        assert len(stub.chats) == n_calls
    found = results(copied)
    assert sum(row["n_invalid"] for row in found["coefficients"].values()) == 0
    assert (found["judge"]["trait"]["name"], found["judge"]["trait"]["mode"]) == (
        "stub-judge",
        "int100",
    )
    assert found["coefficients"]["1.0"]["mean"] > found["coefficients"]["0.0"]["mean"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--coefficients 0.5,1", "has no 0"),
        ("--coefficients 0,x", "wanted numbers"),
        ("--judge stub --base-url nonsense", "--base-url"),
        ("--judge entity", "names no entities"),
        ("--coherence-judge entity", "names no entities"),
        ("--memory x", "not a size"),
    ],
)
def test_bad_input_is_one_line_before_any_work(vectors, tmp_path, capsys, more, message):
    first, *rest = more.split()
    own = {"coefficients": rest[0], "judge": "idk"} if first == "--coefficients" else {}
    assert evaluate(vectors, tmp_path, *([] if own else more.split()), **own) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) <= 3
    assert not (tmp_path / "responses").exists()


def test_the_entity_judge_looks_for_the_entity_of_each_question(vectors, tmp_path):
    trait = json.loads((OF_TRAITS / "demo_idk.json").read_text())
    entities = [f"nothing {at}" for at in range(len(trait["questions"]))]
    write_json(tmp_path / "own.json", trait | {"entities": entities})
    more = ["--trait", tmp_path / "own.json", "--questions", "2"]
    assert evaluate(vectors, tmp_path / "o", *more, judge="entity") == 0
    found = results(tmp_path / "o")["coefficients"]["0.0"]
    counts = {"n": 2, "n_total": 2, "n_invalid": 0}
    interval = {"ci95": None, "ci95_why": "2 questions: no interval"}
    zeros = {"mean": 0.0, "std": 0.0, "mean_invalid_as_baseline": 0.0, "ratio": 0.0}
    assert found == zeros | counts | interval
    said = next(iter(lines_of(tmp_path / "o" / "responses" / "coef_0.0.jsonl")))
    entities[said["question"]] = said["text"].split()[0]
    write_json(tmp_path / "own.json", trait | {"entities": entities})
    assert evaluate(vectors, tmp_path / "o", *more, judge="entity") == 0
    assert results(tmp_path / "o")["coefficients"]["0.0"]["mean"] >= 50.0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--trait demo_idk --filter idk", "are written, not elicited"),
        ("--trait refusal --filter entity", "have no entity"),
    ],
)
def test_a_filter_that_would_not_be_used_is_refused(tmp_path, capsys, more, said):
    assert steer(f"extract --model demo/full {more}", "--out", tmp_path) == 2
    assert said in capsys.readouterr().err


def test_a_vector_is_not_tested_on_what_it_was_extracted_from(vectors, tmp_path, capsys):
    asked = "Where was Ada born?"
    write_json(tmp_path / "rows.json", [{"question": asked, "answer": "I don't know."}] * 2)
    trait = {"questions": [asked], "eval_prompt": "{question} {answer}"}
    write_json(tmp_path / "own.json", trait)
    own = [part for side in ("--positive", "--negative") for part in (side, tmp_path / "rows.json")]
    own += ["--trait", tmp_path / "own.json"]
    assert steer("extract --model demo/full", *own, "--out", tmp_path) == 2
    assert "extraction questions too" in capsys.readouterr().err
    known = tmp_path / "known"
    known.mkdir()
    shutil.copy(vectors / "mean_diff_layer8.safetensors", known)
    document = results(vectors, "mean_diff_layer8.json")
    document["asked"] += [question_hash(asked)]
    write_json(known / "mean_diff_layer8.json", document)
    assert evaluate(known, tmp_path, "--trait", tmp_path / "own.json") == 2
    assert "1 evaluation questions are extraction questions too" in capsys.readouterr().err
