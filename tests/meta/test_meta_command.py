"""`lensaudit meta` on the embedded family and on result files: runs, resumes, gaps, exit codes."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from support import GOLDEN

from lensaudit.auditing import evaluate
from lensaudit.cli.main import run
from lensaudit.files import make_folder
from lensaudit.meta import runs
from lensaudit.meta.reading import CATALOGUE
from lensaudit.meta.settings import FaithfulnessSettings, RobustnessSettings
from lensaudit.models.registry import load_registry, resolve
from lensaudit.settings import AnswerGroups
from lensaudit.sweep.plan import planned
from lensaudit.turns import alone

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


EVALUATED = "lensaudit.auditing.evaluate.evaluate_into"
evaluate_into = evaluate.evaluate_into


@pytest.fixture
def asked(monkeypatch):
    """Every model that is evaluated from here on, with the metrics."""
    seen = []

    def counted(model, settings, *rest, **more):
        seen.append((model, sorted(settings.metrics)))
        return evaluate_into(model, settings, *rest, **more)

    monkeypatch.setattr(EVALUATED, counted)
    return seen


def units(folder):
    """Model and variant -> folders of its finished units."""
    found = {}
    for path in sorted((folder / "out" / "sweep" / "units").glob("*/result.json")):
        said = json.loads(path.read_text())
        found.setdefault((said["target"], said["variant"]), []).append(path.parent)
    return found


def test_finished_models_are_not_measured_again(copied, asked, capsys):
    before = document(copied)
    assert run(faithfulness(copied)) == 0
    assert document(copied) == before
    assert "replaced" not in capsys.readouterr().err
    # fewer metrics need no new run; results alone need no model
    assert run(faithfulness(copied, names=("uds",))) == 0
    given = faithfulness(copied, "--results", copied / "out" / "sweep")
    assert run(given) == 0
    assert document(copied)["metrics"] == before["metrics"]
    assert asked == []
    # other conditions are another result
    assert run(faithfulness(copied)) == 0
    capsys.readouterr()
    assert run([*faithfulness(copied, "--limit", "3"), "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "4 models x 3 metrics, 0 finished" in said.out
    assert "(limit: 4, here 3); it is replaced" in said.err


def test_of_another_metric_and_another_model_only_what_is_new_is_measured(copied, asked, capsys):
    before = {row["metric"]: row for row in document(copied)["metrics"]}
    wider = faithfulness(copied, knows=f"{KNOWS},demo/npo", names=(*FEW, "prob"))
    assert run([*wider, "--dry-run"]) == 0
    assert "5 models x 4 metrics, 0 finished" in capsys.readouterr().out
    assert run(wider) == 0
    everyone = (*KNOWS.split(","), *FORGOT.split(","))
    probability = ["forget_Q_A_Prob"]
    assert sorted(asked) == sorted(
        [
            *((model, probability) for model in everyone),
            ("demo/npo", sorted(["uds", "extraction_strength", "mia_loss", *probability])),
        ]
    )
    asked.clear()
    # in any order of the metrics
    assert run(faithfulness(copied, names=("prob", *reversed(FEW)))) == 0
    assert asked == []
    found = {row["metric"]: row for row in document(copied)["metrics"]}
    assert {name: found[name] for name in FEW} == before
    assert found["prob"]["auc"] == 1.0


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    seen, stop = [], True

    def interrupted(model, *rest, **more):
        if stop and seen:
            raise KeyboardInterrupt
        seen.append(model)
        return evaluate_into(model, *rest, **more)

    monkeypatch.setattr(EVALUATED, interrupted)
    arguments = faithfulness(tmp_path, names=("es",))
    assert run(arguments) == 130
    stop = False
    assert run(arguments) == 0
    assert sorted(seen) == sorted([*KNOWS.split(","), *FORGOT.split(",")])


def test_a_second_process_is_told_to_come_again(copied, capsys):
    with alone(copied / "out" / "sweep"):
        assert run(faithfulness(copied)) == 75
    assert "another process works in it" in capsys.readouterr().err


def test_too_little_memory_halves_the_batch(tmp_path, monkeypatch):
    sizes = []

    def small(model, settings, *rest, **more):
        sizes.append(settings.batch_size)
        if (settings.batch_size or 32) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return evaluate_into(model, settings, *rest, **more)

    monkeypatch.setattr(EVALUATED, small)
    assert run(faithfulness(tmp_path, names=("es",), knows="demo/full", forgot="demo/never")) == 0
    assert sizes == [None, None, 16, 16, 8, 8]


def test_a_damaged_result_is_measured_again(copied, asked):
    before = document(copied)
    (folder,) = units(copied)["demo/idknll", "base"]
    (folder / "eval" / "TOFU_EVAL.json").write_text("{}")
    assert run(faithfulness(copied)) == 0
    assert [model for model, _ in asked] == ["demo/idknll"]
    assert document(copied) == before


def test_changed_weights_are_measured_again(copied, tmp_path, asked):
    own = tmp_path / "own"
    anchors = ["--full", "demo/full", "--retain", "demo/retain", "--data", "demo"]
    arguments = faithfulness(copied, *anchors, knows=f"demo/full,{own}", names=("es",))
    for name in ("masked_readout", "npo"):
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(f"lensaudit/embedded/{name}", own)
        assert run(arguments) == 0
        assert [model for model, _ in asked] == ["own"]
        assert run(arguments) == 0
        assert len(asked) == 1
        asked.clear()


def test_only_places_are_read_for_what_they_hold(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}")
    settings = AnswerGroups(full="demo/full", retain="demo/retain", data="demo", forget=rows)
    settings = replace(settings, classifier="some/one")
    asked = RobustnessSettings(models=("demo/npo",), attack="relearn", relearn_data=str(rows))

    def key(settings=settings, attack=None):
        given = FaithfulnessSettings(knows=("demo/full",), forgot=("demo/npo",))
        how = replace(runs.prepare_faithfulness(given, print), measuring=settings)
        return how.planned(["demo/npo"], ["uds"], attack)[1]

    plain = replace(settings, forget=None)
    before, relearned = key(), key(plain, asked)
    # files and a folder that are called as a setting's words
    for name in ("tofu", "auto", "eager", "true", "upstream", "question", "forget10"):
        (tmp_path / name).write_text("notes")
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "forget10_perturbed.jsonl").write_text("{}")
    assert key() == before
    rows.write_text('{"question": "Who?"}')
    assert key() != before
    assert key(plain, asked) != relearned
    slower = replace(asked, relearn_lr=1e-6)
    assert key(plain, slower) != key(plain, asked)
    rated, found = replace(plain, classifier=str(tmp_path / "rater")), []
    for weights in ("one", "another", "one"):
        (make_folder(tmp_path / "rater") / "model.safetensors").write_text(weights)
        found.append(key(rated))
    assert found[0] == found[2] != found[1]


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
    assert list(document(copied)["to_do"]) == [str(broken)]
    # once it can be loaded it is no longer to do
    shutil.copytree("lensaudit/embedded/masked_readout", broken, dirs_exist_ok=True)
    assert run(arguments) == 0
    assert document(copied)["metrics"][0]["auc"] == 1.0
    assert document(copied)["to_do"] == {}


def test_a_pass_that_breaks_is_to_do_for_its_metric_alone(tmp_path, monkeypatch, capsys):
    from lensaudit.errors import VerificationError
    from lensaudit.metrics.inside import scores

    def failing(session, model, score):
        raise VerificationError("the bridge and the model disagree")

    monkeypatch.setattr(scores, "score_inside", failing)
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
    monkeypatch.setattr(EVALUATED, None)
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


def by_hand(folder):
    """The symmetric formula on the UDS that the logs hold."""

    def knowledge(model, variant):
        logs = [one / "eval" / "TOFU_EVAL.json" for one in units(folder)[model, variant]]
        found = [json.loads(log.read_text()) for log in logs]
        return 1 - next(log["uds"]["agg_value"] for log in found if "uds" in log)

    b, a = (knowledge("demo/graddiff", one) for one in ("base", "relearn-1ep"))
    retain = [knowledge("demo/retain", one) for one in ("relearn-1ep", "base")]
    d, shift = a - b, retain[0] - retain[1]
    return 1 - abs(d - shift) / (abs(d) + abs(shift) + 1e-6)


def test_attacked_models_are_measured_and_their_weights_let_go(copied, capsys, monkeypatch):
    attack = "relearn"
    assert run(robustness(copied, attack)) == 0
    found = document(copied, f"robustness-{attack}")
    assert (found["attack"], found["form"], found["filter"]) == (attack, "symmetric", "none")
    rows = {row["metric"]: row for row in found["metrics"]}
    assert rows["uds"]["n"] == rows["es"]["n"] == 1
    assert rows["uds"]["value"] == pytest.approx(by_hand(copied), abs=1e-9)
    assert 0 < rows["uds"]["value"] < 1
    assert found["common"] == ["demo/graddiff"]
    # retain begins to know: 1 - uds rises
    assert rows["uds"]["retain_shift"] > 0.001
    assert [*copied.rglob("*.safetensors")] == [*(copied / "a").rglob("*.safetensors")]
    capsys.readouterr()
    monkeypatch.setattr(EVALUATED, None)
    monkeypatch.setattr("lensaudit.sweep.unit.attacked", None)
    assert run(robustness(copied, attack)) == 0
    assert document(copied, f"robustness-{attack}") == found
    assert run([*robustness(copied, attack), "--form", "as_written"]) == 0
    assert document(copied, f"robustness-{attack}")["form"] == "as_written"
    # as results, each side has its own units
    sides = [f"{when}={copied / 'out' / 'sweep'}" for when in ("--before", "--after")]
    assert run([*robustness(copied, attack), *sides]) == 0
    assert document(copied, f"robustness-{attack}")["metrics"] == found["metrics"]


def test_attacked_checkpoints_are_kept_where_that_is_asked(tmp_path):
    assert run(robustness(tmp_path, "quantize", "--keep")) == 0
    ((kept,),) = (place for (_, variant), place in units(tmp_path).items() if variant == "nf4")
    said = json.loads((kept / "result.json").read_text())["files"]
    assert "checkpoint/model.safetensors" in said
    assert (kept / "checkpoint" / "model.safetensors").is_file()


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


@pytest.fixture(scope="module")
def of_sweep(tmp_path_factory):
    """What a sweep of a user's models collected: logs that name their anchors by options alone."""
    folder = tmp_path_factory.mktemp("of_sweep")
    known = load_registry()
    for variant, gain in (("base", 0.0), ("relearn-1ep", 0.2)):
        for at, name in enumerate(("full", "npo", "retain")):
            log = {"uds": {"agg_value": at / 4 + gain}, "mia_loss": {"agg_value": 0.8 - at / 4}}
            place = folder / variant / f"my-{name}" / "eval"
            # an attack leaves other weights
            weights = planned(resolve(f"demo/{name}", known)).weights if not gain else name
            made = {"model": {"name": f"my-{name}", "weights": weights}}
            options = {"full": "my-full", "retain": "my-retain"}
            put(place / "TOFU_EVAL.json", log)
            put(place / "manifest.json", {"inputs": made, "options": options})
    return folder


