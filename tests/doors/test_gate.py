"""The gate fails closed, and says every reason."""

import json
import shutil
from xml.etree import ElementTree

import pytest
from support import verdict_support as made
from support.sweep_helpers import toy_run_unit, toy_sweep

from lensaudit.cli.main import run
from lensaudit.doors.figures import escaped
from lensaudit.doors.gate import Gated, Policy, gate, read_policy
from lensaudit.errors import InputError
from lensaudit.files import make_folder
from lensaudit.results.manifest import manifest, signed
from lensaudit.results.planned import missing_in
from lensaudit.results.run_folder import RunFolder
from lensaudit.screen.depth import verdict_table
from lensaudit.screen.tables import lines_of
from lensaudit.sweep.collect import collect
from lensaudit.verdict.collect import verdicts


@pytest.fixture
def folder(tmp_path):
    return made.save_run(tmp_path / "runs" / "a", made.summary())


def why(folder, **policy):
    return gate(verdicts([folder]), Policy(**policy)).models[0][1]


def again(folder, **changes):
    return made.save_run(folder, made.summary(**changes))


def evaluated(folder, role, rows="r", template="t", n_new=200, place=None, **values):
    """An evaluation of `full` or of the source, on some rows to keep, asked in a template."""
    weights = made.inputs(made.summary())[role]["weights"]
    place = (place or folder.parent) / f"eval-{role}"
    place.mkdir(exist_ok=True, parents=True)
    log = {name: {"agg_value": value} for name, value in values.items()}
    (place / "TOFU_EVAL.json").write_text(json.dumps(log))
    named = {"model": {"name": role, "weights": weights}, "data": {"retain": rows}}
    how = {"template": template, "n_new": {"retain": n_new}}
    made.seal(place, "eval", ["TOFU_EVAL.json"], **named, conditions=how)


@pytest.mark.parametrize(
    ("own", "full", "told", "said"),
    [
        ({"retain_Q_A_Prob": 0.97}, {"retain_Q_A_Prob": 0.98}, ".97 of full's .98 (Prob", None),
        # the worse of the two counts
        (
            {"retain_Q_A_Prob": 0.97, "retain_Q_A_ROUGE": 0.4},
            {"retain_Q_A_Prob": 0.98, "retain_Q_A_ROUGE": 0.8},
            ".40 of full's .80 (ROUGE",
            "0.50 of full's is left, wanted 0.9",
        ),
        # model utility speaks of the rows to keep, and of more
        (
            {"retain_Q_A_Prob": 0.1, "model_utility": 0.6},
            {"retain_Q_A_Prob": 0.98, "model_utility": 0.62},
            ".60 of full's .62 (model utility)",
            None,
        ),
        ({"retain_Q_A_Prob": 0.9, "model_utility": 0.6}, {"retain_Q_A_Prob": 0.98}, ".90 of", None),
        ({"retain_Q_A_Prob": 0.9}, {"retain_Q_A_Prob": 0.0}, "", "was not measured beside full"),
        ({"retain_Q_A_Prob": 0.9}, {"forget_Q_A_Prob": 0.9}, "", "was not measured beside full"),
        ({"retain_Q_A_Prob": 0.9}, None, "", "was not measured beside full"),
    ],
)
def test_utility_is_what_is_kept_of_what_full_has(folder, own, full, told, said):
    evaluated(folder, "source", **own)
    if full is not None:
        evaluated(folder, "full", **full)
    (model,) = verdicts([folder.parent]).models
    assert told in ", ".join(one.told for one in model.keeps)
    assert bool(told) == bool(model.keeps)
    _, reasons = gate(verdicts([folder.parent]), Policy(utility_at_least=0.9)).models[0]
    assert len(reasons) == (said is not None)
    assert said is None or said in reasons[0]


