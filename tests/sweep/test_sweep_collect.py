"""What a table of many checkpoints rests on: counts, columns, and what has no value."""

import csv
import errno
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from support import verdict_support as made
from support.sweep_helpers import VALUE, plan_of, publish_values, toy_sweep

from lensaudit.cli.main import run
from lensaudit.evaluation.log import write_log
from lensaudit.files import make_folder, write_csv
from lensaudit.models.registry import ModelSpec
from lensaudit.results import locate
from lensaudit.results.manifest import manifest
from lensaudit.sweep.collect import COLUMNS, collect
from lensaudit.sweep.plan import read_plan, target_of, write_plan
from lensaudit.sweep.unit import run_unit
from lensaudit.turns import in_turn


def collected(root, metric="toy", **changed):
    """Toy units of three checkpoints and two anchors; some have another value."""
    sweep = toy_sweep(root)
    for unit in sweep.units:
        shutil.rmtree(sweep.unit(unit.id), ignore_errors=True)
        values = {"toy": VALUE, metric: replace(VALUE, **changed.get(unit.target, {}))}
        publish_values(sweep, unit, 0, values)
    collect(sweep)
    return sweep.root / "results"


def test_a_model_without_a_value_is_not_behind_the_number(tmp_path):
    out = collected(tmp_path, m1={"value": None, "records": {}, "why": "no row to score"})
    counted = json.loads((out / "collected.json").read_text())
    assert counted["metrics"] == {"base": {"toy": {"n_values": 4, "n_planned": 5}}}
    (row,) = [one for one in csv.DictReader((out / "table.csv").open()) if one["model"] == "m1"]
    assert (row["value"], row["reason"]) == ("", "no row to score")


def test_a_collection_that_is_there_stays_as_it_is_until_something_is_new(tmp_path, capsys):
    out = collected(tmp_path)

    def files():
        return {one: (one.stat().st_mtime_ns, one.read_bytes()) for one in out.rglob("*.*")}

    def content():
        found = {one: text for one, (_, text) in files().items()}
        made = json.loads(found.pop(out / "manifest.json"))  # says when, too
        return found, made["files"], made["inputs"]

    before, was = files(), content()
    assert run(["sweep", "collect", str(tmp_path)]) == 0
    assert f"{out} holds this run already; nothing to do" in capsys.readouterr().err
    assert files() == before
    changes = {
        "a file that was changed": lambda: (out / "table.csv").write_text("model\n"),
        "a table that is gone": lambda: (out / "table.json").unlink(),
    }
    for change in changes.values():
        change()
        assert run(["sweep", "collect", str(tmp_path)]) == 0
        assert "already" not in capsys.readouterr().err
        assert content() == was
    collected(tmp_path, m1={"value": 0.25})  # a unit that was computed again
    assert "0.25" in (out / "table.csv").read_text()


def test_a_relearning_that_taught_nothing_is_told_where_its_numbers_are_collected(
    tmp_path, monkeypatch
):
    sweep = plan_of(["m"], ("base", "relearn-1ep"), root=tmp_path)
    write_plan(sweep)

    def measured(model, settings, conditions, out, report):
        options = dict.fromkeys(("dtype", "device", "attn", "batch_size"), "x")
        asked = {"model": {"name": model, "weights": "w"}}
        asked["metrics"] = {"toy": {"family": "toy", "high_means": "knows"}}
        log = write_log(make_folder(out / "eval"), "tofu", {"toy": VALUE})
        made = manifest("eval", kind="eval", options=options, inputs=asked, device="x", started=0.0)
        made.write(log.parent, [log.name])
        last = 0.1 if model == "retain" else 0.49
        write_csv(
            make_folder(out / "checkpoint") / "losses.csv",
            ("step", "loss"),
            [(1, 0.5), (2, 0.2), ("after", last)],  # the last step's rows are easier
        )

    monkeypatch.setattr("lensaudit.sweep.unit.stage", Mock())
    monkeypatch.setattr("lensaudit.sweep.unit.measured", measured)
    for unit in sweep.units:
        run_unit(sweep, unit, Mock(), 0, Mock())
    told = []
    collect(sweep, notice=told.append)
    (line,) = [one for one in told if "next to nothing" in one]
    assert line.startswith("m (relearn-1ep): ")


