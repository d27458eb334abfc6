"""Auditors judge planted models, once; own ones enter by one decorated function."""

import copy
import importlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import GOLDEN
from support.outside import PACKAGE, PLUGIN, entry_points, nothing_left, of_the_example

import lensaudit
from lensaudit.association.evidence import KnowOutcome
from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.files import write_json
from lensaudit.gym import auditors, registry
from lensaudit.gym.auditors import AUDITORS, Case, SeedModels, _e50, fitted, ranks
from lensaudit.gym.make import make, models_in
from lensaudit.gym.registry import engine_version, load_own
from lensaudit.gym.scoring import Fooled, Submitted, score
from lensaudit.gym.settings import MakeSettings, ScoreSettings, SubmitSettings
from lensaudit.gym.table import errors_of, ledger_of, rows_of, seal, table
from lensaudit.metrics.registry import all_metrics
from lensaudit.results.manifest import signed
from lensaudit.screen.meta import of_submission

MODELS = ("permuted", "permuted_turned", "split_layers", "absent")


@pytest.fixture(scope="module")
def gym(tmp_path_factory, one_type):
    folder = tmp_path_factory.mktemp("gym")
    make(MakeSettings(mechanism=MODELS, limit=8, out=folder))
    settings = ScoreSettings(gym=folder, auditor=("uds", "greedy"), limit=8)
    score(settings)
    return folder


def scores(gym, auditor):
    return {r.mechanism: r.score for r in rows_of(gym, 8) if r.auditor == auditor}


def test_hiding_is_seen_in_the_stream_and_not_in_the_outputs(gym):
    assert scores(gym, "uds")["permuted"] < 0.05
    assert scores(gym, "uds")["permuted_turned"] > 0.9  # the known hole
    assert scores(gym, "uds")["absent"] > 0.7
    assert scores(gym, "uds")["full"] == pytest.approx(0, abs=1e-3)
    assert scores(gym, "uds")["retain"] == pytest.approx(1, abs=1e-3)
    assert scores(gym, "greedy")["full"] == 1
    assert scores(gym, "greedy")["permuted"] < 0.5


def test_every_fact_has_its_score_and_a_model_the_interval_of_its_authors(gym):
    rows = {(r.auditor, r.mechanism): r for r in rows_of(gym, 8)}
    for one in (rows["uds", "permuted"], rows["greedy", "permuted"]):
        assert sorted(one.facts) == list(range(0, 64, 8))  # one of each author
        assert one.score == pytest.approx(sum(one.facts.values()) / 8)
    absent = rows["uds", "absent"]
    assert absent.ci95[0] < absent.score < absent.ci95[1]


def test_the_way_to_full_is_no_way_for_a_model_that_says_the_facts(gym):
    score(ScoreSettings(gym=gym, auditor=("interpolation",), limit=8))
    rows = {r.mechanism: r for r in rows_of(gym, 8) if r.auditor == "interpolation"}
    assert (rows["full"].score, set(rows["full"].facts.values())) == (0, {0.0})
    assert 0 < rows["permuted"].score < 1
    assert 0 < rows["retain"].score <= 1
    assert all(0 <= value <= 1 for value in rows["retain"].facts.values())


@pytest.fixture(scope="module")
def asked(gym, tmp_path_factory):
    """A copy of the gym where an absent model may be asked and attacked."""
    return shutil.copytree(gym, tmp_path_factory.mktemp("said") / "gym")


@pytest.mark.parametrize(
    ("auditor", "sign"),
    [
        ("leak_exact", 1),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("assignment", 1), ("bits", 1), ("worst_excess", 1), ("effort", -1))
        ),
    ],
)
def test_questions_and_attacks_on_what_is_said_tell_full_from_retain(asked, auditor, sign):
    score(ScoreSettings(gym=asked, auditor=(auditor,), mechanism=("absent",), limit=8))
    found = scores(asked, auditor)
    assert sign * found["full"] > sign * found["retain"]
    if auditor == "worst_excess":
        assert found["retain"] == 0  # the control arm, and nothing was run