@pytest.mark.parametrize("other", [{"rows": "s"}, {"template": "u"}, {"n_new": 3}], ids=str)
def test_utility_of_rows_that_were_asked_otherwise_is_not_compared(folder, other):
    evaluated(folder, "source", retain_Q_A_Prob=0.3)
    evaluated(folder, "full", retain_Q_A_Prob=0.3, **other)
    found = gate(verdicts([folder.parent]), Policy(utility_at_least=0.9))
    assert "not measured beside full" in found.models[0][1][0]


def test_of_several_kept_sets_the_least_that_is_left_of_any_metric_counts(folder):
    """ROUGE is lost on one set; a second, with a lower Prob, used to hide it."""
    policy = Policy(utility_at_least=0.9)
    for rows, prob, rouge in (("near", 0.95, 0.4), ("far", 0.91, 0.95)):
        of = {"rows": rows, "place": folder.parent / rows}
        evaluated(folder, "source", retain_Q_A_Prob=prob, retain_Q_A_ROUGE=rouge, **of)
        evaluated(folder, "full", retain_Q_A_Prob=1.0, retain_Q_A_ROUGE=1.0, **of)
        ((model, reasons),) = gate(verdicts([folder.parent]), policy).models
        assert [one.told for one in model.keeps][1] == ".40 of full's 1.00 (ROUGE on kept rows)"
        assert len(reasons) == 1


def attacked(folder, area, ends, p=0.2, says="nothing is shown (p 0.2)", **more):
    """An evaluation of the source whose membership attack was held against never-seen people."""
    evaluated(folder, "source")
    log = folder.parent / "eval-source" / "TOFU_EVAL.json"
    entry = {"agg_value": area, "interval_95": ends, "betrayal": {"p": p, "says": says}, **more}
    log.write_text(json.dumps({"mia_loss": entry, "mia_min_k": {"agg_value": 0.5}}))
    weights = made.inputs(made.summary())["source"]["weights"]
    named = {"model": {"name": "source", "weights": weights}, "data": {}}
    made.seal(log.parent, "eval", [log.name], **named)


@pytest.mark.parametrize(
    ("area", "ends", "more", "said"),
    [
        (0.5, [0.3, 0.7], {}, None),
        # either way: what shouts lies near 0
        (0.2, [0.1, 0.4], {}, "max_betrayal: mia_loss: area up to 0.90, at most 0.75"),
        (0.8, [0.6, 0.95], {}, "area up to 0.95, at most 0.75"),
        (0.5, [0.2, 0.7], {}, "area up to 0.80, at most 0.75"),
        (0.5, None, {"interval_95_why": "4 authors: no interval"}, "4 authors: no interval"),
        (0.5, [0.3, 0.7], {"p": None, "says": "not tested: author 'a'"}, "not tested: author 'a'"),
        (0.5, [0.3, 0.7], {"interval_95_assumes": "no row names one"}, "no row names one"),
    ],
)
def test_betrayal_is_at_most_what_the_policy_says_either_way(folder, area, ends, more, said):
    words = verdicts([folder.parent]).models[0].verdict
    attacked(folder, area, ends, **more)
    judged = verdicts([folder.parent])
    assert judged.models[0].verdict == words  # no vote
    _, reasons = gate(judged, Policy(max_betrayal=0.75)).models[0]
    assert len(reasons) == (said is not None)
    assert said is None or said in reasons[0]
    assert gate(judged, Policy()).passed
    if "interval_95_assumes" in more:
        assert gate(judged, Policy(max_betrayal=0.75, rows_as_authors=True)).passed


def test_the_terminal_says_it_beside_the_verdict(folder, capsys):
    assert run(["verdict", str(folder.parent)]) == 0
    before = capsys.readouterr().out.splitlines()
    attacked(folder, 0.2, [0.1, 0.4], p=0.003, says="told apart from never seen: shouts (p 0.003)")
    assert run(["verdict", str(folder.parent)]) == 0
    after = capsys.readouterr().out.splitlines()
    line = "  beside it, mia_loss: told apart from never seen: shouts (p 0.003)"
    assert [one for one in after if one not in before] == [line]
    assert [one for one in before if one not in after] == []


