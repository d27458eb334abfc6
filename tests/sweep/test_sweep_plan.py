"""What is planned: stable, complete, immutable."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support import EMBEDDED, GOLDEN, taken_for_tofu
from support.sweep_helpers import SMALL, command, plan_of, planned

from lensaudit.attacks.rtt.embedded import embedded_rows
from lensaudit.errors import InputError
from lensaudit.files import make_folder, write_json
from lensaudit.models.registry import ModelSpec, load_registry
from lensaudit.sweep.plan import (
    Target,
    UnitConditions,
    names_in,
    read_plan,
    relearning_of,
    target_of,
    write_plan,
)
from lensaudit.sweep.planning import (
    SPAN_TOKENS,
    data_digest,
    forecast_of,
    listed,
    select,
    with_data,
    work_of,
)
from lensaudit.sweep.unit import stage
from lensaudit.text import digest


def test_patterns_roles_and_aliases_name_published_checkpoints_once():
    registry = load_registry()
    found = select(["idknll_*_ep10", "idknll_lr1e5_a1_ep10", "idknll"], registry)
    assert len(found) == 20 + 1  # 5 learning rates x 4 alphas; the alias is an epoch-5 model
    assert len(select(["role:unlearned"], registry)) == 398
    assert len(select(["role:pool_knows", "role:pool_forgot"], registry)) == 60


def test_the_anchors_come_first_and_retain_has_every_variant():
    sweep = plan_of(["a"], variants=("base", "nf4"), attacks={"nf4": {"block": 64}})
    labels = [unit.label for unit in sweep.units]
    assert labels == ["retain", "retain (nf4)", "full", "a", "a (nf4)"]
    assert [unit.label for unit in sweep.anchor_units()] == ["retain", "full"]


def test_a_damaged_checkpoint_is_planned_and_costs_itself(tmp_path, capsys):
    folder = shutil.copytree(EMBEDDED / "npo", tmp_path / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    ends = ("--retain", "demo/retain", "--full", "demo/full", "--data", "demo")
    assert planned(tmp_path / "s", "demo/idknll", str(folder), more=[*SMALL, *ends]) == 0
    assert "cut: planned, and will fail: " in capsys.readouterr().err
    found = {one.name: one.weights for one in read_plan(tmp_path / "s").targets}
    assert (found["cut"], found["demo/idknll"] is None) == (None, False)


def test_a_copy_that_a_pattern_brings_is_measured_once_and_says_so(tmp_path, capsys):
    for name, source in (("a", "npo"), ("b", "npo"), ("c", "idknll")):
        shutil.copytree(EMBEDDED / source, tmp_path / name)
    ends = ("--retain", "demo/retain", "--full", "demo/full", "--data", "demo")
    assert planned(tmp_path / "s", f"{tmp_path}/[a-c]", more=[*SMALL, *ends]) == 0
    line = f"{tmp_path / 'b'} has the weights of {tmp_path / 'a'}: measured once, as a\n"
    assert line in capsys.readouterr().err
    assert [one.name for one in read_plan(tmp_path / "s").targets][2:] == ["a", "c"]


def test_a_folder_is_itself_also_where_its_name_looks_like_a_pattern(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, source in (("m[1]", "npo"), ("m1", "idknll")):
        shutil.copytree(EMBEDDED / source, tmp_path / "odd" / name)
    (one,) = select(["./odd/m[1]"], load_registry())
    assert one.local == (tmp_path / "odd" / "m[1]")
    assert [one.local.name for one in select(["./odd/m[0-9]"], load_registry())] == ["m1"]
    assert [one.local.name for one in select(["./odd/*"], load_registry())] == ["m1", "m[1]"]


def ids_of(*names, **changes):
    return {unit.id for unit in plan_of(names, **changes).units}


def test_what_decides_a_number_decides_the_unit_and_nothing_else():
    before = ids_of("a")
    assert not before & ids_of("a", data="other")
    for change in ({"limit": 3}, {"metrics": ("uds",)}, {"dtype": "bfloat16"}):
        assert not before & ids_of("a", conditions=UnitConditions(**change))
    assert before == ids_of("a", conditions=UnitConditions(memory="1G"))
    assert before < ids_of("a", "b") == ids_of("b", "a", "b")


def test_another_chat_template_is_another_plan_and_is_not_measured_under_the_old_one(
    tmp_path, capsys
):
    ends = f"--full {tmp_path}/full --retain {tmp_path}/retain --data demo"
    few, names = "--metric exact_memorization --limit 2", ("full", "retain", "npo")
    for name in names:
        shutil.copytree(EMBEDDED / name, tmp_path / name)
    plan = ("sweep plan", f"{tmp_path}/npo", ends, few, "--out")
    assert command(*plan, tmp_path / "a") == 0
    sweep = read_plan(tmp_path / "a")
    (unit,) = (one for one in sweep.units if one.target == "npo")

    def staged():
        return stage(sweep, unit, make_folder(sweep.work(unit.id)), lambda of: None, tmp_path, 0)

    staged()
    settings = tmp_path / "npo" / "tokenizer_config.json"  # the same, saved by another version
    said = json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(said))
    staged()
    for name in reversed(names):
        template = tmp_path / name / "chat_template.jinja"
        template.write_text(template.read_text() + "{# #}")
        with pytest.raises(InputError, match="holds another tokenizer or chat template than when"):
            staged()
    assert command(*plan, tmp_path / "a") == 2
    assert "holds another plan" in capsys.readouterr().err
    assert command(*plan, tmp_path / "b") == 0
    assert not sweep.by_id.keys() & read_plan(tmp_path / "b").by_id.keys()


def test_two_checkpoints_of_one_name_stay_apart():
    same = [Target("x", place, None, "unlearned", None, True, f"sha:{place}") for place in "pq"]
    sweep = plan_of(same)
    names = [target.name for target in sweep.targets]
    assert len(set(names)) == 4


def own(*placed):
    """Folders, and what is in them."""
    return [Target(n, f"/{n}", None, "unlearned", None, True, f"sha:{held}") for n, held in placed]


def labels(sweep):
    return [unit.label for unit in sweep.units][2:]


def again(sweep, *placed):
    """The labels of a plan in the folder of an earlier one, and whether that one's units stay."""
    later = plan_of(own(*placed), root=sweep.root, names=names_in(sweep.root))
    write_plan(later)
    assert read_plan(sweep.root) == later
    return labels(later), {*sweep.by_id} <= {*later.by_id}