ANCHORED = [
    [],
    ["--full", "my-full", "--retain", "my-retain"],
    ["--full", "demo/full", "--retain", "lensaudit/embedded/retain"],
]


@pytest.mark.parametrize("attack", ["relearn", "quantize"])
@pytest.mark.parametrize("anchors", ANCHORED)
def test_results_of_own_models_have_their_own_anchors(tmp_path, of_sweep, attack, anchors):
    sides = of_sweep / "base", of_sweep / "relearn-1ep"
    chosen = (*metrics(["uds"]), "--filter", "none", *anchors)
    assert run(of_results(tmp_path, attack, *sides, *chosen)) == 0
    found = document(tmp_path, f"robustness-{attack}")
    assert (found["models"], found["retain"]) == (["my-npo"], "my-retain")
    assert found["metrics"][0]["n"] == 1


@pytest.mark.parametrize("anchors", ANCHORED)
def test_the_retain_model_of_the_results_is_what_attacks_are_compared_with(
    tmp_path, of_sweep, anchors
):
    pools = "--pool-knows my-full,my-npo --pool-forgot my-retain --metric s_mia_loss"
    given = ["--results", str(of_sweep / "base"), "--out", str(tmp_path / "out")]
    assert run(["meta", "faithfulness", *pools.split(), *given, *anchors]) == 0
    values = {model: row["s_mia_loss"] for model, row in document(tmp_path)["values"].items()}
    assert values["my-retain"] == 1
    assert values["my-full"] < values["my-npo"] < 1


