"""lm-evaluation-harness on models in memory: the harness's own numbers, every argument passed."""

import copy
import functools
import json
import shutil
import socket
from contextlib import nullcontext

import pytest
import torch
import yaml
from support import without
from support.lm_eval_tasks import demo_rows, write_tasks

from lensaudit.cli.main import run
from lensaudit.doors import lmeval
from lensaudit.doors.lmeval import run_tasks, values_of
from lensaudit.doors.task_files import files_of, rows_of, tasks_named
from lensaudit.evaluation.settings import HarnessSettings
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import load_tokenizer, open_checkpoint
from lensaudit.models.conditions import conditions_of
from lensaudit.models.registry import EMBEDDED, load_registry, resolve

N = 6
ASKED = functools.partial(HarnessSettings, model="in memory", tasks="given")


def needs_harness():
    pytest.importorskip("lm_eval", reason="lm-eval is not installed (extra lmeval)")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    needs_harness()
    return write_tasks(tmp_path_factory.mktemp("tasks"), demo_rows(N))


@pytest.fixture(scope="module")
def managed_once(tasks):
    """The harness reads its thousands of files once for each folder of tasks, not for each test."""
    from lm_eval.tasks import TaskManager

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lm_eval.tasks.TaskManager", functools.cache(TaskManager))
        yield


@pytest.fixture
def no_network(monkeypatch):
    """Any connection is an error."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")

    def refuse(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def command(*arguments) -> int:
    return run(["lm-eval", *(str(one) for one in arguments)])


def summary(folder):
    return json.loads((folder / "LMEval_SUMMARY.json").read_text())


def scores_in(folder):
    """The log-probabilities of every choice."""
    rows = (folder / "own_choice.samples.jsonl").read_text().splitlines()
    return [float(choice[0][0]) for row in rows for choice in json.loads(row)["resps"]]


def by_itself(model, tasks, names, **arguments):
    """The harness run on a checkpoint's folder, without any code of ours."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    found = simple_evaluate(
        model="hf",
        model_args={"pretrained": str(EMBEDDED / model), "dtype": "float32"},
        tasks=list(names),
        device="cpu",
        task_manager=TaskManager(include_path=str(tasks)),
        batch_size=16,
        **arguments,
    )
    return {
        f"{task}/{key}": value
        for task, row in found["results"].items()
        for key, value in row.items()
        if "," in key and isinstance(value, float)
    }


@pytest.mark.slow
def test_both_kinds_of_task_equal_the_harness_by_itself(tasks, tmp_path, no_network):
    names = ("own_choice", "own_words")
    wanted = by_itself("full", tasks, names)
    out = tmp_path / "out"
    given = ("--tasks", ",".join(names), "--include", tasks, "--out", out)
    assert command("--model", "demo/full", *given) == 0
    found = summary(out)
    assert {key: found[key] for key in wanted} == pytest.approx(wanted)
    assert wanted["own_choice/acc,none"] > 0.5  # full knows its authors
    # the first word is right for some; the whole generation is never one word
    assert wanted["own_words/exact_match,first"] > 0 == wanted["own_words/exact_match,whole"]


