"""Attacked variants, units computed again, and training runs that are watched."""

import json
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file
from support import checkpoint_of
from support.sweep_helpers import (
    VALUE,
    command,
    plan_of,
    planned,
    publish_values,
    values_of,
)
from support.tolerance import NATS
from transformers import Trainer

import lensaudit as la
from lensaudit.attacks.rtt.embedded import embedded_rows
from lensaudit.doors.trainer import AuditCallback
from lensaudit.evaluation.log import read_log
from lensaudit.files import make_folder, write_json
from lensaudit.models.registry import EMBEDDED, load_registry
from lensaudit.scores.estimate import Estimate
from lensaudit.sweep.attempts import MAX_KILLS, finished
from lensaudit.sweep.plan import Unit, read_plan, write_plan
from lensaudit.sweep.unit import compare
from lensaudit.sweep.values import UnitValue
from lensaudit.sweep.watch import source_of, write_curve
from lensaudit.verdict.collect import verdicts

FAST = ("--metric", "exact_memorization,uds", "--limit", "2")


def results(root):
    sweep = read_plan(root)
    return {unit.label: finished(sweep, unit) for unit in sweep.units}


def audited(folder, tmp_path, metrics, *more):
    """Values of a checkpoint by `eval` alone."""
    anchors = "--retain demo/retain --full demo/full --data demo --limit 2"
    chosen = " ".join(f"--metric {name}" for name in metrics.split(","))
    out = f"--activations {tmp_path / 'a'} --out {tmp_path / 'eval'}"
    assert command(f"eval --model {folder} {anchors} {chosen} {out}", *more) == 0
    return json.loads((tmp_path / "eval" / "TOFU_SUMMARY.json").read_text())


def test_a_value_on_one_side_only_is_a_difference():
    unit = Unit("0", "u", "base")

    def of(value):
        return {"m": UnitValue(Estimate(value), 0, None, "toy")}

    one, none = of(0.5), of(None)
    assert not compare(unit, one, none, 1.0).is_within
    assert not compare(unit, one, {}, 1.0).is_within
    assert compare(unit, none, none, 0.0).is_within
    # 100 against 101 differs by 1 %, 0.5 against 0.51 by 0.01
    assert compare(unit, of(100.0), of(101.0), 0.011).is_within
    assert not compare(unit, one, of(0.52), 0.011).is_within


@pytest.mark.slow
def test_a_relearned_unit_equals_an_audit_of_the_relearned_checkpoint(tmp_path):
    root, folder = tmp_path / "sweep", tmp_path / "relearned"
    plan = f"sweep plan demo/npo --variants base,relearn-1ep --out {root}"
    assert command(plan, *FAST) == 0
    assert command("sweep", "run", root) == 0
    found = results(root)
    units = ("demo/retain", "demo/retain (relearn-1ep)", "demo/full", "demo/npo")
    assert list(found) == [*units, "demo/npo (relearn-1ep)"]
    assert command("relearn", "--source", "demo/npo", "--data", "demo", "--out", folder) == 0
    alone = audited(folder, tmp_path, FAST[1])
    after, before = (values_of(root, f"demo/npo{one}") for one in (" (relearn-1ep)", ""))
    assert after == pytest.approx(alone, abs=1e-5)
    # one epoch on the forget set brings some of it back
    assert after["uds"] < before["uds"]
    kept = root.rglob("*.safetensors")
    assert [path for path in kept if path.parent != root / "activations" / "maps"] == []


def weights_of(name):
    return checkpoint_of(f"demo/{name}").weights


def watched(run, out):
    return ("watch", run, "--data", "demo", *FAST, "--once", "--set", "settled=0", "--out", out)


def watch(run, out, *more):
    return command(*watched(run, out), *more)