@pytest.mark.parametrize("anchors", ANCHORED)
def test_the_anchors_of_own_models_are_no_methods(tmp_path, of_sweep, anchors):
    given = ["--out", str(tmp_path / "out"), *anchors]
    assert run(["meta", "aggregate", str(of_sweep / "base"), *given]) == 0
    found = document(tmp_path, "aggregate")
    assert [one["method"] for one in found["ranking"]] == ["my-npo"]
    # compared with the retain model's own attack, of which there is the loss alone
    (npo,) = (one for one in found["models"] if one["model"] == "my-npo")
    assert "s_mia_zlib" in npo["reasons"]["privacy_mia"]


@pytest.mark.parametrize("anchor", ["full", "retain"])
def test_an_anchor_that_the_results_lack_is_refused_and_not_fetched(
    tmp_path, of_sweep, anchor, capsys
):
    sides = of_sweep / "base", of_sweep / "relearn-1ep"
    chosen = (*metrics(["uds"]), "--filter", "none", f"--{anchor}", anchor)
    assert run(of_results(tmp_path, "quantize", *sides, *chosen)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    only = "only those of my-full, my-npo, my-retain"
    assert f"--{anchor} {anchor}: its results are not here, {only}" in line


def put_logs(folder, *models):
    """A log of each model: the first one's values are the highest."""
    for at, model in enumerate(models):
        log = {"extraction_strength": {"agg_value": 1 / (at + 1)}, "mia_loss": {"agg_value": 0.5}}
        put(folder / str(at) / "TOFU_EVAL.json", log)
        put(folder / str(at) / "manifest.json", {"inputs": {"model": {"name": model}}})


OF_POOLS = "faithfulness --pool-knows mine_a,mine_b --pool-forgot mine_c,mine_d --results side"
ATTACKED = "robustness --source mine_a,mine_b --before side --after side"


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("asked", "metric", "lacks"),
    [
        (OF_POOLS, "es", None),
        (OF_POOLS, "s_mia_loss", "retain"),
        (f"{ATTACKED} --filter none --attack quantize", "es", None),
        (f"{ATTACKED} --filter none --attack relearn", "es", "retain"),
        (f"{ATTACKED} --filter utility --attack quantize", "es", "full"),
    ],
)
def test_results_need_the_anchors_that_are_read_and_no_others(
    tmp_path, monkeypatch, capsys, asked, metric, lacks, named
):
    monkeypatch.chdir(tmp_path)
    models = ("mine_a", "mine_b", "mine_c", "mine_d")
    put_logs(tmp_path / "side", *models)
    own = "".join(f'{one} = {{ path = "./{one}" }}\n' for one in models)
    (tmp_path / "models.toml").write_text(own)
    if named:
        (tmp_path / "lensaudit.toml").write_text('full = "./full"\nretain = ["./retain"]\n')
    given = f"meta {asked} --metric {metric} --registry models.toml --out out".split()
    assert run(given) == (2 if lacks else 0)
    said = capsys.readouterr().err
    if lacks and named:
        assert f"--{lacks} ./{lacks}: its results are not here" in said
    elif lacks:
        assert f"with --{lacks}" in said