@pytest.mark.slow
def test_arguments_reach_the_harness(tasks, tmp_path, no_network):
    out = tmp_path / "out"
    given = ("--tasks", "own_choice", "--include", tasks, "--out", out)
    assert command("--model", "demo/full", *given, "--num-fewshot", 2, "--limit", 4) == 0
    made = json.loads((out / "own_choice.json").read_text())
    assert made["n-shot"] == {"own_choice": 2}
    assert made["n-samples"]["own_choice"] == {"original": N, "effective": 4}
    assert made["versions"] == {"own_choice": 1.0}
    wanted = by_itself("full", tasks, ["own_choice"], num_fewshot=2, limit=4)
    assert summary(out)["own_choice/acc,none"] == wanted["own_choice/acc,none"]
    samples = (out / "own_choice.samples.jsonl").read_text().splitlines()
    assert len(samples) == 4
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["options"]["num_fewshot"] == 2


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        (("dataset_path", "output_type"), "no dataset_path and no output_type"),
        (("output_type",), "no output_type"),
        (("dataset_path",), "no dataset_path"),
    ],
)
def test_some_fields_of_a_task_are_no_task_and_refused_before_a_model_is_opened(
    tasks, managed_once, tmp_path, capsys, dropped, said
):
    whole = yaml.safe_load((tasks / "own_choice.yaml").read_text())
    some = {key: value for key, value in whole.items() if key not in dropped}
    (tmp_path / "some.yaml").write_text(yaml.safe_dump({"tasks": [some]}))
    given = ("--model", "demo/full", "--tasks", tmp_path / "some.yaml", "--include", tasks)
    assert command(*given, "--out", tmp_path / "out") == 2
    wanted = f"lensaudit: task own_choice: {said}; a mapping is a whole task, and the harness"
    assert wanted in capsys.readouterr().err
    # a name of its own generates where it does not say another type, as the harness has it
    lmeval._check_whole("mine", {"task": "mine", "dataset_path": "json"}, known=False)
    lmeval._check_whole("own_choice", {"task": "own_choice", "include": "base.yaml"}, known=True)


def test_rows_of_a_task_that_lie_elsewhere_decide_too(tmp_path):
    rows, folder = tmp_path / "rows.jsonl", tmp_path / "tasks"
    rows.write_text('{"question": "who?"}\n')
    (folder / "deep").mkdir(parents=True)
    said = {"task": "own", "dataset_kwargs": {"data_files": {"test": str(rows)}}}
    whole = yaml.safe_dump(said) + "doc_to_text: !function own.text\n"  # no code is run
    (folder / "deep" / "own.yaml").write_text(whole)
    (folder / "broken.yaml").write_text("a: [")
    asked = {"task": "own", "identity": {}, "settings": ASKED(include=folder)}
    assert files_of("own", folder) == [rows]
    assert files_of("own", None) == []
    before = lmeval._key(**asked)
    rows.write_text('{"question": "where?"}\n')
    assert lmeval._key(**asked) != before


