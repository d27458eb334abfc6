"""One word for one thing: a name that another command has is explained."""

import re
import subprocess
import sys

import click
import pytest
from support.hostile import commands

from lensaudit.cli.main import COMMANDS, run
from lensaudit.data.facts import EMBEDDED


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("patch --dataset demo", "No such option '--dataset': here it is --data"),
        ("cache --bs 3", "No such option '--bs': here it is --batch-size"),
        ("unlearn --forget rows.json", "No such option '--forget': here it is --data"),
        ("patch --source demo/npo --batchsize 3", "did you mean --batch-size"),
    ],
)
def test_an_unknown_option_names_what_means_the_same(typed, said, capsys):
    assert run(typed.split()) == 2
    assert said in capsys.readouterr().err


def test_out_has_its_short_form_and_every_command_can_be_quiet_and_show_all_options(capsys):
    lacking = []
    for path, one in commands():
        options = [opt for param in one.params for opt in param.opts]
        lacking += [f"{path}: -o"] if "--out" in options and "-o" not in options else []
        lacking += [f"{path}: {one}" for one in ("-q", "--help-all") if one not in options]
        assert len(options) == len(set(options)), path
    assert lacking == []
    # without experts' options it is the help, which does not list it
    texts = [(run(["report", one]), capsys.readouterr().out) for one in ("--help", "--help-all")]
    assert texts[0] == texts[1]
    assert texts[0][0] == 0
    assert "--help-all" not in texts[0][1]


def test_the_help_lists_two_dozen_commands_in_five_groups_and_more_lists_the_others(capsys):
    assert run(["-h"]) == 0
    lines = capsys.readouterr().out.splitlines()
    headings = ("Main:", "Measure:", "Attack:", "Many models:", "Housekeeping:")
    below = lines[lines.index("Main:") :]
    assert [line for line in below if line.endswith(":") and line[0] != " "] == list(headings)
    shown = [line.split()[0] for line in below if re.match(r"  \S", line)]
    assert len(shown) <= 24
    assert run(["more"]) == 0
    others = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[0] != " "]
    assert sorted(shown + others) == sorted(COMMANDS)


def test_a_help_has_sections_and_shows_experts_options_where_all_are_asked_for(capsys):
    assert run(["patch", "--help"]) == 0
    short = capsys.readouterr().out
    headings = re.findall(r"^(\w[\w ]*):$", short, flags=re.MULTILINE)
    assert headings == ["Models and data", "Size", "Scoring", "Machine", "Output"]
    first = re.findall(r"^  (--[\w-]+)", short, flags=re.MULTILINE)[:4]
    assert first == ["--source", "--full", "--retain", "--data"]
    assert "--memory" not in short
    assert run(["patch", "--help-all"]) == 0
    long = capsys.readouterr().out
    assert "--memory" in long
    every = {
        opt.lstrip("-") if getattr(one, "hidden", False) else opt
        for one in dict(commands())["patch"].params
        for opt in one.opts
        if opt.startswith("--")
    }
    assert all(opt in " ".join(long.split()) for opt in every)


def test_no_command_shows_more_options_than_fit_a_screen():
    listed = {
        path: [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        for path, command in commands()
    }
    assert sum(map(len, listed.values())) <= 1_000
    shown = {
        path: sum(not getattr(one, "expert", False) for one in params)
        for path, params in listed.items()
    }
    assert {path: n for path, n in shown.items() if n > 30} == {}


def unlearn(*more):
    fixed = "unlearn --method RMU --model demo/full --constant layer=8 --out c --dry-run"
    return run([*fixed.split(), *more])


def test_what_nobody_turns_is_said_as_name_and_value(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert unlearn("--constant", "strength=3", "--set", "weight_decay=0.5") == 0
    quiet, said = capsys.readouterr().err, []
    assert unlearn("--strength", "3", "--weight-decay", "0.5") == 0
    captured = capsys.readouterr()
    for line in captured.err.splitlines():
        said += re.findall(r"--\S+ is --\w+ \S+=VALUE", line)
    assert said == [
        "--strength is --constant strength=VALUE",
        "--weight-decay is --set weight-decay=VALUE",
    ]
    assert "VALUE" not in quiet
    assert unlearn("--set", "weight-decay=-1") == 2
    assert "-1.0 is not in the range x>=0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        (("--set", "weight-decay"), "wanted NAME=VALUE, as --set idk=VALUE"),
        (("--set", "strength=3"), "--set strength: no such name here"),
        (("--constant", "strenght=3"), "did you mean strength?"),
        (
            ("--strength", "3", "--constant", "strength=4"),
            "--strength and --constant strength: are",
        ),
        (("--source", "demo/npo"), "--model and --source: are one option"),
    ],
)
def test_a_pair_that_names_nothing_and_a_value_that_is_said_twice_are_refused(
    typed, wanted, capsys
):
    assert unlearn(*typed) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert wanted in line


@pytest.mark.parametrize(
    ("typed", "flag"),
    [
        ("eval --model demo/npo --model demo/idknll", "--model"),
        ("know --source demo/npo --source demo/npo", "--source"),
        ("cache --source demo/npo --source demo/idknll", "--source"),  # another word for --model
        ("patch --source demo/npo --full demo/full --full demo/base", "--full"),
    ],
)
def test_two_models_where_one_is_wanted_are_refused(typed, flag, capsys):
    assert run([*typed.split(), "--dry-run"]) == 2
    assert capsys.readouterr().err == f"lensaudit: {flag}: takes one value; say it once\n"


@pytest.mark.parametrize("typed", ["auditt", "sweep statuss"])
def test_a_mistyped_command_is_answered_with_the_nearest(typed, capsys):
    assert run(typed.split()) == 2
    nearest = typed.split()[-1][:-1]
    assert f"Did you mean '{nearest}'?" in capsys.readouterr().err


def test_the_package_runs_as_a_module():
    said = subprocess.run(
        [sys.executable, "-m", "lensaudit", "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith("lensaudit")


def plan(capsys, typed):
    """What a dry run says of its models, and its remarks."""
    assert run([*typed.split(), "--dry-run"]) == 0, typed
    said = capsys.readouterr()
    return said.out.splitlines()[0], said.err


def test_either_word_for_a_model_is_understood_and_a_list_may_have_commas(capsys):
    first, quiet = plan(capsys, "patch --source demo/npo --source demo/idknll --limit 2")
    for typed in ("--model demo/npo,demo/idknll", "--source demo/npo --model demo/idknll"):
        assert plan(capsys, f"patch {typed} --limit 2") == (first, quiet), typed
    one = plan(capsys, "cache --model demo/npo --limit 2")
    assert plan(capsys, "cache --source demo/npo --limit 2") == one


def test_an_old_name_answers_with_the_new_one(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = EMBEDDED / "forget.json"
    asked = "eval --model demo/npo --metric retain_Q_A_ROUGE --limit 2"
    now, quiet = plan(capsys, f"{asked} --kept {rows}")
    then, said = plan(capsys, f"{asked} --retain-data {rows}")
    assert (then, quiet) == (now, "")
    assert said == "lensaudit: --retain-data is --kept from the next release on\n"
    asked = "eval --model demo/npo --metric forget_Q_A_Prob --limit 2"
    assert plan(capsys, f"{asked} --forget {rows}")[1].endswith(
        "--forget is --data from the next release on\n"
    )