def test_a_plan_grows_in_any_order_and_names_stay_where_folders_share_one(tmp_path):
    sweep = plan_of(own(("npo", "a")), root=tmp_path)
    write_plan(sweep)
    grown, kept = again(sweep, ("npo", "b"), ("npo", "a"))
    assert kept
    assert grown[1] == "npo"
    assert grown[0].startswith("npo-")
    assert again(sweep, ("npo", "a"), ("npo", "b")) == ([*reversed(grown)], True)
    # a copy of what is planned is no newcomer
    assert again(sweep, ("npo", "b"), ("alpha", "a"), ("npo", "a")) == (grown, True)


def test_a_folder_that_was_renamed_stays_finished_under_its_name(tmp_path):
    sweep = plan_of(own(("npo", "a"), ("idk", "b")), root=tmp_path)
    write_plan(sweep)
    assert again(sweep, ("npo_final", "a"), ("idk", "b")) == (["npo", "idk"], True)
    # a newcomer does not get the name of another
    found, _ = again(sweep, ("npo_final", "a"), ("npo", "c"), ("idk", "b"))
    assert found[0] == "npo"
    assert found[1].startswith("npo-")
    with pytest.raises(InputError, match="not in this one: npo, npo-"):
        write_plan(plan_of(own(("npo", "new"), ("idk", "b")), root=tmp_path))


RUN = "unlearn_tofu_Llama-3.2-1B-Instruct_forget10_NPO_lr1e-05_beta0.1_alpha1"


