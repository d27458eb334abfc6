"""One word for one thing: old names work and are not shown, unknown ones are explained."""

import click
import pytest

from lensaudit.cli.main import COMMANDS, cli, run
from lensaudit.cli.options import Renamed
from lensaudit.cli.vocabulary import old_names


def command(path):
    found, *words = cli, *path.split()
    for word in words:
        found = found.get_command(click.Context(found), word)
    return found


def every():
    """Path and command, of all that do something."""

    def walk(path, one):
        if isinstance(one, click.Group):
            for name in one.list_commands(click.Context(one)):
                yield from walk(f"{path} {name}".strip(), command(f"{path} {name}".strip()))
        else:
            yield path, one

    return walk("", cli)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("relearn --model demo/npo --out x", "relearn --source demo/npo -o x"),
        ("quantize --model demo/npo --out q", "quantize --source demo/npo -o q"),
        (
            "rtt run --unlearned demo/npo --original demo/full --control demo/retain",
            "rtt run --source demo/npo --full demo/full --retain demo/retain",
        ),
    ],
)
def test_an_old_name_means_what_the_new_one_does(old, new, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shown = []
    for line in (old, new):
        assert run([*line.split(), "--dry-run"]) == 0
        shown.append(capsys.readouterr())
    assert shown[0].out == shown[1].out
    assert shown[0].err == shown[1].err  # no terminal: scripts hear nothing


def test_an_old_name_is_told_in_one_line_and_not_shown(capsys):
    relearn = command("relearn")
    assert old_names(relearn, ["--model=demo/npo", "--seed", "1"]) == [
        "--model is now --source; the old name goes with the next version"
    ]
    assert old_names(relearn, ["--source", "demo/npo"]) == []
    assert run(["relearn", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--source" in text
    assert "--model " not in text
    assert run(["relearn"]) == 2
    assert "'--source'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("patch --model demo/npo", "No such option '--model': here it is --source"),
        ("cache --source demo/npo", "No such option '--source': here it is --model"),
        ("unlearn --forget rows.json", "No such option '--forget': here it is --data"),
        ("patch --source demo/npo --batchsize 3", "did you mean --batch-size"),
    ],
)
def test_an_unknown_option_names_what_means_the_same(typed, said, capsys):
    assert run(typed.split()) == 2
    assert said in capsys.readouterr().err


def test_out_has_its_short_form_and_every_command_can_be_quiet():
    lacking = []
    for path, one in every():
        options = [opt for param in one.params for opt in param.opts]
        lacking += [f"{path}: -o"] if "--out" in options and "-o" not in options else []
        lacking += [f"{path}: -q"] if "-q" not in options else []
        assert len(options) == len(set(options)), path
    assert lacking == []


def test_no_option_is_shown_under_a_name_that_another_command_gave_up():
    given_up = {"--unlearned", "--original", "--control", "--retain-set", "--metrics", "--output"}
    shown = {
        opt
        for _, one in every()
        for param in one.params
        for opt in (param.shown if isinstance(param, Renamed) else param.opts)
    }
    assert shown & given_up == set()


def test_the_help_lists_every_command_once_under_a_heading(capsys):
    assert run(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for heading in ("Main:", "Measure:", "Attack:", "Many models:", "Housekeeping:"):
        assert heading in lines
    first = [line.split()[0] for line in lines if line.startswith("  ") and line.split()]
    assert all(first.count(name) == 1 for name in COMMANDS)


def test_quiet_may_stand_behind_the_command(tmp_path, capsys):
    arguments = ["--source", "demo/npo", "--limit", "2", "--layers", "15", "--json"]
    assert run(["patch", *arguments, "-q", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