def test_of_several_evaluations_the_terminal_says_which(folder, capsys):
    attacked(folder, 0.5, [0.3, 0.7], says="nothing is shown (p 0.2)")
    shutil.copytree(folder.parent / "eval-source", folder.parent / "eval-again")
    assert run(["verdict", str(folder.parent)]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "beside it" in line]
    assert said == [
        f"  beside it, mia_loss: nothing is shown (p 0.2) ({folder.parent / name})"
        for name in ("eval-again", "eval-source")
    ]


def test_a_name_with_a_colon_is_not_part_of_why(folder):
    again(folder, source="a: b")
    (model,) = verdicts([folder]).models
    (why,) = verdict_table(verdicts([folder])).columns[2].cells
    assert f"a: b: {why}" == model.verdict.sentence


def test_a_name_with_a_line_break_writes_no_line_of_its_own(folder, tmp_path, capsys):
    again(folder, source="x\npass  evil: erased", uds=0.1)
    policy = tmp_path / "policy.toml"
    policy.write_text("")
    for command in (["verdict"], ["verdict", "--gate", str(policy)], ["runs", "ls"]):
        run([*command, str(folder.parent)])
        lines = capsys.readouterr().out.splitlines()
        assert any("x pass  evil: erased" in line for line in lines), command
        assert not any(line.lstrip(" │").startswith("pass") for line in lines), command
    table = lines_of([("x\npass", "\u202eb")])
    assert table == ["x pass  b"]
    assert escaped("x\npass_\u202eb") == r"x pass\_b"


def test_answers_to_other_rows_are_not_compared(folder):
    evaluated(folder, "source", retain_Q_A_Prob=0.97)
    evaluated(folder, "full", rows="others", retain_Q_A_Prob=0.98)
    (model,) = verdicts([folder.parent]).models
    assert model.keeps == ()