def tree(folder):
    return {one.relative_to(folder): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


FOREIGN = ("collected.json", "table.csv", "table.json", "table.parquet", "verdicts.json")


@pytest.mark.parametrize("name", [*FOREIGN, "base/notes.txt", "base/to_do.json", "base/m0/a.txt"])
def test_a_file_of_others_where_a_collection_writes_is_refused_by_name(tmp_path, capsys, name):
    out = collected(tmp_path)
    shutil.rmtree(out)
    mine = make_folder((out / name).parent) / Path(name).name
    mine.write_text('{"mine": 1}')
    assert run(["sweep", "collect", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert mine.name in said
    assert "Traceback" not in said
    assert tree(out) == {Path(name): b'{"mine": 1}'}


def test_collecting_again_removes_only_what_a_collection_wrote(tmp_path, capsys):
    out = collected(tmp_path)
    for beside in ("mine/to_do.json", "mine/m/patch/summary.json", "notes.txt"):
        (make_folder((out / beside).parent) / Path(beside).name).write_text("{}")
    before = tree(out)
    (out / "table.json").unlink()
    collect(toy_sweep(tmp_path))
    after = tree(out)
    made = [json.loads(one.pop(Path("manifest.json"))) for one in (after, before)]
    assert after == before
    assert not [name for name in made[0]["files"] if name.startswith(("mine", "notes"))]
    # a file of others in the folder of a variant: nothing there goes
    (out / "base" / "m1" / "thesis.tex").write_text("years of work")
    before = tree(out)
    capsys.readouterr()
    assert run(["sweep", "collect", str(tmp_path)]) == 2
    said = f"{out / 'base'}: holds m1/thesis.tex, which no record of its own names"
    assert said in capsys.readouterr().err
    assert tree(out) == before


@pytest.mark.parametrize("at", ["_table", "judged", "seal"])
def test_a_collection_that_was_killed_is_made_again(tmp_path, monkeypatch, at):
    out = collected(tmp_path)
    whole = tree(out).keys()

    def killed(*_, **__):
        raise KeyboardInterrupt

    (out / "table.json").unlink()
    monkeypatch.setattr(f"lensaudit.sweep.collect.{at}", killed)
    with pytest.raises(KeyboardInterrupt):
        collect(toy_sweep(tmp_path))
    assert not (out / "manifest.json").exists()
    monkeypatch.undo()
    collect(toy_sweep(tmp_path))
    assert tree(out).keys() == whole


def test_a_collection_reads_each_record_once(tmp_path, monkeypatch):
    sweep, read = toy_sweep(tmp_path), []
    for unit in sweep.units:
        publish_values(sweep, unit, 0, {"toy": VALUE})
        made.save_run(sweep.unit(unit.id) / "patch", made.summary(source=unit.target))

    def counted(path, read_one):
        read.append(path)
        return read_one(path)

    for kind, one in locate._WHOLE.items():
        monkeypatch.setitem(locate._WHOLE, kind, partial(counted, read_one=one))
    collect(sweep)
    assert sorted(read) == sorted({*read})
    assert len(read) == 2 * len(sweep.units)
    words = json.loads((tmp_path / "results" / "verdicts.json").read_text())
    assert [one["model"] for one in words] == ["full", "m0", "m1", "m2", "retain"]


LONG = "runs/unlearn_tofu_Llama-3.2-1B-Instruct_forget10_{}_beta0.1_alpha1/checkpoint-{}"
CUT = "unlearn_tofu_llama-3.2-1b-instruct_forge"
"""What an earlier version called such folders: the second one, `CUT` and eight digits more."""


def test_a_model_has_one_name_in_table_verdicts_and_folders(tmp_path):
    folders = [LONG.format("NPO_lr1e-05", 125), LONG.format("NPO_lr1e-05", 250)]
    folders += [LONG.format("SimNPO_lr2e-05", 125), "runs/模型甲", "runs/模型乙", "runs/Cut/b"]
    specs = [ModelSpec(one, one, None, "unlearned", None, local=Path(one)) for one in folders]
    chosen = [replace(target_of(one, None), adapter="lora") for one in specs]
    chosen += [replace(chosen[0], repo=end, name=f"{CUT}{end}") for end in ("", "-99ea49f1")]
    sweep = plan_of(chosen, root=tmp_path)
    write_plan(sweep)
    for unit in sweep.units:
        publish_values(sweep, unit, 0, {"toy": VALUE})
        made.save_run(sweep.unit(unit.id) / "patch", made.summary(source=unit.target))
    out = collect(read_plan(tmp_path))
    rows = [*csv.DictReader((out / "table.csv").open())]
    names = {one.name for one in sweep.targets}
    assert {one["model"] for one in rows} == names
    assert {*names} == {path.name for path in (out / "base").iterdir() if path.is_dir()}
    assert {one["model"] for one in json.loads((out / "verdicts.json").read_text())} == names
    assert {one["path"] for one in rows} >= {f"{folder}+lora" for folder in folders}
    assert all(
        any(name.endswith(f"{end}_beta0.1_alpha1-checkpoint-125") for name in names)
        for end in ("_npo_lr1e-05", "_simnpo_lr2e-05")
    )


def test_a_disk_that_is_full_while_files_are_copied_is_one_line(tmp_path, monkeypatch, capsys):
    def refused(number):
        def raises(*_, **__):
            raise OSError(number, os.strerror(number))

        return raises

    collected(tmp_path / "s")
    monkeypatch.setattr("os.link", refused(errno.EXDEV))
    monkeypatch.setattr("shutil.copy2", refused(errno.ENOSPC))
    arguments = ["sweep", "collect", str(tmp_path / "s"), "--out", str(tmp_path / "out")]
    assert run(arguments) == 75
    said = capsys.readouterr().err
    assert f"{tmp_path}/out/base/retain/eval/" in said
    assert said.endswith(": no space left on the device; free some and run again\n")
    assert len(said.splitlines()) == 1
    monkeypatch.undo()
    assert run(arguments) == 0


def test_a_variant_that_is_in_the_plan_no_more_leaves_a_collection(tmp_path):
    out = collected(tmp_path / "one")
    other = plan_of(["m0"], ("base", "nf4"), root=tmp_path / "two")
    write_plan(other)
    for unit in other.units:
        publish_values(other, unit, 0, {"toy": VALUE})
    collect(other, out)
    assert (out / "nf4" / "m0").exists()
    assert not (out / "base" / "m1").exists()
    collect(toy_sweep(tmp_path / "one"), out)
    assert not (out / "nf4").exists()
    assert (out / "base" / "m1").exists()


def test_another_process_that_collects_is_waited_for_and_what_it_made_is_found(tmp_path):
    out = collected(tmp_path)
    before = {one: one.stat().st_mtime_ns for one in out.rglob("*.*")}
    sweep, told = toy_sweep(tmp_path), []
    with ThreadPoolExecutor(1) as other:
        with in_turn(out):
            waits = other.submit(collect, sweep, notice=told.append)
            while not told and not waits.done():
                time.sleep(0.01)
            assert told == [f"{out}: another process collects there"]
            assert not waits.done()
        assert waits.result(60) == out
    assert told[1:] == [f"{out} holds this run already; nothing to do"]
    assert {one: one.stat().st_mtime_ns for one in out.rglob("*.*")} == before


def test_what_a_model_keeps_stands_beside_full(tmp_path, capsys):
    sweep = toy_sweep(tmp_path)
    full, retain = sweep.anchors["full"], sweep.anchors["retain"]
    others = sorted({unit.target for unit in sweep.units} - {full, retain})
    values = {full: 0.98, retain: 0.96} | dict(zip(others, (0.97, 0.5, None), strict=True))
    changed = {name: {"value": value} for name, value in values.items()}
    out = collected(tmp_path, metric="retain_Q_A_Prob", **changed)
    counted = json.loads((out / "collected.json").read_text())
    assert counted["keeps"] == {
        name: {"retain_Q_A_Prob": {"value": values[name], "full": 0.98}} for name in others[:2]
    }
    assert run(["sweep", "collect", str(tmp_path)]) == 0
    line = f"{others[0]} keeps .97 of full's .98 (Prob on kept rows)"
    assert line in capsys.readouterr().out


def test_the_columns_are_these_in_this_order_in_every_form(tmp_path):
    out = collected(tmp_path, m1={"value": 0.25, "low": 0.125, "high": 0.375})
    header, *rows = csv.reader((out / "table.csv").open())
    of_value = "metric family high_means value low high n_scored n_unscored reason"
    assert header == f"model role method variant {of_value} weights dtype device unit path".split()
    assert tuple(header) == COLUMNS
    (row,) = [one for one in rows if one[0] == "m1"]
    wanted = "m1,unlearned,,base,toy,toy,knows,0.25,0.125,0.375,1,0,"
    assert row[:13] == wanted.split(",")
    table = json.loads((out / "table.json").read_text())
    assert [list(one) for one in table] == [header] * 5