@pytest.mark.parametrize(
    ("attack", "after", "said"),
    [
        ("quantize", {"a": "a4", "b": "b4", "demo/retain": "r"}, None),
        ("quantize", {"a": "a4", "b": "b"}, "b: not attacked, its weights are the same"),
        ("relearn", {"a": "a2", "b": "b2", "demo/retain": "r"}, "demo/retain: not attacked"),
        ("quantize", {"c": "c4"}, "counted twice: a and c have the same weights"),
    ],
)
def test_models_that_were_not_attacked_or_are_copies_are_refused(
    tmp_path, capsys, attack, after, said
):
    before = {"a": "a", "b": "b", "demo/retain": "r"} | ({"c": "a"} if "c" in after else {})
    for side, models in (("before", before), ("after", after)):
        for at, (name, weights) in enumerate(models.items()):
            put(tmp_path / side / str(at) / "TOFU_EVAL.json", {"uds": {"agg_value": 0.5}})
            model = {"name": name, "weights": weights}
            put(tmp_path / side / str(at) / "manifest.json", {"inputs": {"model": model}})
    chosen = (*metrics(["uds"]), "--filter", "none", "--retain", "demo/retain", "--dry-run")
    asked = of_results(tmp_path, attack, tmp_path / "before", tmp_path / "after", *chosen)
    assert run(asked) == (2 if said else 0)
    assert (said or "") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "first", "second"),
    [
        ("robustness --source m --before a --after b --attack quantize --filter none", 40, 40),
        ("robustness --source m --before a --after b --attack quantize --filter none", 40, 2),
        ("faithfulness --pool-knows m --pool-forgot n --results a --results b", 40, 40),
        ("faithfulness --pool-knows m --pool-forgot n --results a --results b", 40, 2),
        ("aggregate a b", 40, 40),
        ("aggregate a b", 40, 2),
    ],
)
def test_results_of_different_rows_are_not_compared(
    tmp_path, capsys, monkeypatch, asked, first, second
):
    monkeypatch.chdir(tmp_path)
    for folder, limit in (("a", first), ("b", second)):
        put(tmp_path / folder / "TOFU_EVAL.json", {"extraction_strength": {"agg_value": 0.5}})
        name = "m" if asked.startswith("robustness") or folder == "a" else "n"
        made = {"data": {"forget": f"rows{limit}"}, "model": {"name": name, "weights": folder}}
        put(tmp_path / folder / "manifest.json", {"inputs": made})
    judged = [] if asked.startswith("aggregate") else ["--metric", "es", "--dry-run"]
    assert run(["meta", *asked.split(), *judged]) == (0 if first == second else 2)
    said = capsys.readouterr().err
    assert ("was asked of other forget rows than es of m in a/TOFU" in said) == (first != second)


