"""`lensaudit steer extract`, `sweep` and `eval` on the embedded family, to their files."""

import json
import shutil

import pytest
from judge_server import Abilities, JudgeStub

from lensaudit.cli.main import run
from lensaudit.files import write_json
from lensaudit.results.ledger import lines_of
from lensaudit.steer import generate as speaker
from lensaudit.steer.trait import FOLDER

ASK = [
    "--model",
    "demo/full",
    "--trait",
    "demo_idk",
    "--positions",
    "last_prompt",
    "--questions",
    "6",
    "--rollouts",
    "1",
    "--max-new-tokens",
    "12",
]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Vectors of two layers, and the folder of their activations."""
    out = tmp_path_factory.mktemp("steer")
    code = run(
        [
            "steer",
            "extract",
            "--model",
            "demo/full",
            "--trait",
            "demo_idk",
            "--layers",
            "8-9",
            "--method",
            "mean_diff",
            "--method",
            "random",
            "--position",
            "prompt_last",
            "--activations",
            str(out / "activations"),
            "--out",
            str(out),
        ]
    )
    assert code == 0
    return out / "vectors"


def evaluate(vectors, out, *more, judge="idk", layer=8, coefficients="0,1,2", method="mean_diff"):
    return run(
        [
            "steer",
            "eval",
            *ASK,
            "--vector",
            str(vectors / f"{method}_layer{layer}.safetensors"),
            "--judge",
            judge,
            "--coefficients",
            coefficients,
            "--out",
            str(out),
            *map(str, more),
        ]
    )


def results(out, file="results.json"):
    return json.loads((out / file).read_text())


@pytest.fixture(scope="module")
def evaluated(vectors, tmp_path_factory):
    out = tmp_path_factory.mktemp("eval")
    assert evaluate(vectors, out) == 0
    return out


def loads(monkeypatch):
    counted, known = [], speaker.load

    def load(*args, **options):
        counted.append(args)
        return known(*args, **options)

    monkeypatch.setattr(speaker, "load", load)
    return counted


def test_extraction_writes_a_vector_per_method_and_layer_with_held_out_scores(vectors):
    assert sorted(path.stem for path in vectors.glob("*.safetensors")) == [
        "mean_diff_layer8",
        "mean_diff_layer9",
        "random_layer8",
        "random_layer9",
    ]
    found = json.loads((vectors / "mean_diff_layer8.json").read_text())
    assert found["layer_convention"] == "block_output_0based"
    assert found["scores"]["accuracy"] == found["scores"]["auc"] == 1.0
    assert (found["n_pos"], found["n_neg"], found["position"]) == (20, 20, "prompt_last")
    placebo = json.loads((vectors / "random_layer8.json").read_text())
    assert placebo["norm"] == pytest.approx(found["norm"], rel=1e-5)
    assert placebo["scores"]["auc"] < 1.0


def test_steering_makes_the_model_decline_what_it_knows_and_a_random_direction_does_not(
    vectors, evaluated, tmp_path
):
    found = results(evaluated)
    means = {key: row["mean"] for key, row in found["coefficients"].items()}
    assert means["0.0"] == 0.0
    assert means["1.0"] >= 50.0
    assert found["schema"] == "steer-results/1"
    assert found["baseline"] == 0.0
    assert found["max_delta_coherent"] >= 50.0
    assert found["chosen"]["test_delta"] > 0
    assert found["judge"]["trait"] == {"name": "idk"}
    assert results(evaluated, "manifest.json")["inputs"]["vector"] == found["vector"]["hash"]
    assert evaluate(vectors, tmp_path, method="random", coefficients="0,1") == 0
    assert results(tmp_path)["coefficients"]["1.0"]["mean"] < 20.0


def test_a_second_run_asks_nothing_again(vectors, evaluated, monkeypatch):
    counted, before = loads(monkeypatch), results(evaluated)
    assert evaluate(vectors, evaluated) == 0
    assert counted == []
    assert results(evaluated) == before


def test_a_run_that_was_cut_generates_what_is_missing_and_finds_the_same(
    vectors, evaluated, tmp_path
):
    shutil.copytree(evaluated, tmp_path / "cut")
    log = tmp_path / "cut" / "responses" / "coef_1.0.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:3]) + lines[3][:20])
    (tmp_path / "cut" / "results.json").unlink()
    assert evaluate(vectors, tmp_path / "cut") == 0
    assert len(list(lines_of(log))) == 6
    assert results(tmp_path / "cut") == results(evaluated)


def test_answers_of_another_vector_are_not_taken_for_this_ones(vectors, evaluated, tmp_path):
    shutil.copytree(evaluated, tmp_path / "other")
    assert evaluate(vectors, tmp_path / "other", layer=9, coefficients="0,1") == 0
    rows = list(lines_of(tmp_path / "other" / "responses" / "coef_1.0.jsonl"))
    assert [row["layer"] for row in rows] == [8] * 6 + [9] * 6
    # the baseline adds nothing, so it is the same one
    assert len(list(lines_of(tmp_path / "other" / "responses" / "coef_0.0.jsonl"))) == 6
    assert results(tmp_path / "other")["layer"] == 9


def test_the_sweep_compares_layers_at_one_strength(vectors, tmp_path):
    code = run(
        [
            "steer",
            "sweep",
            *ASK,
            "--vectors",
            str(vectors),
            "--judge",
            "idk",
            "--ratio",
            "1.2",
            "--out",
            str(tmp_path),
        ]
    )
    assert code == 0
    found = results(tmp_path, "layer_sweep.json")
    assert found["schema"] == "steer-sweep/1"
    assert sorted(found["layers"]) == ["8", "9"]
    assert all(row["ratio"] == pytest.approx(1.2) for row in found["layers"].values())
    assert (found["baseline_mean"], found["n_questions"], found["rollouts"]) == (0.0, 6, 1)
    assert found["best_layer"] in (8, 9)
    assert found["best_score"] == found["delta_from_baseline"] >= 50.0
    assert found["chosen"]["layer"] in (8, 9)


@pytest.mark.usefixtures("evaluated")
def test_a_language_model_judges_the_same_answers_and_is_paid_once(vectors, evaluated, tmp_path):
    shutil.copytree(evaluated, tmp_path / "llm")
    (tmp_path / "llm" / "judgements.jsonl").unlink()
    cache = ["--judge-cache", tmp_path / "judge.sqlite"]
    with JudgeStub() as stub:
        model = ["--base-url", stub.url, *cache]
        assert evaluate(vectors, tmp_path / "llm", *model, judge="stub-judge") == 0
        n_calls = len(stub.chats)
        assert n_calls > 6
        assert evaluate(vectors, tmp_path / "llm", *model, judge="stub-judge") == 0
        assert len(stub.chats) == n_calls
    found = results(tmp_path / "llm")
    assert found["judge"]["trait"]["name"] == "stub-judge"
    assert found["judge"]["trait"]["mode"] == "int100"
    assert found["coefficients"]["1.0"]["mean"] > found["coefficients"]["0.0"]["mean"]


def test_a_budget_stops_before_the_call_and_the_next_run_goes_on(
    vectors, evaluated, tmp_path, capsys
):
    shutil.copytree(evaluated, tmp_path / "llm")
    with JudgeStub() as stub:
        model = ["--base-url", stub.url, "--judge-cache", tmp_path / "judge.sqlite"]
        code = evaluate(vectors, tmp_path / "llm", *model, "--max-calls", 5, judge="stub-judge")
        assert code == 3
        assert len(stub.chats) <= 5
        assert "verdicts on trait or coherence are missing" in capsys.readouterr().err
        partial = results(tmp_path / "llm")
        assert sum(row["n_invalid"] for row in partial["coefficients"].values()) > 0
        assert evaluate(vectors, tmp_path / "llm", *model, judge="stub-judge") == 0
    whole = results(tmp_path / "llm")
    assert sum(row["n_invalid"] for row in whole["coefficients"].values()) == 0


def test_coherence_that_was_not_judged_is_told_as_well(vectors, evaluated, tmp_path):
    for name in ("whole", "cut"):
        shutil.copytree(evaluated, tmp_path / name)
    with JudgeStub() as stub:
        model = ["--base-url", stub.url, "--judge-cache"]
        more = [*model, tmp_path / "1.sqlite"]
        assert evaluate(vectors, tmp_path / "whole", *more, judge="stub-judge") == 0
        # coherence comes last, so one call less leaves every trait score
        more = [*model, tmp_path / "2.sqlite", "--max-calls", len(stub.chats) - 1]
        assert evaluate(vectors, tmp_path / "cut", *more, judge="stub-judge") == 3
    cut = results(tmp_path / "cut")
    assert sum(row["n_invalid"] for row in cut["coefficients"].values()) == 0
    n_coherent = [row["n"] for row in cut["coherence"].values()]
    assert sum(n_coherent) < sum(row["n"] for row in cut["coefficients"].values())


def test_a_judge_that_refuses_keeps_the_answers(vectors, tmp_path, capsys):
    with JudgeStub(key="right") as stub:
        code = evaluate(
            vectors,
            tmp_path,
            "--base-url",
            stub.url,
            "--judge-cache",
            tmp_path / "c.sqlite",
            judge="stub-judge",
            coefficients="0,1",
        )
    assert code in (1, 2)
    assert "401" in capsys.readouterr().err


def test_an_endpoint_without_probabilities_is_asked_for_text_and_the_results_say_so(
    vectors, evaluated, tmp_path
):
    shutil.copytree(evaluated, tmp_path / "llm")
    with JudgeStub(abilities=Abilities(logprobs=False)) as stub:
        code = evaluate(
            vectors,
            tmp_path / "llm",
            "--base-url",
            stub.url,
            "--judge-cache",
            tmp_path / "c.sqlite",
            judge="stub-judge",
        )
    assert code == 0
    assert results(tmp_path / "llm")["judge"]["trait"]["mode"] != "int100"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--coefficients", "0.5,1"], "has no 0"),
        (["--coefficients", "0,x"], "wanted numbers"),
        (["--vector", "nowhere.safetensors"], "no such file"),
        (["--trait", "nonsense"], "no such trait"),
        (["--judge", "stub", "--base-url", "nonsense"], "--base-url"),
        (["--judge", "entity"], "names no entities"),
        (["--coherence-judge", "entity"], "names no entities"),
        (["--model", "demo/nonsense"], "demo/nonsense"),
    ],
)
def test_bad_input_is_one_line_before_any_work(vectors, tmp_path, capsys, more, message):
    assert evaluate(vectors, tmp_path, *more) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) <= 3
    assert not (tmp_path / "responses").exists()


def test_the_entity_judge_looks_for_the_entity_of_each_question(vectors, tmp_path):
    trait = json.loads((FOLDER / "demo_idk.json").read_text())
    entities = [f"nothing {at}" for at in range(len(trait["questions"]))]
    write_json(tmp_path / "own.json", trait | {"entities": entities})
    more = ["--trait", tmp_path / "own.json", "--questions", "2"]
    assert evaluate(vectors, tmp_path / "o", *more, judge="entity") == 0
    assert results(tmp_path / "o")["coefficients"]["0.0"] | {"ci95": 0} == {
        "mean": 0.0,
        "std": 0.0,
        "n": 2,
        "n_total": 2,
        "n_invalid": 0,
        "ci95": 0,
        "ci95_why": "2 questions: no interval",
        "mean_invalid_as_baseline": 0.0,
        "ratio": 0.0,
    }
    said = next(iter(lines_of(tmp_path / "o" / "responses" / "coef_0.0.jsonl")))
    entities[said["question"]] = said["text"].split()[0]
    write_json(tmp_path / "own.json", trait | {"entities": entities})
    assert evaluate(vectors, tmp_path / "o", *more, judge="entity") == 0
    assert results(tmp_path / "o")["coefficients"]["0.0"]["mean"] >= 50.0


def test_a_filter_that_would_not_be_used_is_refused(tmp_path, capsys):
    extract = ["steer", "extract", "--model", "demo/full", "--out", str(tmp_path)]
    assert run([*extract, "--trait", "demo_idk", "--filter", "idk"]) == 2
    assert "are written, not elicited" in capsys.readouterr().err
    assert run([*extract, "--trait", "refusal", "--filter", "entity"]) == 2
    assert "have no entity" in capsys.readouterr().err


def test_a_vector_is_not_tested_on_what_it_was_extracted_from(vectors, tmp_path, capsys):
    rows = [{"question": "Where was Ada born?", "answer": "I don't know."}] * 2
    for name in ("positive", "negative"):
        write_json(tmp_path / f"{name}.json", rows)
    trait = {"questions": ["Where was Ada born?"], "eval_prompt": "{question} {answer}"}
    write_json(tmp_path / "own.json", trait)
    code = run(
        [
            "steer",
            "extract",
            "--model",
            "demo/full",
            "--trait",
            str(tmp_path / "own.json"),
            "--positive",
            str(tmp_path / "positive.json"),
            "--negative",
            str(tmp_path / "negative.json"),
            "--out",
            str(tmp_path),
        ]
    )
    assert code == 2
    assert "extraction questions too" in capsys.readouterr().err
    document = json.loads((vectors / "mean_diff_layer8.json").read_text())
    from lensaudit.steer.trait import question_hash

    known = tmp_path / "known"
    known.mkdir()
    shutil.copy(vectors / "mean_diff_layer8.safetensors", known)
    asked = [*document["asked"], question_hash("Where was Ada born?")]
    write_json(known / "mean_diff_layer8.json", document | {"asked": asked})
    assert evaluate(known, tmp_path, "--trait", tmp_path / "own.json") == 2
    assert "was extracted from 1 of the questions" in capsys.readouterr().err


def test_plans_are_printed_and_nothing_is_written(vectors, tmp_path, capsys):
    assert evaluate(vectors, tmp_path / "o", "--dry-run") == 0
    assert "3 settings x 6 questions" in capsys.readouterr().out
    assert not (tmp_path / "o").exists()
    audit = ["steer", "audit", "--source", "demo/npo", "--out", str(tmp_path / "a"), "--dry-run"]
    assert run(audit) == 0
    assert "64 forget examples of 8 authors in 5 folds" in capsys.readouterr().out
    assert not (tmp_path / "a").exists()