@pytest.mark.parametrize(
    ("e50", "censored", "reason", "score"),
    [
        (4, False, "full was lost later", 4.0),
        (256, True, "", 512.0),
        (8, True, "full was lost", None),
        (None, False, "full was lost", None),
    ],
)
def test_effort_without_its_positive_control_is_unscored(e50, censored, reason, score):
    arm = {"e50": e50, "censored": {"e50": censored}, "reason": reason}
    found = _e50(arm, 256)
    assert (found.score, found.why) == (score, reason if score is None else None)


def test_another_engine_is_another_auditor(tmp_path, monkeypatch):
    module = importlib.import_module("lensaudit.gym.registry")
    first, greedy = module.AUDITORS["uds"].version, module.AUDITORS["greedy"].version
    monkeypatch.setattr(module, "engine_version", lambda: "another")
    assert module.AUDITORS["uds"].version != first != greedy
    assert module.AUDITORS["greedy"].version != greedy
    monkeypatch.undo()
    assert all(list(Path(lensaudit.__file__).parent.glob(name)) for name in module.ENGINE)


def version_of(package, **files):
    """Version of the engine of a package, after some of its files were written."""
    for name, text in files.items():
        path = package / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return engine_version.__wrapped__(package)


def test_the_engine_is_what_scores_are_computed_with_and_nothing_else(tmp_path):
    first = version_of(
        tmp_path,
        gym__auditors="def judge():\n    from lensaudit.scores import depth\n",  # when it is called
        scores__depth="from lensaudit.groups import spread\n",
        groups='"""Rows."""\nspread = 1\n',
        metrics__one="n = 1\n",  # found by its folder: no import names it
        cli__main="import lensaudit.gym.auditors\n",
        report__render="x = 1\n",
    )
    assert version_of(tmp_path, cli__main="x = 2\n", report__render="x = 2\n") == first
    same = {"groups": '"""What rows are."""\nspread=1  # of one\n'}
    assert version_of(tmp_path, **same) == first
    for changed in ({"groups": "spread = 2\n"}, {"metrics__one": "n = 2\n"}):
        assert version_of(tmp_path, **changed) != first
        first = version_of(tmp_path)


def test_the_engine_of_the_package_holds_what_orders_rows_and_no_command():
    package = Path(lensaudit.__file__).parent
    read = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "read_text", lambda path: read.append(path) or path.read_text())
        engine_version.__wrapped__(package)
    names = {path.relative_to(package).as_posix() for path in read}
    assert {"groups.py", "scores/depth.py", "activations/fill.py", "metrics/utility.py"} <= names
    assert not {name.partition("/")[0] for name in names} & {"cli", "report", "screen", "doors"}


def test_views_of_the_aligned_stream_are_scored_where_no_map_is_needed_too(gym):
    views = ("uds_aligned", "uds_shared", "uds_shared_weakest", "tail", "verdict")
    score(ScoreSettings(gym=gym, auditor=views, limit=8))
    for view in views[:3]:
        assert scores(gym, view)["permuted"] < 0.05  # plain UDS says so
        assert scores(gym, view)["permuted_turned"] < 0.05
        assert scores(gym, view)["absent"] > 0.6
    left = scores(gym, "tail")
    assert left["permuted"] == left["permuted_turned"] == left["full"] == 8
    assert left["absent"] <= 1
    # a model of another depth has an aligned depth and no other
    deeper = {r.auditor: r for r in rows_of(gym, 8) if r.mechanism == "split_layers"}
    assert deeper["uds"].score is None
    assert "layers 32" in deeper["uds"].why
    assert deeper["uds_aligned"].score < 0.1
    assert deeper["tail"].score == 8
    assert deeper["verdict"].score in (0.0, 0.5)  # not erased