@pytest.mark.slow
def test_a_watched_run_has_a_curve_over_steps(tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "out"
    for step, name in ((200, "npo"), (100, "full")):
        shutil.copytree(EMBEDDED / name, run / f"checkpoint-{step}")
    torn = shutil.copytree(EMBEDDED / "idknll", run / "checkpoint-300")
    whole = (torn / "model.safetensors").read_bytes()
    (torn / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert watch(run, out) == 0
    rows = json.loads((out / "curve.json").read_text())
    assert [row["step"] for row in rows] == [100, 200]  # the third is still being written
    assert "step 300: not audited: " in capsys.readouterr().err
    assert rows[0]["uds"] == pytest.approx(0, abs=NATS)
    assert rows[1]["uds"] > 0.1
    (torn / "model.safetensors").write_bytes(whole)
    capsys.readouterr()
    assert watch(run, out) == 0
    told = capsys.readouterr().err
    assert "step 300" in told
    assert "step 100" not in told
    lines = (out / "curve.csv").read_text().splitlines()
    assert lines[0] == "step,uds,exact_memorization,failure"
    assert [line.split(",")[0] for line in lines[1:]] == ["100", "200", "300"]


def test_a_watched_run_that_is_told_to_stop_goes_on_where_it_was(tmp_path, monkeypatch):
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(EMBEDDED / "npo", run / "step_1")

    def told(sweep, unit, obtain, halvings, report):
        signal.raise_signal(signal.SIGTERM)
        report("a pass")

    def value(sweep, unit, obtain, halvings, report):
        publish_values(sweep, unit, halvings, {"uds": VALUE})

    monkeypatch.setattr("lensaudit.sweep.unit.run_unit", told)
    assert {watch(run, out) for _ in range(MAX_KILLS)} == {75}
    monkeypatch.setattr("lensaudit.sweep.unit.run_unit", value)
    # while it waits for the next step, too; git, which is asked for the commit, waits as ever
    clock = Mock(wraps=time, sleep=lambda seconds: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr("lensaudit.sweep.watch.time", clock)
    asked = [one for one in watched(run, out) if one != "--once"]
    assert (command(*asked), watch(run, out)) == (75, 0)
    (row,) = json.loads((out / "curve.json").read_text())
    assert (row["step"], row["uds"]) == (1, VALUE.value)


def test_a_step_that_is_written_again_has_the_row_of_what_is_there(tmp_path, monkeypatch):
    run, out, measured, written = tmp_path / "run", tmp_path / "out", [], []

    def value(sweep, unit, obtain, halvings, report):
        measured.append(unit.label)
        is_npo = sweep.by_name[unit.target].weights == weights_of("npo")
        publish_values(sweep, unit, halvings, {"uds": replace(VALUE, value=float(is_npo))})

    def write(sweep, epochs):
        written.append(epochs)
        return write_curve(sweep, epochs)

    monkeypatch.setattr("lensaudit.sweep.unit.run_unit", value)
    monkeypatch.setattr("lensaudit.sweep.watch.write_curve", write)
    # A, B, and A again: what was started anew from the first weights; the last one twice
    for name, wanted in (("npo", 1.0), ("full", 0.0), ("npo", 1.0), ("npo", 1.0)):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(EMBEDDED / name, run / "checkpoint-100")
        assert watch(run, out) == 0
        assert [row["uds"] for row in json.loads((out / "curve.json").read_text())] == [wanted]
    # what was measured of the first weights is found again
    assert measured == ["demo/retain", "step-100", "step-100"]
    # as each step is new, and at the end
    assert len(written) == 2 + 2 + 2 + 1


def test_adapters_are_watched_on_their_base_and_what_cannot_be_opened_is_named(
    tmp_path, monkeypatch, capsys
):
    run, out = tmp_path / "run", tmp_path / "out"
    adapter = {"peft_type": "LORA", "r": 1, "lora_alpha": 1}
    bases = {1: None, 2: str(EMBEDDED / "full"), 3: str(EMBEDDED / "never"), 5: "org/private"}
    for step, base in (bases | {6: "elsewhere/full"}).items():
        folder = make_folder(run / f"checkpoint-{step}")
        save_file({"a": torch.ones(1)}, folder / "adapter_model.safetensors")
        write_json(folder / "adapter_config.json", adapter | {"base_model_name_or_path": base})
        write_json(folder / "trainer_state.json", {"epoch": 0.5 * step})
    shutil.copytree(EMBEDDED / "npo", run / "checkpoint-4")
    (run / "checkpoint-4" / "model.safetensors").rename(run / "checkpoint-4" / "pytorch_model.bin")

    def value(sweep, unit, obtain, halvings, report):
        publish_values(sweep, unit, halvings, {"uds": VALUE})

    monkeypatch.setattr("lensaudit.sweep.unit.run_unit", value)
    assert watch(run, out) == 0
    rows = json.loads((out / "curve.json").read_text())
    assert [(row["step"], row["epoch"]) for row in rows] == [(1, 0.5), (2, 1.0), (6, 3.0)]
    told = capsys.readouterr().err
    assert "step 1: checkpoint-1\n" in told
    for step in (3, 5):
        assert f"names the base model {bases[step]!r}, and full is demo/full; name " in told
    assert "checkpoint-4: no model.safetensors in " in told
    steps = {one.name: one for one in read_plan(out).targets}
    assert {steps[f"step-{step}"].repo for step in (1, 2, 6)} == {str(EMBEDDED / "full")}
    # what is told once is not told at every look
    looks = iter([0.0, 0.0, 1e9])
    monkeypatch.setattr("lensaudit.sweep.watch._wait", lambda *_: next(looks))
    asked = [one for one in watched(run, out) if one != "--once"]
    with pytest.raises(StopIteration):
        command(*asked)
    assert len(capsys.readouterr().err.splitlines()) == 3
    # one adapter can be merged: of a model with one, another is for its base
    first, second = (str(run / f"checkpoint-{step}") for step in (1, 2))
    found = source_of(Path(second), f"demo/full+{first}", load_registry())
    assert found == f"{EMBEDDED / 'full'}+{second}"


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_curve_of_others_is_not_replaced(tmp_path, capsys, is_planned):
    if is_planned:
        write_plan(plan_of(["step-1"], root=tmp_path))
    for name in ("curve.csv", *(() if is_planned else ("curve.json",))):
        mine = tmp_path / name
        mine.write_text("[1]")
        assert watch(tmp_path / "run", tmp_path) == 2
        assert "name another --out" in capsys.readouterr().err
        assert mine.read_text() == "[1]"
        mine.unlink()
    assert (tmp_path / "plan.json").exists() == is_planned


def test_a_curve_whose_table_was_not_written_is_known_as_ones_own(tmp_path, monkeypatch, capsys):
    sweep = plan_of(["step-1"], root=tmp_path)
    write_plan(sweep)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("lensaudit.sweep.watch.write_csv", killed)
    with pytest.raises(KeyboardInterrupt):
        write_curve(sweep, {})
    assert watch(tmp_path / "run", tmp_path) == 2
    assert "run: no such folder" in capsys.readouterr().err


def plain(rows):
    keys = ("idx", "question", "answer", "prefix", "entity", "group")
    return [{key: row[key] for key in keys} for row in rows]


@pytest.fixture
def plain_rows(tmp_path, monkeypatch):
    """Own rows to forget and to keep: no paraphrases, no wrong answers, no holdout."""
    monkeypatch.chdir(tmp_path)
    for part, step in (("forget", 2), ("retain", 1)):
        (tmp_path / f"{part}.json").write_text(json.dumps(plain(embedded_rows(part)[::step])))
    return "--full demo/full --retain demo/retain --data forget.json"


KEPT = "--kept retain.json"
MODELS = {"demo/never": "erased", "demo/masked_readout": "hidden"}


@pytest.mark.slow
def test_on_plain_own_rows_whoever_asks_finds_one_depth_and_one_word(plain_rows, tmp_path):
    # forget_quality reads what plain rows lack, of the retain model too
    few = f"{plain_rows} {KEPT} --metric uds,forget_quality --association quick"
    assert command("sweep plan", *MODELS, few, "--out swept") == 0
    assert command("sweep run swept") == 0
    assert command("sweep collect swept") == 0
    swept = results(tmp_path / "swept")
    units = tmp_path / "swept" / "units"
    told = json.loads((tmp_path / "swept" / "results" / "verdicts.json").read_text())
    assert {one["model"]: one["code"] for one in told} == MODELS
    cache = {"activations": "swept/activations"}
    rows = {"data": "forget.json", "retain_set": "retain.json"}
    anchors = {"full": "demo/full", "retain": "demo/retain"}
    asked = la.audit([*MODELS], out="audited", suite="none", **rows, **anchors, **cache)
    for one in asked:
        values = values_of(tmp_path / "swept", one.source)
        assert one.verdict.code == MODELS[one.source]
        assert values["uds"] == pytest.approx(one.uds, abs=1e-6)
        assert values["assignment"] == pytest.approx(one.association.p, abs=1e-6)
        log = read_log(units / swept[one.source]["unit"] / "eval")
        assert "no row of" in log.entries["forget_quality"].reason
    # the same of a training run, from outside and from inside
    shutil.copytree(EMBEDDED / "never", tmp_path / "run" / "checkpoint-1")
    shutil.copytree(tmp_path / "swept" / "activations", tmp_path / "watched" / "activations")
    assert command("watch run --once --set settled=0 --out watched", few) == 0
    (row,) = json.loads((tmp_path / "watched" / "curve.json").read_text())
    unit = results(tmp_path / "watched")["step-1"]["unit"]
    (model,) = verdicts([tmp_path / "watched" / "units" / unit]).models
    arguments = {"output_dir": "run", "save_strategy": "steps", "world_size": 1}
    arguments = SimpleNamespace(**arguments, metric_for_best_model=None)
    trainer = Mock(spec=Trainer, args=arguments, processing_class="a tokenizer")
    callback = AuditCallback(trainer, out="inside", **rows, **anchors, **cache)
    inside = callback._audited(1, tmp_path / "run" / "checkpoint-1")
    assert row["failure"] is None
    assert (model.code, inside.verdict.code) == ("erased", "erased")
    depth = values_of(tmp_path / "swept", "demo/never")["uds"]
    assert [row["uds"], inside.patch.uds] == pytest.approx([depth, depth], abs=1e-6)


def test_what_plain_own_rows_lack_is_said_before_anything_runs(plain_rows, tmp_path, capsys):
    assert command("sweep plan demo/npo --dry-run --out s --limit 2", plain_rows) == 0
    said = capsys.readouterr().out
    assert "forget.json has paraphrased_answer: no value of " in said
    assert "no verdict can be erased: " in said
    assert "add retain_rows (--validity-data, --align-data); none come with " in said
    assert command("sweep plan demo/npo --dry-run --out s --limit 2", plain_rows, KEPT) == 0
    assert "no verdict can be erased" not in capsys.readouterr().out
    for lacking in ("--metric forget_quality", "--metric uds --also retain"):
        assert command("sweep plan demo/npo --out s", plain_rows, lacking) == 2
    assert "no metric has rows to read" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_anchors_of_a_watched_run_are_named_at_hand_and_fit_before_anything_is_written(
    plain_rows, tmp_path, tiny_checkpoint, monkeypatch, capsys
):
    for module in ("at_hand", "hub_files"):
        monkeypatch.setattr(f"lensaudit.models.{module}.reachable", lambda: False)
    shutil.copytree(EMBEDDED / "never", tmp_path / "run" / "checkpoint-1")
    watched = "watch run --once --set settled=0 --out w --metric exact_memorization --limit 2"
    own = "run: checkpoints of your own; name the model before unlearning with --full, and one that"
    cases = {
        "--data forget.json": f"{own} never saw forget.json with --retain (not named: ",
        "--data forget.json --full demo/full": "(not named: --retain)",
        "--data forget10 --retain demo/retain": "(not named: --full)",
        f"--data {EMBEDDED / 'data'} --full full --retain retain": "full (open-unlearning/",
        f"--data demo --retain {tiny_checkpoint}": "models of different shape",
    }
    for more, said in cases.items():
        assert command(watched, more) == 2, more
        assert said in capsys.readouterr().err
        assert not (tmp_path / "w").exists()


def test_a_watched_run_whose_files_were_moved_goes_on_where_they_are(plain_rows, monkeypatch):
    def attempt(sweep, unit, order, signals):
        assert sweep == read_plan(Path("w"))
        assert Path(sweep.conditions.data).is_file()
        assert all(Path(one.repo).is_dir() for one in sweep.targets)
        tried.append(unit.target)
        if unit.target != "step-1":
            publish_values(sweep, unit, 0, {"toy": VALUE})

    monkeypatch.setattr("lensaudit.sweep.watch.attempt", attempt)
    rounds = {
        "old": (["npo"], ["retain", "step-1"]),
        "new": (["npo", "never"], ["step-1", "step-2"]),
    }
    for place, (there, wanted) in rounds.items():
        tried = []
        for name in ("full", "retain"):
            shutil.copytree(EMBEDDED / name, f"{place}/{name}")
        for step, name in enumerate(there, 1):
            shutil.copytree(EMBEDDED / name, f"{place}/run/checkpoint-{step}")
        shutil.copy("forget.json", place)
        ends = f"--full {place}/full --retain {place}/retain --data {place}/forget.json"
        assert command(f"watch {place}/run", ends, *FAST, "--once --set settled=0 --out w") == 0
        assert tried == wanted
        shutil.rmtree(place)


def test_rows_to_keep_are_part_of_what_a_unit_is(plain_rows, tmp_path):
    plan = "sweep plan demo/npo --limit 2 --metric uds"
    rows = plain(embedded_rows("retain"))
    assert command(plan, plain_rows, KEPT, "--out a") == 0
    (tmp_path / "retain.json").write_text(json.dumps(rows[1:]))
    assert command(plan, plain_rows, KEPT, "--out b") == 0
    assert command(plan, plain_rows, KEPT, "--align none --out c") == 0
    ids = [{unit.id for unit in read_plan(tmp_path / name).units} for name in "abc"]
    assert len(set.union(*ids)) == 3 * len(ids[0]) == 9


def test_weights_that_change_while_they_are_measured_are_no_result(tmp_path, monkeypatch, capsys):
    def measure(model, settings, conditions, out, report):
        manifest = {"inputs": {"model": {"weights": "others"}}}
        write_json(make_folder(out / "eval") / "manifest.json", manifest)

    monkeypatch.setattr("lensaudit.sweep.unit.measured", measure)
    assert planned(tmp_path, "demo/npo") == 0
    assert command("sweep", "run", tmp_path) == 1
    assert "demo/retain: its weights changed while it was measured" in capsys.readouterr().err
    assert not (tmp_path / "units").exists()


def test_a_step_that_cannot_be_read_has_its_reason_in_a_curve_of_one_kind_of_numbers(
    tmp_path, tiny_checkpoint, capsys
):
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(tiny_checkpoint, run / "step_7")
    (run / "step_8").mkdir()  # the trainer's first act
    spoken = ("--metric", "exact_memorization")  # nothing is patched for it
    assert watch(run, out, *spoken) == 0
    before = (out / "curve.json").read_bytes()
    (row,) = json.loads(before)
    assert row["step"] == 7
    assert row["failure"].startswith("step-7: its tokenizer has no chat template")
    assert watch(run, out, *spoken) == 0
    capsys.readouterr()
    for change in (("--limit", 3), ("--metric", "uds"), ("--retain", "demo/never")):
        assert watch(run, out, *spoken, *change) == 2
        said = capsys.readouterr().err
        assert "holds a curve of other metrics, data, anchors or settings" in said
    assert (out / "curve.json").read_bytes() == before
    assert watch(run, tmp_path / "none", "--device", "cuda:9") == 2
    assert not (tmp_path / "none").exists()
    assert watch(tmp_path / "nothing", tmp_path / "none") == 2
    assert "name the output folder of a training run" in capsys.readouterr().err