def test_rows_in_a_folder_or_of_a_pattern_decide_too(tmp_path):
    for name in ("rows/a.jsonl", "rows/deep/b.jsonl", "rows/.cache/c.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    rows, pattern = tmp_path / "rows", str(tmp_path / "rows" / "**" / "*.jsonl")
    both = [rows / "a.jsonl", rows / "deep" / "b.jsonl"]
    for said in (
        {"dataset_path": str(rows)},
        {"dataset_path": "json", "dataset_kwargs": {"data_dir": str(rows)}},
        {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": [pattern]}}},
    ):
        assert rows_of({"task": "own", **said}) == both
        how = {"task": {"task": "own", **said}, "identity": {}, "settings": ASKED()}
        before = lmeval._key(**how)
        both[1].write_text(f"{both[1].read_text()}\n")
        assert lmeval._key(**how) != before
    assert rows_of({"task": "own", "dataset_path": "someone/rows"}) == []


def test_tasks_whose_names_read_alike_have_files_of_their_own():
    names = ["own", "Own", "首都", "颜色", "a/b", "a b", "x" * 90, "x" * 91]
    files = [file for name in names for file in lmeval._files(name)]
    assert len(set(files)) == len(files)
    assert lmeval._files("own") == ("own.json", "own.samples.jsonl")


def test_the_summary_has_every_task_of_the_folder_that_was_asked_the_same(tmp_path, monkeypatch):
    rows, out, ran = tmp_path / "rows.jsonl", tmp_path / "out", []
    rows.write_text("{}")
    whole = {"task": "whole", "dataset_kwargs": {"data_files": str(rows)}}

    def made(model, tokenizer, task, settings, manager):
        ran.append(lmeval.task_name(task))
        return {"results": {ran[-1]: {"acc,none": 0.5}}, "samples": []}

    monkeypatch.setattr(lmeval, "_run", made)
    monkeypatch.setattr(lmeval, "edited", lambda *_: nullcontext((None, None)))
    checkpoint = open_checkpoint(resolve("demo/retain", load_registry()))
    conditions = conditions_of(checkpoint, dtype="float32", device="cpu")

    def run_on(*tasks, **how):
        asked = ASKED(**how)
        opened = lmeval.OpenedHarness(asked, out, checkpoint, conditions, None, tasks, None)
        found = opened.run(lambda line: None).summary
        assert found == summary(out)
        files = json.loads((out / "manifest.json").read_text())["files"]
        return {one.partition("/")[0] for one in found}, {one for one in files if "samples" in one}

    run_on("own", whole)
    both = ({"own", "whole"}, {"own.samples.jsonl", "whole.samples.jsonl"})
    assert run_on("own") == both
    assert ran == ["own", "whole"]
    rows.write_text("{}\n")  # what the other task was asked is not so any more
    assert run_on("own") == ({"own"}, {"own.samples.jsonl"})
    assert run_on(whole) == both
    assert run_on("own", num_fewshot=1) == ({"own"}, {"own.samples.jsonl"})


def test_what_generation_obeys_tells_a_run_from_others(tmp_path):
    """A task was kept from before after its model's penalties had changed."""
    folder = shutil.copytree(EMBEDDED / "retain", tmp_path / "retain")

    def identity():
        checkpoint = open_checkpoint(resolve(str(folder), load_registry()))
        conditions = conditions_of(checkpoint, dtype="float32", device="cpu")
        opened = (ASKED(), tmp_path / "out", checkpoint, conditions, None, (), None)
        return lmeval.OpenedHarness(*opened).identity

    before = identity()
    assert "generation" not in before  # so that ordinary checkpoints keep their keys
    said = folder / "generation_config.json"
    said.write_text(json.dumps({**json.loads(said.read_text()), "repetition_penalty": 3.0}))
    assert identity() == {**before, "generation": {"repetition_penalty": 3.0}}


def test_the_device_that_is_named_is_taken(monkeypatch):
    asked = []
    monkeypatch.setattr(lmeval, "resolve_device", lambda device: device)
    monkeypatch.setattr(lmeval, "load_causal", lambda *_, **how: asked.append(how["device"]))
    checkpoint = open_checkpoint(resolve("demo/retain", load_registry()))
    conditions = conditions_of(checkpoint, dtype="float32", device="cpu")
    with lmeval.edited(checkpoint, ASKED(device="cuda:1"), None, conditions):
        assert asked == ["cuda:1"]


@pytest.mark.slow
def test_a_task_is_run_again_only_if_something_changed(tasks, tmp_path, no_network, capsys):
    out = tmp_path / "out"
    given = ("--tasks", "own_choice", "--include", tasks, "--limit", 2, "--out", out)
    assert command("--model", "demo/full", *given, "--dry-run") == 0
    assert "own_choice: runs" in capsys.readouterr().out
    assert not out.exists()
    command("--model", "demo/full", *given)
    capsys.readouterr()
    assert command("--model", "demo/full", *given, "--dry-run") == 0
    assert "own_choice: kept from before" in capsys.readouterr().out
    command("--model", "demo/full", *given)
    told = capsys.readouterr().err
    assert "holds this run already; nothing to do" in told
    # of two tasks the one that is there is kept
    two = [one if one != "own_choice" else "own_choice,own_words" for one in given]
    command("--model", "demo/full", *two)
    told = capsys.readouterr().err
    assert "own_choice: kept from before" in told
    assert "own_words: runs" in told
    assert "it is replaced" not in told  # another task goes beside
    command("--model", "demo/npo", *given)
    told = capsys.readouterr().err
    assert f"{out}: held the result of another run (model.name: demo/full, here demo/npo)" in told
    assert "own_choice: runs" in told


@pytest.mark.slow
def test_quantised_and_steered_models_are_asked_in_memory(tasks, tmp_path, no_network):
    from lensaudit.steer.estimators import SteeringVector, save_vector

    vector = torch.randn(64, generator=torch.Generator().manual_seed(0))
    path = save_vector(
        SteeringVector(vector=vector, layer=8, method="random", position="response"), tmp_path
    )
    given = ("--model", "demo/full", "--tasks", "own_choice", "--include", tasks)

    def scores(name, *more):
        assert command(*given, *more, "--out", tmp_path / name) == 0
        return scores_in(tmp_path / name)

    base = scores("base")
    assert scores("still", "--steer", path, "--coefficient", 0) == pytest.approx(base, abs=1e-3)
    assert scores("steered", "--steer", path, "--coefficient", 4) != pytest.approx(base, abs=1)
    assert scores("ablated", "--steer", path, "--ablate") != pytest.approx(base, abs=1e-3)
    rounded = scores("rounded", "--quantize", "nf4")
    assert rounded != pytest.approx(base, abs=1e-3)
    saved = tmp_path / "saved"
    quantize = ["quantize", "--source", "demo/full", "--method", "nf4", "--store", "float32"]
    assert run([*quantize, "--out", str(saved)]) == 0
    wanted = by_itself(saved, tasks, ["own_choice"])
    assert summary(tmp_path / "rounded")["own_choice/acc,none"] == wanted["own_choice/acc,none"]


@pytest.mark.slow
def test_a_chat_template_that_takes_too_much_is_one_line(tasks, tmp_path, no_network, capsys):
    model = tmp_path / "model"
    shutil.copytree(EMBEDDED / "full", model)
    (model / "chat_template.jinja").write_text("{{ 'x' * 10**10 }}")
    given = ("--model", model, "--tasks", "own_choice", "--include", tasks)
    assert command(*given, "--apply-chat-template", "--out", tmp_path / "out") == 2
    assert "wants more than 512 MB of memory" in capsys.readouterr().err


@pytest.mark.slow
def test_a_dictionary_task_stays_as_it_is_and_keeps_its_name(tasks, tmp_path, no_network):
    checkpoint = open_checkpoint(resolve("demo/full", load_registry()))
    model, tokenizer = load_causal(checkpoint), load_tokenizer(checkpoint)
    task = yaml.safe_load((tasks / "own_choice.yaml").read_text()) | {"task": "own_inline"}
    before = copy.deepcopy(task)
    for name in ("first", "second"):
        how = {"identity": {}, "settings": ASKED(limit=2, num_fewshot=1)}
        found = run_tasks(model, tokenizer, [task], tmp_path / name, **how)
        assert task == before
        assert "own_inline/acc,none" in found.summary
        made = json.loads((tmp_path / name / "own_inline.json").read_text())
        assert made["n-shot"] == {"own_inline": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data_files": "{folder}/torn.json"}, "JSON parse error"),
        ({"data_files": "{folder}/none.json"}, "none.json"),
        ({"doc_to_text": "{{ question.split( }}"}, "unexpected '}'"),
        ({"test_split": "nowhere"}, "nowhere"),
    ],
)
def test_a_task_that_cannot_be_read_is_one_line(tasks, tmp_path, no_network, capsys, change, said):
    task = yaml.safe_load((tasks / "own_choice.yaml").read_text()) | {"task": "own_bad"}
    (tmp_path / "torn.json").write_text('{"question": "x"')
    if "data_files" in change:
        task["dataset_kwargs"]["data_files"] = change["data_files"].format(folder=tmp_path)
    else:
        task |= change
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "own_bad.yaml").write_text(yaml.safe_dump(task))
    given = ("--model", "demo/full", "--tasks", "own_bad", "--include", tmp_path / "bad")
    assert command(*given, "--out", tmp_path / "out") == 2
    lines = [one for one in capsys.readouterr().err.splitlines() if one.startswith("lensaudit:")]
    assert lines[-1].startswith("lensaudit: task own_bad: the harness refuses it (")
    assert said in lines[-1]