def test_an_own_auditor_is_one_function_in_a_file(gym, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from lensaudit.errors import WorkError\n"
        "from lensaudit.gym import AuditorScore, auditor\n"
        "@auditor('length', reads='weights', high_means='knows', source='mine')\n"
        "def length(case):\n"
        "    norm = case.bench.loaded(case.model).lm_head.weight.detach().norm()\n"
        "    if 'absent' in case.model:\n"
        "        raise WorkError('it broke')\n"
        "    return AuditorScore(float(norm))\n"
    )
    try:
        settings = ScoreSettings(gym=gym, own=(path,), auditor=("length",), limit=8)
        assert score(settings) == (6, 0)
        rows = {r.mechanism: r for r in rows_of(gym, 8) if r.auditor == "length"}
        assert rows["permuted"].score == pytest.approx(rows["full"].score)
        assert rows["absent"].score is None
        assert rows["absent"].why == "it broke"
    finally:
        AUDITORS.pop("length", None)


def test_time_that_is_up_leaves_the_rest_for_later(gym):
    assert score(ScoreSettings(gym=gym, auditor=("greedy",), limit=7, minutes=0.0)) == (0, 6)
    assert not (gym / "scores-7.jsonl").exists()


def test_cheap_auditors_are_the_default_and_every_one_has_a_source():
    cheap = {one.name for one in AUDITORS.values() if one.cheap}
    assert {"uds", "uds_aligned", "uds_prefix", "lens", "cka", "interpolation", "probe"} <= cheap
    assert not {"rtt", "relearn_gain"} & cheap
    assert all(one.source for one in AUDITORS.values())
    with pytest.raises(InputError, match="no auditor 'x'; there are uds"):
        score(ScoreSettings(auditor=("x",)))


def test_every_metric_about_the_forget_set_is_an_auditor():
    kept = ("retain_", "ra_", "wf_", "model_utility", "collateral", "selectivity")
    other = {
        # the same number in other words, of another data set, or of another auditor's name
        *("rel_diff", "s_mia_min_k_plus_plus", "s_mia_min_k", "s_mia_zlib", "s_mia_loss"),
        *("fisher_masked_0.0001", "fisher_masked_0.001", "fisher_masked_0.01", "logit_lens"),
        *("forget_Q_A_PERT_Prob", "forget_Q_A_PERT_ROUGE", "forget_Q_A_PARA_ROUGE"),
        *("forget_truth_ratio_true_better", "forget_truth_ratio_prob_mean", "forget_Q_A_ROUGE_f1"),
        *("forget_verbmem_ROUGE", "forget_knowmem_ROUGE", "mia_reference", "uds_validity"),
        *("forget_gibberish", "forget_Q_A_gibberish"),
    }
    wanted = {name for name in all_metrics() if not name.startswith(kept)} - other
    assert wanted <= set(AUDITORS)


def test_a_gym_without_models_or_scores_is_refused(tmp_path):
    for gym, said in ((tmp_path, "gym make"), (tmp_path / "none", "none: .*gym make")):
        with pytest.raises(InputError, match=said):
            score(ScoreSettings(gym=gym))
    assert not (tmp_path / "none").exists()
    with pytest.raises(InputError, match="gym score"):
        rows_of(tmp_path, None)


def test_rows_are_no_recipes_even_where_they_are_python():
    with pytest.raises(InputError, match="wanted a Python file"):
        load_own(GOLDEN / "rows.jsonl")


def test_what_is_said_of_a_submission_tells_no_score_from_no_threshold():
    judged = (Fooled("uds", 0.5, None, None), Fooled("greedy", None, 0.1, None))
    lines = [*of_submission([Submitted("m", "hidden", 1.0, "c", 0.5, None, judged, False, False)])]
    assert lines[1:] == [
        "  uds 0.500: no threshold",
        "  greedy –: no score",
        "  best auditor –; does not enter",
    ]


