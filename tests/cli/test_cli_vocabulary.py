"""One word for one thing: a name that another command has is explained."""

import click
import pytest

from lensaudit.cli.main import COMMANDS, cli, run


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
    shown = {opt for _, one in every() for param in one.params for opt in param.opts}
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
