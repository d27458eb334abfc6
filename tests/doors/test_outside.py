"""Metrics, suites, attacks and rubrics from outside: of a file, of an installed package."""

import importlib
import json
import shutil
import sys
from importlib import metadata

import pytest
from support.outside import PACKAGE, PLUGIN, entry_points, nothing_left, of_the_example

import lensaudit as la
from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.plugins import code_of, helpers_of, run_own, with_helpers
from lensaudit.text import digest


@pytest.fixture(autouse=True)
def _clean():
    with nothing_left(
        PACKAGE, "broken_one", "helped", "own_tools", "own_late", "own_seen", "own_latin"
    ):
        yield


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The example package, as pip leaves it."""
    site = tmp_path / "lensaudit_example_site"
    entry_points(site, **of_the_example())
    shutil.copytree(PLUGIN / PACKAGE, site / PACKAGE)
    monkeypatch.syspath_prepend(str(site))
    return site


def evaluated(out, *more, model="demo/npo"):
    code = run(["eval", "--model", model, "--limit", "4", "--out", str(out), *map(str, more)])
    log = out / "TOFU_EVAL.json"
    return code, json.loads(log.read_text()) if log.exists() else {}


def metrics(*names):
    return [part for name in names for part in ("--metric", name)]


def planned(out, capsys, *more):
    capsys.readouterr()
    assert evaluated(out, *more, "--dry-run")[0] == 0
    return capsys.readouterr().out


def test_the_documents_examples_have_twenty_lines_each_and_say_what_ours_say(
    installed, tmp_path, capsys
):
    for name in ("rouge", "privleak", "forget_quality"):
        assert len((PLUGIN / PACKAGE / f"{name}.py").read_text().splitlines()) <= 20
    ours = ("forget_Q_A_ROUGE", "privleak", "forget_quality")
    theirs = ("example_rouge", "example_privleak", "example_forget_quality")
    asked = (*metrics(*ours, *theirs), "--retain", "demo/retain")
    code, found = evaluated(tmp_path / "out", *asked)
    assert code == 0
    for own, other in zip(ours, theirs, strict=True):
        assert found[other]["agg_value"] == pytest.approx(found[own]["agg_value"], abs=1e-6), other
    assert found["example_rouge"]["interval_95_why"] == found["forget_Q_A_ROUGE"]["interval_95_why"]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["inputs"]["outside"].keys() == {*theirs}
    assert manifest["inputs"]["metrics"]["example_rouge"]["source"] == "evaluation.md"
    assert "nothing to do" in planned(tmp_path / "out", capsys, *asked)
    # other code is another question, wherever in the package it stands
    with (installed / PACKAGE / "__init__.py").open("a") as stream:
        stream.write("X = 1\n")
    assert "nothing to do" not in planned(tmp_path / "out", capsys, *asked)
    assert evaluated(tmp_path / "plain", *metrics("mia_loss"))[0] == 0
    plain = json.loads((tmp_path / "plain" / "manifest.json").read_text())
    assert "outside" not in plain["inputs"]


def test_a_reference_that_is_not_there_is_a_reason(installed, tmp_path, capsys):
    code, found = evaluated(tmp_path, *metrics("example_privleak", "example_forget_quality"))
    assert code == 0
    assert found["mia_min_k"]["agg_value"] is not None
    assert "no retain log with mia_min_k" in found["example_privleak"]["reason"]


def test_an_entry_is_imported_when_it_is_named_and_a_broken_one_hurts_nobody(
    installed, tmp_path, monkeypatch, capsys
):
    entry_points(tmp_path / "broken", metrics={"broken": "broken_one", "gone": "not.there"})
    (tmp_path / "broken" / "broken_one.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path / "broken"))
    assert evaluated(tmp_path / "a", *metrics("mia_loss", "example_rouge"))[0] == 0
    assert f"{PACKAGE}.rouge" in sys.modules
    assert f"{PACKAGE}.privleak" not in sys.modules
    for name, said in (("broken", "(ZeroDivisionError: division"), ("gone", "(ModuleNotFound")):
        capsys.readouterr()
        assert evaluated(tmp_path / "b", *metrics("mia_loss", name))[0] == 2
        error = capsys.readouterr().err
        assert f"{name}: " in error
        assert f"(lensaudit.metrics) cannot be imported {said}" in error
        assert len(error.splitlines()) == 1


def test_a_suite_says_its_metrics_its_data_and_its_number(installed, tmp_path, capsys):
    code, found = evaluated(tmp_path / "a", "--benchmark", "example_suite")
    assert code == 0
    parts = ("forget_Q_A_Prob", "example_rouge:rouge_type=fmeasure", "mia_min_k:k=0.2")
    assert found.keys() == {*parts, "example_suite"}
    said = [1 - found[name]["agg_value"] for name in parts]
    wanted = len(said) / sum(1 / one for one in said)
    assert found["example_suite"]["agg_value"] == pytest.approx(wanted)
    assert found["example_suite"]["parts"].keys() == {*parts}
    made = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert (made["options"]["benchmark"], made["options"]["data"]) == ("example_suite", "demo")
    assert made["inputs"]["outside"].keys() == {"example_suite", "example_rouge"}
    again = la.evaluate("demo/npo", tmp_path / "a", limit=4, benchmark="example_suite")
    assert again.summary["example_suite"] == pytest.approx(wanted)


OWN = '''
import math
from lensaudit.metrics.registry import MetricResult, Read, metric

class Odd(Exception):
    pass

@metric("ours", high_means="knows", source="here", tofu=[Read("text", "forget")])
def ours(context):
    """What the test wants."""
    {does}
'''


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("raise ValueError('no')", "metric ours raised (ValueError: no)"),
        ("raise Odd('very\\nodd')", "metric ours raised (Odd: very odd)"),
        ("return math.nan", "metric ours gave nan, wanted a finite number"),
        ("return {'agg_value': math.inf}", "metric ours gave inf, wanted a finite number"),
        ("return MetricResult(math.nan)", "metric ours gave nan, wanted a finite number"),
        ("return None", "metric ours gave None, wanted a MetricResult"),
        ("return [0.5]", "metric ours gave [0.5], wanted a MetricResult"),
        ("return {'value': 1}", "metric ours gave: has no 'agg_value'"),
        ("return {'agg_value': 'much'}", "metric ours gave: agg_value"),
        ("return {'agg_value': 1.0, 'value_by_index': {'x': {}}}", "metric ours gave: "),
        pytest.param(
            "return MetricResult(records={1: 0.5})",
            "metric ours raised (PydanticSerializationError",
            marks=pytest.mark.misuse,
        ),
        ("return {'agg_value': None}", "metric ours gave no value, and no reason for that"),
        ("context.done['nope']", "metric ours raised (KeyError: 'nope')"),
    ],
)
def test_what_a_metric_does_wrong_is_its_reason_and_the_rest_is_there(tmp_path, capsys, does, said):
    file = tmp_path / "mine.py"
    file.write_text(OWN.format(does=does))
    asked = (*metrics("ours", "mia_loss"), "--from", file)
    code, found = evaluated(tmp_path / "out", *asked, "--set", "cleanup=none")
    assert code == 0
    assert found["mia_loss"]["agg_value"] is not None
    assert found["ours"]["agg_value"] is None
    assert said in found["ours"]["reason"]
    assert "\n" not in found["ours"]["reason"]
    assert said[:60] in " ".join(capsys.readouterr().out.split())


def test_a_number_or_the_documents_rows_are_a_result(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        OWN.format(does="return {'agg_value': 0.5, 'value_by_index': {0: {'score': 1}}}")
    )
    _, found = evaluated(tmp_path / "a", *metrics("ours"), "--from", file)
    assert found["ours"]["agg_value"] == 0.5
    assert found["ours"]["value_by_index"] == {"0": {"score": 1}}
    assert found["ours"]["interval_95_why"] == "the metric gives no interval"
    # rows are shown as they are given: which of their numbers is the metric's, nobody said
    file.write_text(OWN.format(does="return {'agg_value': 0.5, 'value_by_index': {0: {'own': 1}}}"))
    code, found = evaluated(tmp_path / "b", *metrics("ours"), "--from", file)
    assert code == 0
    assert found["ours"]["value_by_index"] == {"0": {"own": 1}}
    lines = (tmp_path / "b" / "results.jsonl").read_text().splitlines()
    assert all(json.loads(one)["scores"] == {} for one in lines)
    file.write_text(OWN.format(does="return 2"))
    _, found = evaluated(tmp_path / "a", *metrics("ours"), "--from", file)
    assert found["ours"]["agg_value"] == 2


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        (OWN.replace('"ours"', '"privleak"'), (), "there is one of this name already"),
        (OWN.replace('"ours"', '"a b"'), (), "wanted a name of letters, digits and _"),
        pytest.param(
            OWN.replace('"text"', '"smell"'),
            (),
            "metric ours: no pass 'smell'",
            marks=pytest.mark.misuse,
        ),
        (OWN + OWN, (), "metric ours: there is one of this name already"),
        ("import nothing_of_this_name", (), "cannot be run (ModuleNotFoundError"),
        ("import sys; sys.exit(0)", (), "cannot be run (SystemExit: 0)"),
        ("x = 1", (), "enters nothing to ask for with --metric"),
        (OWN, metrics("mia_loss"), "brings ours; ask for one with --metric"),
        (None, (), "wanted a Python file with decorated functions"),
        (OWN.replace("tofu=", "needs=['nope'], tofu="), (), "no metric 'nope' (ours needs it)"),
        (OWN.replace("tofu=", "needs=['ours'], tofu="), (), "metric ours needs itself"),
        (OWN, (*metrics("ours"), "--benchmark", "nope"), "--benchmark nope: no such suite"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_before_any_work(tmp_path, capsys, text, more, said):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text.format(does="return 1"))
    code, found = evaluated(tmp_path / "out", *(more or metrics("ours")), "--from", file)
    assert (code, found) == (2, {})
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


SUITE = '''
from lensaudit.doors.suites import suite

@suite("small", metrics=["mia_loss"], high_means="forgot", source="here"{more})
def small(context):
    """One."""
    return 1 - context.done["mia_loss"].value
'''


@pytest.mark.parametrize(
    ("more", "options", "said"),
    [
        ("", ("--suite", "muse"), "--benchmark small: belongs to suite tofu, not to muse"),
        (", fresh=True", (), "suite small: may not set fresh"),
        (", forgets='x'", (), "no keyword 'forgets'"),
        (", limit='many'", (), "suite small(limit='many')"),
    ],
)
def test_what_a_suite_may_not_say_is_one_line(tmp_path, capsys, more, options, said):
    file = tmp_path / "mine.py"
    file.write_text(SUITE.format(more=more))
    code, _ = evaluated(tmp_path / "out", "--benchmark", "small", "--from", file, *options)
    assert code == 2
    assert said in capsys.readouterr().err


def test_a_suites_number_is_of_the_data_that_it_names_unless_somebody_else_does(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(SUITE.format(more=", max_new_tokens=5, question_key='question'"))
    asked = {"benchmark": "small", "own": [str(file)], "limit": 4}
    found = la.evaluate("demo/npo", tmp_path / "out", **asked)
    assert found.summary["small"] == pytest.approx(1 - found.summary["mia_loss"])
    with pytest.raises(InputError, match="no text under 'ask'"):
        la.evaluate("demo/npo", tmp_path / "other", question_key="ask", **asked)


def test_two_packages_of_one_name_and_a_name_of_ours(installed, tmp_path, monkeypatch, capsys):
    entry_points(tmp_path / "helped", metrics={"example_rouge": "helped", "mia_loss": "not.there"})
    monkeypatch.syspath_prepend(str(tmp_path / "helped"))
    assert evaluated(tmp_path / "a", *metrics("example_rouge"))[0] == 2
    assert "two installed packages bring it" in capsys.readouterr().err
    assert evaluated(tmp_path / "b", *metrics("mia_loss"))[0] == 0  # ours stays ours


def test_no_project_file_runs_code_from_outside(installed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN.format(does="return 1"))
    for said, wanted in (
        ('metric = ["example_rouge"]', "example_rouge: is code of an installed package"),
        ('metric = "example_rouge:rouge_type=recall"', "give it on the command line"),
        ('from = ["mine.py"]', "[eval] from: runs, sends"),
        ('benchmark = "example_suite"', "[eval] benchmark: runs, sends"),
    ):
        (tmp_path / "lensaudit.toml").write_text(f'sources = "demo/npo"\n[eval]\n{said}\n')
        capsys.readouterr()
        assert run(["eval", "--model", "demo/npo", "--limit", "4", "--dry-run"]) == 2, said
        assert wanted in capsys.readouterr().err
    assert not [name for name in sys.modules if name.startswith(PACKAGE)]
    (tmp_path / "lensaudit.toml").write_text(
        'sources = "demo/npo"\n[worst]\nattack = ["example_capitals"]\n'
    )
    assert run(["worst", "--source", "demo/npo", "--limit", "4", "--dry-run"]) == 2
    assert "is code of an installed package" in capsys.readouterr().err


ATTACK = """
from lensaudit.attacks.arm import AttackFindings, Hit
from lensaudit.attacks.registry import attack