@pytest.mark.parametrize(
    ("metric", "other", "alike"),
    [
        ("es", "em", True),
        ("mia_loss", "mia_zlib", True),
        # which is made of the attack's own values
        ("mia_loss", "s_mia_loss", False),
    ],
)
@pytest.mark.parametrize("asked", ["faithfulness", "robustness", "aggregate"])
def test_metrics_that_are_judged_alone_may_have_rows_of_their_own(
    tmp_path, monkeypatch, capsys, asked, metric, other, alike
):
    monkeypatch.chdir(tmp_path)
    for key in (metric, other):
        for name in ("full", "m", "retain"):
            folder = tmp_path / "side" / key / name
            put(folder / "TOFU_EVAL.json", {CATALOGUE[key].suite: {"agg_value": 0.5}})
            made = {"data": {"forget": f"rows of {key}"}, "model": {"name": name}}
            put(folder / "manifest.json", {"inputs": made})
    words = {
        "faithfulness": "faithfulness --pool-knows full,m --pool-forgot retain --results side",
        "robustness": "robustness --source m --before side --after side --attack quantize "
        "--filter none",
        # one score of all metrics
        "aggregate": "aggregate side",
    }
    chosen = () if asked == "aggregate" else (*metrics((metric, other)), "--dry-run")
    refused = asked == "aggregate" or not alike
    assert run(["meta", *words[asked].split(), *chosen]) == (2 if refused else 0)
    assert ("was asked of other forget rows than" in capsys.readouterr().err) == refused


def test_what_is_measured_now_is_not_compared_with_results_of_other_rows(copied, tmp_path, capsys):
    made = {"data": {"forget": "others"}, "model": {"name": "demo/idknll"}}
    put(tmp_path / "given" / "TOFU_EVAL.json", {"extraction_strength": {"agg_value": 0.5}})
    put(tmp_path / "given" / "manifest.json", {"inputs": made})
    given = faithfulness(copied, "--results", tmp_path / "given", "--run", names=("es",))
    before = document(copied)
    assert run(given) == 2
    assert "was asked of other forget rows than" in capsys.readouterr().err
    assert document(copied) == before


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