@pytest.mark.parametrize(
    ("name", "local", "wanted"),
    [
        ("demo/npo", "x", "demo/npo"),
        ("npo_lr5e5_b05_a1_ep10", None, "npo_lr5e5_b05_a1_ep10"),
        ("open-unlearning/some_Model@v2", None, "open-unlearning-some_model-v2"),
        ("/long/way/to/runs/a/checkpoint-500", "x", "a-checkpoint-500"),
        ("/long/way/to/runs/a/step_500", "x", "a-step_500"),
        ("modelle/模型甲", "x", "模型甲"),
        ("modelle/Cafe\u0301", "x", "café"),
        (f"runs/{RUN}/checkpoint-125", "x", f"{RUN.lower()}-checkpoint-125"),
        (f"open-unlearning/{RUN}", None, f"open-unlearning-{RUN.lower()}"),
        (f"runs/{'x' * 200}_NPO_lr1e-05", "x", f"{'x' * 108}_npo_lr1e-05"),
        (f"runs/{'模' * 50}甲", "x", f"{'模' * 39}甲"),
    ],
)
def test_names_in_tables_are_usable_in_a_registry_file(name, local, wanted, tmp_path):
    spec = ModelSpec(name, "r", None, "unlearned", None, local=local and Path(local))
    found = target_of(spec, None).name
    assert found == wanted
    assert len(found.encode()) <= 120
    write_json(tmp_path / "names.json", {found: "a/b"})
    assert load_registry(tmp_path / "names.json")[found].name == found


def test_a_plan_is_written_once_and_read_back(tmp_path, capsys):
    assert planned(tmp_path / "dry", "demo/npo", more=(*SMALL, "--dry-run")) == 0
    assert not (tmp_path / "dry").exists()
    assert planned(tmp_path, "demo/npo") == 0
    first = read_plan(tmp_path)
    assert [unit.label for unit in first.units] == ["demo/retain", "demo/full", "demo/npo"]
    assert all(target.weights for target in first.targets)
    assert planned(tmp_path, "demo/npo") == 0
    assert read_plan(tmp_path) == first
    capsys.readouterr()
    assert planned(tmp_path, "demo/npo", more=(*SMALL, "--dry-run")) == 0
    assert capsys.readouterr().out.startswith(f"nothing to do: {tmp_path} holds this plan already")
    for more in (SMALL, (*SMALL, "--dry-run")):
        assert planned(tmp_path, "demo/idknll", more=more) == 2
        assert "holds another plan" in capsys.readouterr().err


def test_a_folder_takes_a_plan_that_keeps_its_units(tmp_path, capsys):
    assert planned(tmp_path, "demo/npo") == 0
    few = {*read_plan(tmp_path).units}
    assert planned(tmp_path, "demo/npo", "demo/idknll") == 0
    many = {*read_plan(tmp_path).units}
    assert few < many
    capsys.readouterr()
    assert planned(tmp_path, "demo/idknll") == 2
    said = "these units of it are not in this one: demo/npo; plan them too"
    assert said in capsys.readouterr().err
    assert {*read_plan(tmp_path).units} == many