@pytest.mark.slow
def test_a_patched_model_is_asked_with_its_patch_and_not_after(tasks, tmp_path, no_network):
    from lensaudit.models.bridge import bridge_from, intervening

    checkpoint = open_checkpoint(resolve("demo/full", load_registry()))
    tokenizer = load_tokenizer(checkpoint)
    bridge = bridge_from(load_causal(checkpoint), tokenizer)
    retain = load_causal(open_checkpoint(resolve("demo/retain", load_registry())))
    seen = {}

    def scores(name, model=bridge.original_model):
        how = {"identity": {"patch": name}, "settings": ASKED(batch_size=4, include=tasks)}
        run_tasks(model, tokenizer, ["own_choice"], tmp_path / name, **how)
        return scores_in(tmp_path / name)

    def patched(resid):
        """What retain has after layer 8, for the tokens that full is asked."""
        return seen["resid"]

    def remember(module, inputs, kwargs):
        states = retain(kwargs.get("input_ids", *inputs[:1]), output_hidden_states=True)
        seen["resid"] = states.hidden_states[9]

    before = scores("before")
    asked = bridge.original_model.register_forward_pre_hook(remember, with_kwargs=True)
    with intervening(bridge, {8: patched}):
        found = scores("patched")
    asked.remove()
    assert scores("after") == pytest.approx(before)
    # patched at every position, full's upper blocks stand on retain's lower ones
    stitched = load_causal(checkpoint)
    stitched.model.embed_tokens = retain.model.embed_tokens
    for layer in range(9):
        stitched.model.layers[layer] = retain.model.layers[layer]
    assert found == pytest.approx(scores("stitched", stitched), abs=1e-3)
    assert found != pytest.approx(before, abs=1e-1)