def test_an_empty_policy_passes_what_is_erased_and_nothing_else(folder, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text("")
    assert read_policy(policy) == Policy()
    assert run(["verdict", str(folder), "--gate", str(policy)]) == 0
    for aligned, uds in ((0.5, 0.5), (0.84, 0.84), (0.05, 0.1)):
        again(folder, uds=uds, half=0.09, aligned=made.aligned(aligned, half=0.09))
        assert run(["verdict", str(folder), "--gate", str(policy)]) == 4


@pytest.mark.parametrize(
    ("changes", "policy", "said"),
    [
        ({"n": 32}, {}, "32 rows are scored, wanted 40"),
        ({"n_groups": 4}, {}, "4 authors, wanted 5"),
        ({"ci95_assumes": "no row names an author"}, {}, "64 rows, no authors named"),
        ({"spans": {"rule": 33, "reviewed": 31}}, {}, "33 of 64 spans by rule, not reviewed"),
        ({}, {"min_never_trained": 2}, "1 never-trained models, wanted 2"),
        ({}, {"require_views": ("rtt",)}, "retraining on other facts: not asked"),
        ({}, {"require_views": ("training",)}, "training: not asked"),
        ({}, {"max_collateral": 0.1}, "max_collateral: not measured"),
        ({"collateral": {"retain": made.lost([0.0, 0.3])}}, {"max_collateral": 0.1}, "may be 0.30"),
        ({"collateral": {"retain": made.lost(None)}}, {"max_collateral": 0.1}, "has no interval"),
        ({}, {"utility_at_least": 0.9}, "what x keeps was not measured beside full"),
        ({}, {"max_betrayal": 0.9}, "max_betrayal: not measured"),
        ({}, {"max_leak": 0.01}, "max_leak: what it says once begun may be 0.14 of the facts"),
        ({"told": None}, {"max_leak": 0.3}, "max_leak: what it says when asked was not measured"),
        ({"outputs": None}, {"max_leak": 0.3}, "what it says once begun was not measured"),
        ({"calibration": {"full": 0.5, "retain": 1.0}}, {}, "the scale is off"),
    ],
)
def test_what_is_missing_fails(folder, changes, policy, said):
    again(folder, **changes)
    assert any(said in one for one in why(folder, **policy)), why(folder, **policy)


@pytest.mark.parametrize(
    ("changes", "policy"),
    [
        ({"n": 32}, {"min_rows": 30}),
        ({"ci95_assumes": "no row names an author"}, {"rows_as_authors": True}),
        ({"spans": {"rule": 33, "reviewed": 31}}, {"allow_unreviewed": True}),
        ({"spans": {"rule": 0, "reviewed": 64}}, {}),
        ({"collateral": {"retain": made.lost([0.0, 0.05])}}, {"max_collateral": 0.1}),
        ({}, {"require_views": ("answers", "uds_aligned")}),
        ({}, {"max_leak": 0.3}),
    ],
)
def test_a_policy_that_is_met_passes(folder, changes, policy):
    again(folder, **changes)
    assert why(folder, **policy) == ()


def test_every_reason_of_every_model_is_said(folder):
    again(folder, uds=0.5, n=8, n_groups=2, aligned=made.aligned(0.5))
    other = made.save_run(folder.parent / "b", made.summary(source="y"), weights="y")
    found = gate(verdicts([folder.parent]), Policy())
    assert [len(why) for _, why in found.models] == [3, 0]
    assert not found.passed
    assert gate(verdicts([other]), Policy()).passed


def test_more_rows_never_pass_without_evidence(folder):
    """A holder of every fact, asked with 8, 16, 32 and 64 rows: none passes."""
    for n in (8, 16, 32, 64):
        half = 0.04 * (64 / n) ** 0.5
        hidden = {"uds": None, "why": "not needed: low"}
        again(folder, uds=0.08, half=half, n=n, aligned=hidden)
        assert why(folder)


def test_a_folder_without_a_run_of_patch_does_not_pass(tmp_path):
    place = tmp_path / "rtt"
    place.mkdir()
    study = {
        "study_id": "s",
        "models": {"unlearned": "x"},
        "main": {"recovery_adjusted": {"value": 0.0, "interval": {"low": -0.1, "high": 0.1}}},
    }
    (place / "summary.json").write_text(json.dumps([study]))
    made.seal(place, "rtt run", ["summary.json"])
    assert "it was not patched" in why(place)


def test_a_model_that_is_its_own_control_passes_no_gate(tmp_path, capsys):
    """Beside itself every model reads as one that never knew."""
    own = made.inputs(made.summary())["retain"]["weights"]
    folder = made.save_run(tmp_path / "own", made.summary(), weights=own)
    assert made.verdict(made.summary()).code == "erased"
    (policy := tmp_path / "policy.toml").write_text("")
    assert run(["verdict", str(folder), "--gate", str(policy)]) == 2
    assert "retain retain and source x have the same weights" in capsys.readouterr().err
    # beside another model it is left out, and that is said
    other = made.save_run(tmp_path / "other", made.summary(source="y"))
    found = verdicts([tmp_path])
    assert [one.source for one in found.models] == ["y"]
    assert [one.path for one in found.left_out if "same weights" in one.reason] == [str(folder)]
    assert gate(found, Policy()).passed, other


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gate]\npass = 3", "wanted a list"),
        ('[gate]\npass = ["intact"]', "found 'intact'"),
        ('[gate]\nrequire_views = ["mind"]', "found 'mind'"),
        ('[gate]\nfail = ["hidden"]', "gate.fail is unknown; wanted pass, require_views"),
        ("[gate]\nmin_rows = -1", "min_rows"),
        ("[gate]\nmin_rows = 3.5", "min_rows"),
        ("[gate]\nallow_unreviewed = 1", "allow_unreviewed"),
        ("[gate]\nmax_leak = 2.0", "at most 1"),
        ("[gates]", "is unknown"),
        ("gate = 3", "no table"),
        ("gate", "not TOML"),
        (f"gate = {'[' * 5000}", "not TOML"),
        ("[gate]\nmin_rows = 1\nmin_rows = 2", "not TOML"),
    ],
)
def test_a_wrong_policy_is_refused(tmp_path, text, said):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_policy(path)