def test_a_linear_code_is_read_and_a_shuffled_one_is_not():
    draw = torch.Generator().manual_seed(0)
    code = torch.nn.functional.normalize(torch.randn(20, 64, generator=draw), dim=1)
    turn = torch.linalg.qr(torch.randn(64, 64, generator=draw))[0]
    labels = torch.arange(200) % 20
    x = 3 * code[labels] @ turn + 0.1 * torch.randn(200, 64, generator=draw)
    right = ranks(fitted(x[:150], code[labels[:150]]), x[150:], labels[150:], code)
    mixed = labels[:150][torch.randperm(150, generator=draw)]
    wrong = ranks(fitted(x[:150], code[mixed]), x[150:], labels[150:], code)
    assert right.mean() > 0.99
    assert 0.3 < wrong.mean() < 0.7


def test_the_rank_of_an_answer_is_the_share_of_others_that_it_beats():
    x = torch.tensor([[0.9, 0.5, 0.1]] * 3)
    found = ranks(fitted(torch.eye(3), torch.eye(3)), x, torch.tensor([0, 1, 2]), torch.eye(3))
    assert found.tolist() == pytest.approx([1.0, 0.5, 0.0])


def test_the_commands_print_what_they_did_and_judge_nothing_twice(gym, capsys):
    where = ["--gym", str(gym), "--limit", "8"]
    assert run(["gym", "score", *where, "--auditor", "greedy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["new"] == 0
    picture, nulls = gym / "map.svg", gym / "nulls.json"
    extra = ["--picture", str(picture), "--calibration", str(nulls)]
    assert run(["gym", "table", *where, *extra]) == 0
    shown = capsys.readouterr().out
    assert "| uds | stream | permuted_turned |" in shown
    assert "held-out half" in shown
    assert picture.read_text().startswith("<?xml")
    assert json.loads(nulls.read_text())["views"] == {}  # one absent model makes no null


@pytest.mark.slow
def test_a_submitted_recipe_is_certified_scored_and_told_whom_it_fools(gym, tmp_path):
    """`permuted_turned` again, of eight facts' tokens and of all: both fool UDS, one is useful."""
    from lensaudit.gym.registry import RECIPES
    from lensaudit.gym.scoring import submit

    path = tmp_path / "mine.py"
    path.write_text(
        "from lensaudit.gym import edits, recipe, undone\n"
        "from lensaudit.gym.planting import turn_of, turned_and_permuted\n"
        "@recipe('mine', truth='hidden', how='turned')\n"
        "def mine(ground, strength):\n"
        "    return turned_and_permuted(ground, turn_of(ground).T)\n"
        "@recipe('mine_all', truth='hidden', how='turned')\n"
        "def mine_all(ground, strength):\n"
        "    tokens, turn = list(range(8, len(ground.tokenizer))), turn_of(ground).T\n"
        "    def undo(model):\n"
        "        return edits.permuted_readout(edits.turned(model, turn.T), tokens, by=-1)\n"
        "    made = edits.turned(edits.permuted_readout(ground.full, tokens), turn)\n"
        "    return made, undone(undo, 'back')\n"
    )
    # a threshold needs knowing and absent models that are not held out
    try:
        found = submit(SubmitSettings(gym=gym, limit=8), path)
    finally:
        for name in ("mine", "mine_all"):
            RECIPES.pop(name, None)
    for one in found:
        assert {judge.auditor: judge.fooled for judge in one.auditors}["uds"] is True
        assert one.enters == one.as_useful == (one.mechanism == "mine")
    assert 0.9 <= found[0].utility < 1  # swapped tokens are those of other facts too
    assert found[1].utility < 0.1
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    with pytest.raises(InputError, match="registers no recipe"):
        submit(SubmitSettings(gym=gym, limit=8), empty)


def test_lines_of_models_that_were_made_anew_are_left_out(gym, tmp_path):
    copy_of_scores(gym, tmp_path)
    alone = rows_of(tmp_path, 8)
    assert len(alone) == len(rows_of(gym, 8))
    folder = tmp_path / "seed-0" / "permuted"
    folder.mkdir(parents=True)
    made = json.loads((gym / "seed-0" / "permuted" / "manifest.json").read_text())["inputs"]
    again = signed({"inputs": made | {"key": "another"}, "files": {}})
    write_json(folder / "manifest.json", again)
    assert {one.mechanism for one in rows_of(tmp_path, 8)} == {"full", "retain"}
    other = signed({"inputs": made | {"key": "another", "forget": "others"}, "files": {}})
    write_json(folder / "manifest.json", other)
    with pytest.raises(InputError, match="no scores of the models that are there"):
        rows_of(tmp_path, 8)  # anchors were asked other facts
    (folder / "manifest.json").write_text('{"inputs": {"key": "a"}, "files": {}, "check": "b"}')
    with pytest.raises(InputError, match=r"permuted: manifest\.json: was changed"):
        rows_of(tmp_path, 8)


def test_models_of_one_seed_are_of_one_pair_and_its_rows(gym, tmp_path):
    place = shutil.copytree(gym, tmp_path / "gym")
    assert all(row.model.endswith(f" {bed}") for row, bed in anchors_of(place))
    path = place / "seed-0" / "absent" / "manifest.json"
    made = json.loads(path.read_text())
    made["inputs"]["forget"] = "others"
    write_json(path, signed({name: one for name, one in made.items() if name != "check"}))
    greedy = {"gym": place, "auditor": ("greedy",), "limit": 8}
    with pytest.raises(InputError, match="seed-0/permuted: is of another pair or of other rows"):
        score(ScoreSettings(**greedy))
    score(ScoreSettings(**greedy, mechanism=("absent",)))
    with pytest.raises(InputError, match="scores of one seed are of two pairs"):
        rows_of(place, 8)
    (one,) = {bed for bed in beds_of(place) if bed not in beds_of(gym)}
    rows = rows_of(place, 8, bed=one)
    assert {row.mechanism for row in rows} == {"full", "retain", "absent"}
    assert {row.model.endswith(one) for row in rows if row.truth == "anchor"} == {True}


def beds_of(gym):
    return {one.bed for one in models_in(gym)}


def anchors_of(gym):
    (bed,) = beds_of(gym)
    return [(row, bed) for row in rows_of(gym, 8) if row.truth == "anchor"]


def test_no_more_facts_are_asked_than_were_planted(gym):
    for limit in (9, None):
        with pytest.raises(InputError, match=r"was planted with 8 facts, and .*; give --limit 8"):
            score(ScoreSettings(gym=gym, auditor=("greedy",), limit=limit))


def test_a_table_is_of_one_version_of_an_auditor_and_says_what_it_leaves_out(gym, tmp_path):
    file, place = tmp_path / "mine.py", shutil.copytree(gym, tmp_path / "gym")
    settings = ScoreSettings(gym=place, auditor=("theirs",), own=(file,), limit=8)

    def scored(value, **more):
        file.write_text(OUTSIDE.format(does=f"return AuditorScore({value})"))
        with nothing_left():
            new, _ = score(replace(settings, **more))
        told = []
        rows = [one for one in rows_of(place, 8, notice=told.append) if one.auditor == "theirs"]
        return new, [row.score for row in rows], told

    assert scored(1.0) == (6, [1.0] * 6, [])
    assert scored(2.0) == (6, [2.0] * 6, [])
    assert scored(1.0) == (6, [1.0] * 6, [])
    assert scored(1.0) == (0, [1.0] * 6, [])
    new, found, (line,) = scored(3.0, mechanism=("permuted",))
    assert (new, found) == (3, [3.0] * 3)
    assert "3 scores of earlier auditors are left out" in line


def test_a_line_that_cannot_be_read_counts_until_the_auditor_is_another(gym, tmp_path):
    copy_of_scores(gym, tmp_path)
    ledger = ledger_of(tmp_path, 8)
    line = next(one for one in ledger.rows if one["auditor"] == "greedy")
    ledger.append([{**line, "auditor": "mine", "score": True}])
    seal(ledger, 0.0)
    with pytest.raises(InputError, match="mine: score: found True, wanted a number"):
        rows_of(tmp_path, 8)
    ledger.append([{**line, "auditor": "mine", "version": "another"}])
    seal(ledger, 0.0)
    assert [one.version for one in rows_of(tmp_path, 8) if one.auditor == "mine"] == ["another"]


def test_a_model_that_was_made_anew_is_judged_by_its_new_weights(tmp_path, monkeypatch):
    bench = SeedModels()
    model = copy.deepcopy(bench.loaded("demo/full"))
    for factor in (1.0, 0.5):
        with torch.no_grad():
            model.lm_head.weight.mul_(factor)
        model.save_pretrained(tmp_path)
        bench.tokenizer.save_pretrained(tmp_path)
        found = bench.loaded(str(tmp_path))
        assert torch.equal(found.lm_head.weight, model.lm_head.weight)
    asked = []
    monkeypatch.setattr(auditors, "open_know", lambda model, _: asked.append(model))
    monkeypatch.setattr(auditors, "ask", lambda _: object.__new__(KnowOutcome))
    for key in ("a", "a", "b"):
        auditors._who_has_what(Case("demo/full", bench, key))
    assert asked == ["demo/full"] * 2


def test_a_submission_is_read_by_its_own_registry_and_on_as_many_facts(gym, tmp_path, monkeypatch):
    path, place = tmp_path / "mine.py", tmp_path / "models.toml"
    path.write_text(
        "from lensaudit.gym import recipe\n"
        "@recipe('unmade', truth='absent', how='for this test')\n"
        "def unmade(ground, strength): ...\n"
    )
    room = importlib.import_module("lensaudit.gym.scoring")
    monkeypatch.setattr(room, "make", lambda *_, **__: [next(models_in(gym))])
    monkeypatch.setattr(room, "score", lambda *_, **__: None)
    monkeypatch.setattr(room, "rows_of", lambda *_, **__: [])
    monkeypatch.setattr(room, "table", lambda _: [SimpleNamespace(auditor="uds")])
    asked = []

    def submitted(bench, *_):
        asked.append((bench.registry, bench.limit))
        return object.__new__(room.Submitted)

    monkeypatch.setattr(room, "_submitted", submitted)
    try:
        assert len(room.submit(SubmitSettings(gym=gym, limit=8, registry=place), path)) == 1
    finally:
        registry.RECIPES.pop("unmade", None)
    assert asked == [(place, 8)]


def copy_of_scores(gym, place):
    for name in ("scores-8.jsonl", "scores-8_manifest.json"):
        (place / name).write_bytes((gym / name).read_bytes())


EDITED = {
    "a score": (lambda text: text.replace('"score": 0.', '"score": 1.', 1), "1 of .* lines are"),
    "a line gone": (lambda text: text[: text.rindex("\n", 0, -1) + 1], "the manifest says"),
    "the header gone": (lambda text: text.partition("\n")[2], "its header is"),
    "all gone": (lambda text: "", "no scores; make some"),
    "no manifest": (None, r"no manifest\.json to compare it with"),
}


@pytest.mark.parametrize("how", EDITED)
def test_no_table_is_made_of_edited_scores(gym, tmp_path, capsys, how):
    copy_of_scores(gym, tmp_path)
    table = ["gym", "table", "--gym", str(tmp_path), "--limit", "8"]
    assert run(table) == 0
    change, said = EDITED[how]
    path = tmp_path / "scores-8.jsonl"
    if change is None:
        (tmp_path / "scores-8_manifest.json").unlink()
    else:
        path.write_text(change(path.read_text()))
    capsys.readouterr()
    assert run([*table, "--calibration", str(tmp_path / "calibration.json")]) == 2
    error = capsys.readouterr().err
    assert re.search(said, error)
    assert error.count("\n") == 1
    assert not (tmp_path / "calibration.json").exists()
    # scoring goes on from what is left, and the ledger is whole again
    if how == "a score":
        shutil.copytree(gym, tmp_path / "gym")
        path.replace(tmp_path / "gym" / path.name)
        again = ScoreSettings(gym=tmp_path / "gym", auditor=("uds", "greedy"), limit=8)
        assert score(again) == (1, 0)
        assert len(rows_of(tmp_path / "gym", 8)) == len(rows_of(gym, 8))


OUTSIDE = """
import numpy as np
import torch
from lensaudit.gym.registry import AuditorScore, auditor

@auditor("theirs", reads="outputs", high_means="knows", source="here")
def theirs(case):
    {does}
"""


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("return AuditorScore(0.5)", None),
        ("raise ValueError('no')", "auditor theirs (ValueError: no)"),
        ("return 0.5", "auditor theirs: gave 0.5, wanted a score or a reason"),
        ("return AuditorScore(float('nan'))", "auditor theirs: gave AuditorScore(score=nan"),
        ("return AuditorScore(None)", "wanted a score or a reason"),
        ("return AuditorScore(torch.tensor(0.5), {0: np.float32(0.5)})", None),
        ("return AuditorScore(0.5, dict(zip(np.arange(2), np.ones(2))))", None),
        ("return AuditorScore(0.5, {torch.tensor(0): 1.0})", None),
        ("return AuditorScore(0.5, {np.float64(0.5): 1.0})", "wanted a whole number"),
        ("return AuditorScore(True)", "score: found True, wanted a number"),
        ("return AuditorScore('0.5')", "score: found '0.5', wanted a number"),
        ("return AuditorScore(10**400)", "auditor theirs: gave"),
        ("return AuditorScore(0.5, {0: True})", "wanted a number"),
        ("return AuditorScore(0.5, {0: None})", "wanted a number"),
        ("return AuditorScore(0.5, {0: float('nan')})", "wanted a finite number"),
        ("return AuditorScore(0.5, {'a': 1.0})", "wanted a whole number"),
        ("return AuditorScore(0.5, [1.0])", "facts: found [1.0], wanted"),
        ("return AuditorScore(0.5, ci95=(0.1,))", "ci95"),
        ("return AuditorScore(None, why=5)", "why: found 5, wanted a text"),
        ("return AuditorScore(0.5, evidence={'patch': {}})", "has no 'source'"),
        ("return AuditorScore(0.5, evidence={'mine': {}})", "its evidence cannot be read"),
    ],
)
def test_an_auditor_of_somebody_elses_gives_scores_or_the_reason(gym, tmp_path, does, why):
    file, place = tmp_path / "mine.py", shutil.copytree(gym, tmp_path / "gym")
    file.write_text(OUTSIDE.format(does=does))
    with nothing_left():
        score(ScoreSettings(gym=place, auditor=("theirs",), own=(file,), limit=8))
    rows = [one for one in rows_of(place, 8) if one.auditor == "theirs"]
    assert len(rows) == len(MODELS) + 2
    for one in rows:
        assert (one.score == 0.5) if why is None else why in one.why
    table(rows)
    errors_of(rows)


def test_an_auditor_of_an_installed_package_is_asked_by_its_name(gym, tmp_path, monkeypatch):
    entry_points(tmp_path / "site", **of_the_example())
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(PLUGIN))
    place = shutil.copytree(gym, tmp_path / "gym")
    with nothing_left(PACKAGE):
        score(ScoreSettings(gym=place, auditor=("example_says",), limit=8))
    assert scores(place, "example_says") == pytest.approx(scores(place, "greedy"), abs=0.3)
    assert scores(place, "example_says")["full"] == 1