@attack({name!r})
def ours(arm):
    {does}
"""


def attacked(out, *more):
    where = ("--out", str(out), "--activations", str(out.with_name("activations")))
    code = run(["worst", "--source", "demo/npo", "--limit", "4", *where, *more])
    summary = out / "summary.json"
    return code, json.loads(summary.read_text()) if summary.exists() else {}


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("raise ValueError('no')", "attack ours raised (ValueError: no)"),
        ("return {}", "attack ours gave {}, wanted AttackFindings"),
        ("return AttackFindings({99: Hit(True, 1.0, 'x')})", "wanted a Hit of a fact"),
        pytest.param(
            "return AttackFindings({0: 1})",
            "gave 1 for 0, wanted a Hit",
            marks=pytest.mark.misuse,
        ),
        ("return AttackFindings({0: Hit(True, float('nan'), 'x')})", "with a finite score"),
    ],
)
def test_an_attack_that_is_none_scores_no_fact_and_the_others_count(tmp_path, capsys, does, said):
    file = tmp_path / "mine.py"
    file.write_text(ATTACK.format(name="ours", does=does))
    asked = ("--attack", "ours", "--attack", "greedy", "--from", str(file))
    code, found = attacked(tmp_path / "out", *asked)
    assert code == 0
    rows = {one["name"]: one for one in found["attacks"]}
    assert (rows["ours"]["n_scored"], rows["greedy"]["n_scored"]) == (0, 4)
    error = capsys.readouterr().err
    assert said in error
    assert error.count("attack ours") == 3  # on each model


def test_an_attack_from_outside_counts_by_its_code_and_only_where_it_is_named(
    installed, tmp_path, capsys
):
    asked = ("--attack", "example_capitals", "--attack", "greedy")
    code, found = attacked(tmp_path / "out", *asked)
    assert code == 0
    assert {one["name"] for one in found["attacks"]} == {"example_capitals", "greedy"}
    made = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert made["inputs"]["outside"].keys() == {"example_capitals"}
    file = tmp_path / "mine.py"
    lists = []
    for does in ("return AttackFindings({})", "return AttackFindings({}, {})"):
        file.write_text(ATTACK.format(name="ours", does=does))
        own = ("--attack", "ours", "--from", str(file), "--force")
        lists.append(attacked(tmp_path / "own", *own)[1]["attack_list"])
    assert lists[0] != lists[1]
    from lensaudit.attacks.elicit import chosen

    assert not [one.name for one in chosen("full") if one.code]
    file.write_text(ATTACK.format(name="greedy", does="pass"))
    capsys.readouterr()
    assert attacked(tmp_path / "x", "--attack", "greedy", "--from", str(file))[0] == 2
    assert "attack greedy: there is one of this name already" in capsys.readouterr().err


def test_a_rubric_of_an_installed_package_and_its_hash(installed):
    from lensaudit.judge.rubric import rubric_of

    one = rubric_of("example_rubric", ())
    assert one.names["forget"] == ("SECRECY",)
    assert "SECRECY" in one.create("forget", "q", "t", "a")
    (installed / PACKAGE / "more.py").write_text("X = 1\n")
    assert rubric_of("example_rubric", ()).content != one.content
    with pytest.raises(InputError, match="nope: wanted a Python file"):
        rubric_of("nope", ())


def test_the_examples_entries_are_what_its_files_enter(installed):
    for group, entries in of_the_example().items():
        found = metadata.entry_points(group=f"lensaudit.{group}")
        assert {one.name for one in found} == entries.keys()


def test_own_code_stands_on_its_file_and_on_what_that_imports_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    file, tools = tmp_path / "mine.py", tmp_path / "own_tools"
    plain = "import json\nimport torch\nfrom lensaudit.errors import InputError\nX = 1\n"
    file.write_text(f"{plain}def fn():\n    return X\n")
    alone = digest([["mine.py", file.read_text()]])
    assert code_of(run_own(file, "x")["fn"]) == alone, "as it was before helpers counted"
    assert with_helpers("code", [file]) == "code"
    tools.mkdir()
    (tools / "__init__.py").write_text("")
    (tools / "first.py").write_text("from . import second\ndef k():\n    return second.K\n")
    (tools / "second.py").write_text("K = 1\n")
    (tools / "other.py").write_text("K = 1\n")
    file.write_text("from own_tools.first import k\ndef fn():\n    import own_tools.late\n")
    assert helpers_of([file]).keys() == {"own_tools", "own_tools.first", "own_tools.second"}
    assert "own_tools" not in sys.modules
    (tools / "late.py").write_text("broken(\n")
    seen = [code_of(run_own(file, "x")["fn"])]
    for name, text in (
        ("second", "K = 20\n"),
        ("late", ""),
        ("first", "def k():\n    return 300\n"),
    ):
        (tools / f"{name}.py").write_text(text)
        found = run_own(file, "x")
        seen.append(code_of(found["fn"]))
        assert found["k"]() == (300 if name == "first" else 20), "the helper of now is run"
    assert len({*seen}) == 4
    (tools / "other.py").write_text("K = 2\n")
    assert code_of(run_own(file, "x")["fn"]) == seen[-1]


def test_a_helper_is_that_of_now_whoever_imported_it_or_made_the_path_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    file, lib = tmp_path / "mine.py", tmp_path / "lib"
    lib.mkdir()
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(lib)!r})\nfrom own_late import K\ndef fn(): ...\n"
    )
    seen = []
    for value in ("1", "20"):  # at first the path to it is not there
        (lib / "own_late.py").write_text(f"K = {value}\n")
        found = run_own(file, "x")
        assert found["K"] == int(value)
        kept = sys.modules["own_late"]
        run_own(file, "x")
        assert sys.modules["own_late"] is kept, "nothing changed: it is not imported again"
        seen.append(code_of(found["fn"]))
    assert len({*seen}) == 2
    (lib / "own_seen.py").write_text("K = 1\n")
    assert importlib.import_module("own_seen").K == 1
    (lib / "own_seen.py").write_text("K = 20\n")
    file.write_text("from own_seen import K\n")
    assert run_own(file, "x")["K"] == 20, "somebody else had imported it before it was edited"


def test_own_code_may_be_in_any_encoding_that_python_reads(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    file, helper = tmp_path / "mine.py", tmp_path / "own_latin.py"
    cookie = "# -*- coding: latin-1 -*-\n"
    file.write_bytes(f"{cookie}from own_latin import K\ndef fn(): return 'ü'\n".encode("latin-1"))
    seen = []
    for value in ("é", "éé"):
        helper.write_bytes(f"{cookie}K = '{value}'\n".encode("latin-1"))
        found = run_own(file, "x")
        assert found["K"] == value
        seen.append(code_of(found["fn"]))
    assert len({*seen}) == 2