def test_every_format_says_the_same(folder, tmp_path, capsys):
    policy = tmp_path / "policy.toml"
    policy.write_text("")
    hostile = "x<b>|y\n::error\x1b\ufffe"
    again(folder, source=hostile, uds=0.5, aligned=made.aligned(0.5))

    def said(form):
        assert run(["verdict", str(folder), "--gate", str(policy), "--format", form]) == 4
        return capsys.readouterr().out

    content = json.loads(said("json"))
    assert set(content) == {"policy", "passed", "models", "left_out"}
    assert content["policy"]["pass"] == ["erased"]
    (one,) = content["models"]
    assert {"model", "code", "passed", "why"} <= set(one)
    assert one["code"] == "partly_erased"
    case = ElementTree.fromstring(said("junit")).find("testcase")
    assert case.find("failure").get("type") == "partly_erased"
    table = said("markdown")
    assert "**fail**" in table
    assert "<b>" not in table
    assert sum(line.startswith("::error") for line in said("github").splitlines()) == 1
    assert "FAIL" in said("text")


def test_an_unfinished_result_fails_and_every_format_names_it(folder, tmp_path, capsys):
    policy = tmp_path / "policy.toml"
    policy.write_text("")
    arguments = ["verdict", str(folder.parent), "--gate", str(policy), "--format"]
    assert run([*arguments, "text"]) == 0
    begun = folder.parent / "worst"
    begun.mkdir()
    (begun / "jobs.jsonl").write_text("")
    capsys.readouterr()
    said = {}
    for form in ("text", "json", "markdown", "junit", "github"):
        assert run([*arguments, form]) == 4
        said[form] = capsys.readouterr().out
        assert "unfinished: holds jobs.jsonl but no summary" in said[form]
    suite = ElementTree.fromstring(said["junit"])
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["2", "1", "0"]
    assert [one.tag for case in suite for one in case] == ["failure"]
    assert json.loads(said["json"])["left_out"][0]["unfinished"] is True


def test_a_run_that_left_nothing_but_its_mark_is_unfinished_and_the_last_line_says_so(
    folder, tmp_path, capsys
):
    """`patch`, `worst`, `know` and others write their mark first and their files last."""
    (policy := tmp_path / "policy.toml").write_text("")
    RunFolder(usual=folder.parent / "worst", command="worst", key="k").begin()
    arguments = ["verdict", str(folder.parent), "--gate", str(policy)]
    assert run(arguments) == 4
    said = capsys.readouterr()
    assert f"FAIL  {folder.parent / 'worst'}: unfinished: holds begun.json" in said.out
    assert said.err == "lensaudit: results that are not finished fail the gate: 1\n"
    again(folder, uds=0.5, aligned=made.aligned(0.5))
    assert run(arguments) == 4
    assert capsys.readouterr().err == (
        "lensaudit: 1 of 1 fail the gate; results that are not finished fail the gate: 1\n"
    )


def test_a_planned_unit_without_a_result_is_unfinished(folder, tmp_path, capsys):
    """The page of the same folder raises an alarm."""
    (policy := tmp_path / "policy.toml").write_text("")
    made.save_run(tmp_path / "sweep" / "base" / "x" / "patch", made.summary())
    lacks = {"base: npo": "failed: out of memory"}
    table = tmp_path / "sweep" / "collected.json"
    for missing, code in ({}, 0), (lacks, 4):
        table.write_text(json.dumps(signed({"missing": missing})))
        assert run(["verdict", str(tmp_path), "--gate", str(policy)]) == code
    said = capsys.readouterr().out
    assert f"FAIL  {table}: base: npo has no result: failed: out of memory" in said
    (document,) = gate(verdicts([tmp_path / "sweep"]), Policy()).document()["left_out"]
    assert document["unfinished"] is True