LISTED = """
handler: LMEvalEvaluator
tasks:
  - own_choice
  - task: own_inline
    dataset_path: json
    dataset_kwargs: {{data_files: {rows}}}
    output_type: multiple_choice
    test_split: train
    doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
    doc_to_target: "{{{{label}}}}"
    doc_to_choice: "{{{{choices}}}}"
    metric_list: [{{metric: acc}}]
    metadata: {{version: 1.0}}
simple_evaluate_args: {{batch_size: 16}}
"""


@pytest.mark.slow
def test_one_file_lists_names_and_whole_tasks_and_fresh_runs_them_again(
    tasks, tmp_path, no_network, capsys
):
    rows = tmp_path / "rows.json"
    shutil.copy(tasks / "rows.json", rows)
    listed = tmp_path / "lm_eval.yaml"
    listed.write_text(LISTED.format(rows=rows))
    out = tmp_path / "out"
    given = ("--model", "demo/full", "--tasks", listed, "--include", tasks, "--limit", 4)
    assert command(*given, "--out", out, "--dry-run") == 0
    captured = capsys.readouterr()
    assert "own_choice: runs\nown_inline: runs" in captured.out
    assert not out.exists()
    assert command(*given, "--out", out) == 0
    said = capsys.readouterr().err
    assert f"{listed}: handler, simple_evaluate_args not read" in said
    # the same rows and the same templates: the same numbers
    found = summary(out)
    assert found["own_inline/acc,none"] == found["own_choice/acc,none"]
    assert (out / "own_inline.samples.jsonl").read_text().count("\n") == 4
    made = json.loads((out / "manifest.json").read_text())
    assert list(made["inputs"]["listed"]) == [str(listed)]
    assert {"own_inline.json", "own_choice.json"} <= set(made["files"])
    assert command(*given, "--out", out) == 0
    assert "nothing to do" in capsys.readouterr().err
    assert command(*given, "--out", out, "--fresh", "--dry-run") == 0
    assert "own_choice: runs\nown_inline: runs" in capsys.readouterr().out
    assert command(*given, "--out", out, "--fresh") == 0
    said = capsys.readouterr().err
    assert "own_choice: runs" in said
    assert "own_inline: runs" in said
    assert summary(out) == found
    # other rows are another question, of the task that asks them alone
    lines = rows.read_text().splitlines()
    rows.write_text("\n".join(reversed(lines)))
    assert command(*given, "--out", out) == 0
    said = capsys.readouterr().err
    assert "own_choice: kept from before" in said
    assert "own_inline: runs" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("tasks: 3", "found int; wanted a list of names and mappings"),
        ("{}", "found dict; wanted a list of names and mappings"),
        ("[]", "found list; wanted a list"),
        ("- own\n- 7", "task 2 is 7; wanted a list"),
        ("- dataset_path: json", "task 1: a task given as a dictionary needs its name"),
        ("task: own\ndoc_to_text: !function x.y", "!function in line 2 runs code"),
        ("tasks: [a", "no YAML in line 1"),
        ("- !!python/name:os.system", "no YAML in line 1"),
        ("- arc\n- task: arc", "task arc is named twice"),
        (None, "no such file"),
    ],
)
def test_a_list_of_tasks_that_cannot_be_read_is_one_line(tmp_path, capsys, content, said):
    needs_harness()
    listed = tmp_path / "mine.yaml"
    if content is not None:
        listed.write_text(content)
    for more in ([], ["--dry-run"]):
        given = ("--model", "demo/full", "--tasks", listed, "--out", tmp_path / "out")
        assert command(*given, *more) == 2
        err = capsys.readouterr().err
        assert said in err
        assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_what_a_list_of_tasks_says_beside_them_is_told(tmp_path):
    listed, rows, told = tmp_path / "lm_eval.yaml", tmp_path / "rows.jsonl", []
    rows.write_text("{}")
    task = {"task": "own", "dataset_kwargs": {"data_files": {"test": [str(rows)]}}}
    listed.write_text(yaml.safe_dump({"handler": "x", "tasks": ["arc", task], "overwrite": True}))
    assert tasks_named(f"gsm8k,{listed}", told.append) == ("gsm8k", "arc", task)
    assert told == [f"{listed}: handler, overwrite not read; what --help lists is said by options"]
    assert files_of(f"gsm8k,{listed}", None) == [listed, rows]


def test_filters_that_share_a_metric_keep_both_values():
    found = values_of(
        {"gsm": {"alias": "gsm", "exact_match,strict": 0.1, "exact_match,flexible": 0.2}}
    )
    assert found == {"gsm/exact_match,strict": 0.1, "gsm/exact_match,flexible": 0.2}


def test_without_the_harness_its_extra_is_named(monkeypatch, tmp_path, capsys):
    without(monkeypatch, "lm_eval")
    assert command("--model", "demo/full", "--tasks", "x", "--out", tmp_path) == 2
    assert "lensaudit[lmeval]" in capsys.readouterr().err


@pytest.mark.slow
def test_an_unknown_task_is_one_line(tasks, tmp_path, no_network, capsys):
    given = ("--model", "demo/full", "--include", tasks, "--out", tmp_path / "out")
    for more, said in (
        (["no_such_task"], "unknown task 'no_such_task'"),
        (["own_choice,own_choice"], "is named twice"),
        (["own_choice", "--coefficient", 3], "--coefficient scales a vector"),
        (["own_choice", "--ablate"], "name its vector with --steer"),
    ):
        for last in ([], ["--dry-run"]):
            assert command(*given, "--tasks", *more, *last) == 2
            assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