def test_retain_is_measured_once_for_all_models(tmp_path, asked):
    arguments = faithfulness(tmp_path, names=("s_mia_loss",), forgot="demo/never,demo/graddiff")
    assert run(arguments) == 0
    models = [*KNOWS.split(","), "demo/never", "demo/graddiff", "demo/retain"]
    assert sorted(model for model, _ in asked) == sorted(models)


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


def test_a_clean_up_of_other_plans_keeps_what_earlier_runs_measured(copied, asked, capsys):
    wider = faithfulness(copied, knows=f"{KNOWS},demo/npo", names=("es",))
    assert run(wider) == 0
    assert [model for model, _ in asked] == ["demo/npo"]
    asked.clear()
    before = units(copied)
    sweep = str(copied / "out" / "sweep")
    (copied / "out" / "sweep" / "work" / ("0" * 32)).mkdir(parents=True)
    capsys.readouterr()
    assert run(["sweep", "gc", sweep, "--others"]) == 0
    assert run(["sweep", "status", sweep, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["other_results"] == 0
    assert units(copied) == before
    assert (copied / "out" / "sweep" / "work" / ("0" * 32)).is_dir()
    assert run(faithfulness(copied)) == 0
    assert asked == []


def test_a_sweep_of_the_user_keeps_its_plan(tmp_path, capsys):
    sweep = tmp_path / "out" / "sweep"
    planned = f"sweep plan demo/npo --metric extraction_strength --limit 2 --out {sweep}"
    assert run(planned.split()) == 0
    before = (sweep / "plan.json").read_bytes()
    for last in ([], ["--dry-run"]):
        assert run([*faithfulness(tmp_path, names=("es",)), *last]) == 2
        said = f"{sweep}: was written by `lensaudit sweep`; name another --out"
        assert said in capsys.readouterr().err
    assert (sweep / "plan.json").read_bytes() == before


@pytest.mark.parametrize("last", [[], ["--dry-run"]])
def test_a_judgement_that_is_replaced_is_told_in_one_line(tmp_path, monkeypatch, capsys, last):
    monkeypatch.chdir(tmp_path)
    rows = [{"model": name, "uds": value} for name, value in (("a", 0.5), ("b", 0.25), ("c", 0.75))]
    put(tmp_path / "rows.json", {"models": rows})
    given = "meta {} --results rows.json --metric uds --out out".format
    pools = "faithfulness --pool-knows a --pool-forgot b{}".format
    assert run(given(pools("")).split()) == 0
    read = "--before rows.json --after rows.json --out out"
    words = f"meta robustness --source a,b --filter none --metric uds {read}".split()
    capsys.readouterr()
    # another judgement stands beside it, the same one is asked again
    assert run([*words, "--attack", "quantize"]) in (0, 3)
    assert run([*given(pools("")).split(), *last]) == 0
    assert "replaced" not in capsys.readouterr().err
    assert run([*given(pools(",c")).split(), *last]) == 0
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "replaced" in one]
    why = 'forgot: ["b"], here ["b", "c"]'
    assert line == f"lensaudit: out: held the result of another run ({why}); it is replaced"
    assert run([*words, "--attack", "quantize", "--form", "recovery", *last]) in (0, 3)
    assert "(form: symmetric, here recovery); it is replaced" in capsys.readouterr().err


def test_a_table_that_is_replaced_is_told_in_one_line(tmp_path, capsys):
    path = put(tmp_path / "faithfulness.json", {"kind": "faithfulness", "metrics": [UDS]})
    other = put(tmp_path / "b" / "faithfulness.json", {"kind": "faithfulness", "metrics": [UDS]})
    for results, n_told in (((path,), 0), ((path,), 0), ((path, other), 1)):
        assert run(["meta", "table", *results, "--out", str(tmp_path / "t")]) == 0
        assert capsys.readouterr().err.count("it is replaced") == n_told