def test_a_unit_without_a_result_is_unfinished_in_whichever_folder_of_a_sweep(tmp_path):
    sweep = toy_sweep(tmp_path / "sweep", n=1)
    made.save_run(sweep.root / "mine", made.summary())
    toy_run_unit(sweep, sweep.units[-1])

    def open_in(*places):
        left = gate(verdicts(places), Policy()).left_out
        return [(one.path, one.reason.partition(":")[0]) for one in left if one.unfinished]

    why = f"not finished; `lensaudit sweep status {sweep.root}` says more"
    planned = [(str(sweep.file), f"{one} has no result") for one in ("retain", "full")]
    assert open_in(sweep.root) == planned
    assert {told: reason for _, told, reason in missing_in([sweep.root])}["full"] == why
    out = collect(sweep, allow_missing=True)
    assert open_in(sweep.root) == planned  # not again by what was collected of it
    nf4 = make_folder(out / "nf4")
    (nf4 / "to_do.json").write_text('{"m0": "not begun"}')
    for folder in (out / "base", nf4):
        made.save_run(folder / "mine", made.summary())
    named = {one: {place for place, _ in open_in(out / one)} for one in (".", "base", "nf4")}
    to_do = {one: {str(out / one / "to_do.json")} for one in ("base", "nf4")}
    assert named == {".": {str(out / "collected.json")}, **to_do}
    assert open_in(nf4)[0][1] == "m0 (nf4) has no result"


def test_a_gate_without_an_audited_model_says_that_there_is_none():
    found = Gated(Policy(), ())
    assert (found.passed, found.failed) == (False, "the gate found no audited model")


def test_a_finished_result_that_no_verdict_is_made_from_does_not_fail(folder, tmp_path, capsys):
    policy, ability = tmp_path / "policy.toml", folder.parent / "ability"
    policy.write_text("")
    ability.mkdir()
    (ability / "arc.json").write_text("{}")
    how = {"options": {}, "inputs": {}, "device": "cpu", "started": 0.0}
    manifest("lm-eval", kind="lm-eval", **how).write(ability, ["arc.json"])
    arguments = ["verdict", str(folder.parent), "--gate", str(policy)]
    assert run(arguments) == 0
    said = capsys.readouterr().out
    assert f"left out  {ability}: a result of `lm-eval`; no verdict is made from it" in said
    # one that was begun again or damaged, and a manifest without a kind, may be of any run
    (ability / "begun.json").write_text("{}")
    assert run(arguments) == 4
    (ability / "begun.json").unlink()
    (ability / "arc.json").unlink()
    assert run(arguments) == 4
    (ability / "arc.json").write_text("{}")
    assert run(arguments) == 0
    manifest("lm-eval", **how).write(ability, ["arc.json"])
    assert run(arguments) == 4


def test_results_behind_a_link_count_and_one_that_is_named_twice_counts_once(folder, tmp_path):
    tree = tmp_path / "tree"
    made.save_run(tree / "good", made.summary(source="y"), weights="y")
    again(folder, uds=0.1, aligned=made.aligned(0.1))
    (tree / "bad").symlink_to(folder)
    (folder / "round").symlink_to(tree)
    linked = verdicts([tree])
    assert sorted(one.source for one in linked.models) == ["x", "y"]
    assert not gate(linked, Policy()).passed
    twice = verdicts([folder, folder, tree, folder.parent])
    assert twice.document() == verdicts([folder, tree]).document()


def test_a_format_without_a_gate_is_refused_but_a_table(folder, capsys):
    assert run(["verdict", str(folder), "--format", "junit"]) == 2
    assert run(["verdict", str(folder), "--format", "markdown"]) == 0
    head, _, row = capsys.readouterr().out.splitlines()
    assert head == "| model | verdict | why |"
    assert row.startswith("| x | erased | erased, against one never-trained model: ")
