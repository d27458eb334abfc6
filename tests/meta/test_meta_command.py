"""`lensaudit meta` on the embedded family and on result files: runs, resumes, gaps, exit codes."""

import json
import shutil
from dataclasses import replace

import pytest
from support import GOLDEN

from lensaudit.auditing import evaluate
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.cli.main import run
from lensaudit.meta import runs
from lensaudit.meta.settings import FaithfulnessSettings, RobustnessSettings

FEW = ("uds", "es", "s_mia_loss")
KNOWS, FORGOT = "demo/full,demo/idknll", "demo/retain,demo/never"


def metrics(names=FEW):
    return [part for name in names for part in ("--metric", name)]


def common(folder, *more):
    given = f"--limit 4 --activations {folder / 'a'} --out {folder / 'out'}"
    return [*given.split(), *map(str, more)]


def faithfulness(folder, *more, knows=KNOWS, forgot=FORGOT, names=FEW):
    pools = ["--pool-knows", knows, "--pool-forgot", forgot]
    return ["meta", "faithfulness", *pools, *metrics(names), *common(folder, *more)]


def document(folder, name="faithfulness"):
    return json.loads((folder / "out" / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """The folder of one finished faithfulness run of four models."""
    folder = tmp_path_factory.mktemp("judged")
    assert run(faithfulness(folder)) == 0
    return folder


@pytest.fixture
def copied(judged, tmp_path):
    """A copy of it that a test may change."""
    shutil.copytree(judged, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_finished_models_are_not_measured_again(copied, monkeypatch, capsys):
    before = document(copied)

    def never(model, *rest):
        raise AssertionError(f"{model} was measured again")

    monkeypatch.setattr("lensaudit.auditing.evaluate.evaluate_into", never)
    assert run(faithfulness(copied)) == 0
    assert document(copied) == before
    # fewer metrics need no new run; results alone need no model
    assert run(faithfulness(copied, names=("uds",))) == 0
    given = faithfulness(copied, "--results", copied / "out" / "before")
    assert run(given) == 0
    assert document(copied)["metrics"] == before["metrics"]
    capsys.readouterr()
    # other conditions are another result
    with pytest.raises(AssertionError, match="measured again"):
        run([*faithfulness(copied), "--limit", "3"])


def test_only_places_are_read_for_what_they_hold(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}")
    settings = EvaluateSettings(data="demo", forget=rows, classifier="some/one")
    asked = RobustnessSettings(models=("demo/npo",), attack="relearn", relearn_data=str(rows))

    def key(settings=settings, attack=None):
        given = FaithfulnessSettings(knows=("demo/full",), forgot=("demo/never",))
        how = runs.prepare_faithfulness(given, print)
        return replace(how, evaluation=settings).key("demo/npo", attack)

    before, relearned = key(), key(EvaluateSettings(data="demo"), asked)
    # files and a folder that are called as a setting's words
    for name in ("tofu", "auto", "eager", "true", "upstream", "question", "forget10"):
        (tmp_path / name).write_text("notes")
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "forget10_perturbed.jsonl").write_text("{}")
    assert key() == before
    rows.write_text('{"question": "Who?"}')
    assert key() != before
    assert key(EvaluateSettings(data="demo"), asked) != relearned


def test_a_checkpoint_that_cannot_be_loaded_stays_to_do_and_is_named(copied, tmp_path, capsys):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    anchors = ["--full", "demo/full", "--retain", "demo/retain", "--data", "demo"]
    arguments = faithfulness(copied, *anchors, knows=f"{KNOWS},{broken}")
    assert run(arguments) == 3
    said = capsys.readouterr()
    assert "lensaudit: to do: " in said.err
    assert "broken" in said.err
    uds = {row["metric"]: row for row in document(copied)["metrics"]}["uds"]
    assert (uds["auc"], uds["preliminary_auc"]) == (None, 1.0)
    assert list(uds["to_do"]) == [str(broken)]
    assert "(1.000)" in said.out
    listed = json.loads((copied / "out" / "before" / "to_do.json").read_text())
    assert list(listed) == [str(broken)]
    # once it can be loaded it is no longer to do
    shutil.copytree("lensaudit/embedded/masked_readout", broken, dirs_exist_ok=True)
    assert run(arguments) == 0
    assert document(copied)["metrics"][0]["auc"] == 1.0
    assert json.loads((copied / "out" / "before" / "to_do.json").read_text()) == {}


def test_a_pass_that_breaks_is_to_do_for_its_metric_alone(tmp_path, monkeypatch, capsys):
    from lensaudit.errors import VerificationError
    from lensaudit.metrics import inside

    def failing(session, model, score):
        raise VerificationError("the bridge and the model disagree")

    monkeypatch.setattr(inside, "score_inside", failing)
    arguments = [*faithfulness(tmp_path, names=("uds", "es")), "--limit", "2"]
    assert run(arguments) == 3
    assert "the bridge and the model disagree" in capsys.readouterr().err
    rows = {row["metric"]: row for row in document(tmp_path)["metrics"]}
    assert rows["es"]["auc"] is not None
    assert rows["uds"]["auc"] is None
    assert len(rows["uds"]["to_do"]) == 4
    monkeypatch.undo()
    assert run(arguments) == 0
    assert document(tmp_path)["metrics"][0]["auc"] == 1.0


def test_when_nothing_can_be_measured_there_is_no_table(tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    anchors = f"--data demo --full demo/full --retain {b}".split()
    arguments = faithfulness(tmp_path, *anchors, knows=a, forgot=b)
    assert run(arguments) == 2
    assert "none of 2 models could be measured" in capsys.readouterr().err
    assert not (tmp_path / "out" / "faithfulness.json").exists()


def robustness(folder, attack, *more):
    given = f"meta robustness --source demo/graddiff --attack {attack} --filter none"
    return [*given.split(), *metrics(("uds", "es")), *common(folder, *more)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--set", "relearn-data=none.jsonl"], "none.jsonl: no such file"),
        (["--set", "relearn-lr=0"], "'--set relearn-lr': 0.0 is not in the range x>0"),
        (["--device", "tpu"], "--device tpu"),
        (["--memory", "much"], "--memory much: not a size"),
        (["--after", "rows.jsonl"], "rows.jsonl: "),
    ],
)
def test_what_is_wrong_is_said_before_any_work(tmp_path, capsys, monkeypatch, more, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lensaudit.auditing.evaluate.evaluate_into", None)
    (tmp_path / "rows.jsonl").write_text("{}")
    assert run(robustness(tmp_path, "relearn", *more)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("last", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("faithfulness --pool-knows a --pool-forgot b --results nothing", "nothing: no such file"),
        (
            "faithfulness --pool-knows demo/full --pool-forgot demo/full",
            "have the same weights",
        ),
        ("robustness --source a --before nothing --after b", "nothing: no such file"),
        ("robustness --source a --before rows.json --after nothing", "nothing: no such file"),
        ("robustness --source results --before full.json", "no model to judge"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses(tmp_path, capsys, monkeypatch, call, said, last):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "rows.json", {"a": {"uds": 0.5}})
    put(tmp_path / "full.json", {"full": {"uds": 0.5}})
    chosen = "--metric uds" + " --filter none --attack quantize" * call.startswith("robustness")
    assert run(["meta", *call.split(), *chosen.split(), *last]) == 2
    assert said in capsys.readouterr().err


def of_results(folder, attack, before, after, *more):
    """The command on results alone."""
    given = f"meta robustness --source results --attack {attack} --before {before} --after {after}"
    return [*given.split(), "--out", str(folder / "out"), *more]


def by_hand(out):
    """The symmetric formula on the UDS that the logs hold."""

    def knowledge(folder, model):
        log = json.loads((out / folder / f"demo-{model}" / "TOFU_EVAL.json").read_text())
        return 1 - log["uds"]["agg_value"]

    b, a = (knowledge(folder, "graddiff") for folder in ("before", "after-relearn"))
    d, shift = a - b, knowledge("after-relearn", "retain") - knowledge("before", "retain")
    return 1 - abs(d - shift) / (abs(d) + abs(shift) + 1e-6)


def test_attacked_models_are_measured_and_their_weights_let_go(copied, capsys, monkeypatch):
    attack = "relearn"
    assert run(robustness(copied, attack)) == 0
    found = document(copied, f"robustness-{attack}")
    assert (found["attack"], found["form"], found["filter"]) == (attack, "symmetric", "none")
    rows = {row["metric"]: row for row in found["metrics"]}
    assert rows["uds"]["n"] == rows["es"]["n"] == 1
    assert rows["uds"]["value"] == pytest.approx(by_hand(copied / "out"), abs=1e-9)
    assert 0 < rows["uds"]["value"] < 1
    assert found["common"] == ["demo/graddiff"]
    # retain begins to know: 1 - uds rises
    assert rows["uds"]["retain_shift"] > 0.001
    assert list((copied / "out" / "attacked" / attack).iterdir()) == []
    capsys.readouterr()

    def never(*arguments, **options):
        raise AssertionError("measured or attacked again")

    monkeypatch.setattr("lensaudit.auditing.evaluate.evaluate_into", never)
    assert run(robustness(copied, attack)) == 0
    assert document(copied, f"robustness-{attack}") == found
    assert run([*robustness(copied, attack), "--form", "as_written"]) == 0
    assert document(copied, f"robustness-{attack}")["form"] == "as_written"


def test_the_filter_needs_thresholds(tmp_path, capsys):
    arguments = robustness(tmp_path, "quantize")
    arguments[arguments.index("none")] = "both"
    assert run(arguments) == 2
    assert "name a faithfulness.json (or published) with --faithfulness" in capsys.readouterr().err
    assert run([*arguments, "--faithfulness", str(tmp_path)]) == 2
    assert "faithfulness.json" in capsys.readouterr().err


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return str(path)


def test_the_anchors_in_the_results_are_no_candidates(tmp_path, capsys):
    logs = ("demo/full", "demo/retain", "demo/npo")
    for at, model in enumerate(logs):
        put(tmp_path / str(at) / "TOFU_EVAL.json", {"uds": {"agg_value": 0.5}})
        put(tmp_path / str(at) / "manifest.json", {"inputs": {"model": {"name": model}}})
    chosen = (*metrics(["uds"]), "--filter", "none")
    arguments = of_results(tmp_path, "relearn", tmp_path, tmp_path / "2", *chosen)
    # retain was not attacked: to do, so no number and no success
    assert run(arguments) == 3
    assert "to do: demo/retain (after: to do: no result" in capsys.readouterr().err
    found = document(tmp_path, "robustness-relearn")
    assert found["models"] == ["demo/npo"]
    assert found["metrics"][0]["value"] is None


def test_the_whole_chain_on_published_values(tmp_path, capsys):
    """124 of 150 models by utility, 12 of them by UDS; what does not move is stable."""
    path = GOLDEN / "published" / "method_results.json"
    judged = ("uds", "es", "em", "truth_ratio", "paraprob", "logit_lens", "s_mia_loss")
    chosen = (*metrics(judged), "--faithfulness", "published")
    assert run(of_results(tmp_path, "quantize", path, path, *chosen)) == 0
    found = document(tmp_path, "robustness-quantize")
    assert len(found["models"]) == 150
    rows = {row["metric"]: row for row in found["metrics"]}
    assert [rows[name]["n"] for name in judged] == [12, 14, 16, 17, 40, 16, 0]
    assert {row["n_utility"] for row in rows.values()} == {124}
    assert {row["value"] for row in rows.values()} == {1.0, None}
    # the file has no raw AUC, which is what s_MIA's filter looks at
    why = rows["s_mia_loss"]["filtered_out"]["altpo_lr5e5_b01_a1_ep5"]
    assert why == "mia_loss: its results lack this metric"
    assert len(found["common"]) == rows["uds"]["n_common"]
    assert 0 < len(found["common"]) < 12
    assert "124 of 150 by utility" in capsys.readouterr().out


UDS = {"metric": "uds", "auc": 0.5, "value": 0.5}


def test_names_and_reasons_are_shown_as_they_are(tmp_path, capsys):
    name, why = "[/x] [bold]a\x1b[31m", "no [/folder]"
    row = UDS | {"metric": name, "auc": None, "reason": why, "interval_95": [None, 0.5]}
    path = put(tmp_path / "faithfulness.json", {"kind": "faithfulness", "metrics": [row]})
    assert run(["meta", "table", path]) == 0
    said = "".join(capsys.readouterr().out.split())
    assert "\x1b" not in said
    assert "[/x][bold]a" in said
    log = {"extraction_strength": {"agg_value": 0.2}}
    put(tmp_path / "[bold]b" / "TOFU_EVAL.json", log)
    assert run(["meta", "aggregate", str(tmp_path)]) == 0
    assert "[bold]b" in capsys.readouterr().out


def test_retain_is_measured_once_for_all_models(tmp_path, monkeypatch):
    seen = []
    real = evaluate.evaluate_into

    def counted(model, *rest):
        seen.append(model)
        return real(model, *rest)

    monkeypatch.setattr("lensaudit.auditing.evaluate.evaluate_into", counted)
    arguments = faithfulness(tmp_path, names=("s_mia_loss",), forgot="demo/never,demo/graddiff")
    assert run(arguments) == 0
    assert sorted(seen) == sorted([*KNOWS.split(","), "demo/never", "demo/graddiff", "demo/retain"])


@pytest.mark.parametrize("anchor", ["full", "retain"])
def test_an_anchor_without_results_is_refused(tmp_path, capsys, anchor):
    row = {"metrics": {"em": 0.4, "es": 0.2}}
    (tmp_path / "results.json").write_text(json.dumps({"full_ep5": row, "retain": row, "npo": row}))
    asked = ["meta", "aggregate", str(tmp_path / "results.json"), "--out", str(tmp_path / "t")]
    assert run([*asked, f"--{anchor}", "nobody"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        f"--{anchor} nobody: its results are not here, only those of full_ep5, retain, npo" in line
    )
    assert not (tmp_path / "t").exists()
    assert run([*asked, f"--{anchor}", anchor]) == 0


@pytest.mark.parametrize(
    "asked",
    [
        "faithfulness --pool-knows demo/full --pool-forgot demo/never",
        "robustness --attack quantize --source demo/npo --filter none --data demo",
    ],
)
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--suite muse", "holds none of knowmem__forget_qa.jsonl"),
        ("--suite muse --data rows.jsonl", "go with --suite tofu only"),
        ("--data nothing.jsonl", "nothing.jsonl"),
    ],
)
def test_rows_that_a_suite_cannot_ask_are_refused_before_anything_is_written(
    tmp_path, monkeypatch, capsys, asked, more, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"question": "Who?", "answer": "Ada."}\n')
    words = f"meta {asked} --metric em --limit 2 --out out {more}".split()
    for last in ([], ["--dry-run"]):
        assert run([*words, *last]) == 2
        assert said in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()