def test_a_project_that_was_moved_is_planned_again_in_its_folder(tmp_path):
    (tmp_path / "old").mkdir()
    shutil.copytree(EMBEDDED / "npo", tmp_path / "old" / "npo")
    rows = "".join(f"{json.dumps(row)}\n" for row in embedded_rows("forget"))
    (tmp_path / "old" / "rows.jsonl").write_text(rows)

    def plan(place):
        ends = f"--full demo/full --retain demo/retain --data {place}/rows.jsonl"
        assert planned(place / "s", place / "npo", more=("--metric uds --limit 2", ends)) == 0
        return read_plan(place / "s")

    before = plan(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    after = plan(tmp_path / "new")
    assert after.units == before.units
    assert after.by_name["npo"].repo == str(tmp_path / "new" / "npo")
    assert after.conditions.data == str(tmp_path / "new" / "rows.jsonl")


def test_a_plan_of_an_earlier_version_is_refused_at_once_and_made_again(tmp_path, capsys):
    assert planned(tmp_path, "demo/npo") == 0
    sweep, path = read_plan(tmp_path), tmp_path / "plan.json"
    units = [{**unit, "id": digest(unit)} for unit in sweep.content["units"]]
    earlier = {**sweep.content, "schema": 1, "units": units}
    path.write_text(json.dumps(earlier | {"hash": digest(earlier)}))
    assert command("sweep run", tmp_path) == 2
    said = "is not a plan of this version (schema 1, wanted 2); plan again with `lensaudit sweep"
    assert said in capsys.readouterr().err
    before = path.read_bytes()
    assert planned(tmp_path, "demo/idknll") == 2
    said = "these units of it are not in this one: demo/npo; plan them too"
    assert said in capsys.readouterr().err
    assert command("watch", EMBEDDED, "--data demo --once --out", tmp_path) == 2
    assert "plan.json: an earlier version made it; name another --out" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert planned(tmp_path, "demo/npo") == 0
    assert read_plan(tmp_path) == sweep


def test_a_plan_that_is_there_is_read_where_nobody_writes(tmp_path, monkeypatch):
    def refused(folder):
        raise InputError(f"{folder}: access refused")

    assert planned(tmp_path, "demo/npo") == 0
    monkeypatch.setattr("lensaudit.sweep.plan.make_folder", refused)
    assert planned(tmp_path, "demo/npo") == 0


def test_a_plan_changed_on_disk_is_refused(tmp_path, capsys):
    planned(tmp_path, "demo/npo")
    path = tmp_path / "plan.json"
    content = json.loads(path.read_text())
    content["conditions"]["limit"] = 3
    path.write_text(json.dumps(content))
    for verb in ("run", "status", "collect", "retry", "gc"):
        assert command("sweep", verb, tmp_path) == 2
        assert "was changed after it was made" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense_*"], "pattern 'nonsense_*' matches no model"),
        ([], "the plan is empty"),
        (["demo/npo", "--variants", "int3"], "--variants 'int3'"),
        (["demo/npo", "--retain", "demo/full"], "have the same weights"),
        (["demo/npo", "--device", "tpu"], "--device tpu: wanted auto, cpu"),
        (["demo/npo", "--memory", "much"], "--memory much: not a size"),
    ],
)
def test_bad_input_is_one_line_before_any_work(tmp_path, capsys, arguments, said):
    assert command("sweep", "plan", *arguments, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) <= 3
    assert not (tmp_path / "out").exists()


def test_a_list_file_holds_names_and_comments(tmp_path):
    path = tmp_path / "models.txt"
    path.write_text("# pools\nnpo  # the default\n\nsimnpo\n")
    assert listed(path) == ["npo", "simnpo"]
    path.write_text("# nothing\n")
    with pytest.raises(InputError, match="holds no model name"):
        listed(path)


def test_the_forecast_counts_the_rows_that_are_asked(monkeypatch):
    taken_for_tofu(monkeypatch)
    asked = UnitConditions(data=str(GOLDEN / "rows.jsonl"), metrics=("uds",), exclude=("v2",))
    assert work_of(asked)["patched_examples"] == 14  # of 16: filter v2 names 17 and 49


def test_the_forecast_counts_what_controls_keep(tmp_path):
    assert planned(tmp_path / "maps", "demo/npo", more=SMALL) == 0
    assert planned(tmp_path / "none", "demo/npo", more=(*SMALL, "--align", "none")) == 0
    maps, none = (
        forecast_of(read_plan(tmp_path / one))["caches_bytes"] for one in ("maps", "none")
    )
    position = 17 * 64 * 4  # 16 layers and the final norm, d_model 64, float32
    assert maps - none == position * 16 * 64 * 5 // 4  # one in five is held out
    # the rows for validity are the same whatever is audited, and far more than two facts
    assert none > 10 * position * 2 * SPAN_TOKENS


def test_a_classifier_in_a_folder_counts_by_its_content_and_is_found_from_anywhere(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    asked = UnitConditions(data="demo", classifier="clf", metrics=("exact_memorization",))
    found = []
    for content in ("a", "b"):
        (make_folder(tmp_path / "clf") / "model.safetensors").write_text(content)
        found.append(data_digest(asked))
    assert len({*found, data_digest(replace(asked, classifier=None))}) == 3
    assert with_data(asked, "demo").classifier == str(tmp_path / "clf")
    assert with_data(replace(asked, classifier="org/clf")).classifier == "org/clf"


@pytest.mark.parametrize("asked", ["embedded", "own"])
def test_the_relearned_variant_says_its_settings_whatever_rows_are_asked(tmp_path, asked):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in embedded_rows("forget")))
    own = f"--data {rows} --full demo/full --retain demo/retain" if asked == "own" else "--json"
    out, more = tmp_path / "s", (*SMALL, own)
    assert planned(out, "demo/npo", variants="relearn-1ep", more=more) == 0
    settings = read_plan(out).attacks["relearn-1ep"]
    assert (settings["lr"], settings["formats"], settings["n_epochs"]) == (1e-3, ["raw", "chat"], 1)
    other = Target("x", "org/x", None, "full", None, False)
    published = relearning_of(UnitConditions(data="demo"), other)
    assert (published.lr, published.formats, published.n_epochs) == (2e-5, ("chat",), 1)


def test_a_unit_names_the_log_of_retain_wherever_there_is_one(tmp_path):
    """A verdict knows an attacked anchor by it, also where no metric compares with it."""
    alone = ("--metric", "exact_memorization", "--limit", "2")
    assert planned(tmp_path / "s", "demo/npo", more=alone) == 0
    sweep = read_plan(tmp_path / "s")
    retain, full = sweep.anchor_units()
    (unit,) = {*sweep.units} - {retain, full}

    def log_of(one):
        work = make_folder(sweep.work(one.id))
        held = stage(sweep, one, work, lambda of: EMBEDDED / of.name[5:], tmp_path / "a", 0)
        return held.retain_log

    assert log_of(unit) is None
    log = make_folder(sweep.unit(retain.id) / "eval") / "TOFU_EVAL.json"
    log.write_text("{}")
    assert log_of(unit) == log
    assert log_of(retain) is None


@pytest.mark.parametrize("edited", ["forget", "again"])
def test_rows_edited_since_they_were_planned_are_not_asked_under_the_old_ids(
    tmp_path, monkeypatch, edited
):
    monkeypatch.chdir(tmp_path)
    for name in ("forget", "again"):
        rows = "".join(f"{json.dumps(row)}\n" for row in embedded_rows("forget"))
        (tmp_path / f"{name}.jsonl").write_text(rows)
    rows = "--data forget.jsonl --full demo/full --retain demo/retain --set relearn-on=again.jsonl"
    few = ("--metric exact_memorization --limit 2", rows)
    assert planned(tmp_path / "s", "demo/npo", variants="base,relearn-1ep", more=few) == 0
    sweep = read_plan(tmp_path / "s")
    variants = {one.variant: one for one in sweep.units if one.target == "demo/retain"}
    # rows to relearn are of the units that relearn them
    unit = variants["base" if edited == "forget" else "relearn-1ep"]
    monkeypatch.setattr("lensaudit.sweep.unit.attacked", lambda start, *_, **__: start.folder)

    def staged():
        return stage(sweep, unit, make_folder(sweep.work(unit.id)), lambda of: None, tmp_path, 0)

    before = staged()
    path = tmp_path / f"{edited}.jsonl"
    content = path.read_text()
    path.write_text(content.replace("?", "!"))
    with pytest.raises(InputError, match="the rows are others than when the plan was made; plan"):
        staged()
    path.write_text(content)
    assert staged() == before
