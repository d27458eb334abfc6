"""Every entry still breaks the line it was written for, and the machinery tells who survives."""

import subprocess
import sys

import pytest
from run import ROOT, EntryError, Mutant, main, read_mutants, run_tests, try_mutant

MUTANTS = read_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_an_entry_applies_to_the_code_of_today(mutant):
    mutant.check(ROOT)
    assert mutant.why


def test_no_entry_names_what_its_file_does_not_know(tmp_path):
    """A test that fails of an undefined name notices nothing of what is wrong."""
    for one in MUTANTS:
        if one.file.endswith(".py"):
            (tmp_path / f"{one.id}.py").write_text(one.changed())
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821"]
    told = subprocess.run([*ruff, "--output-format", "concise", tmp_path], capture_output=True)
    assert told.stdout.decode().strip() == "All checks passed!"


@pytest.fixture
def tree(tmp_path):
    """A package of one function, and its test."""
    (tmp_path / "sums.py").write_text("def double(x):\n    return x + x\n")
    (tmp_path / "test_sums.py").write_text(
        "from sums import double\n\ndef test_one():\n    assert double(1) == 2\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def entry(**changes) -> Mutant:
    fields = {
        "id": "sum",
        "file": "sums.py",
        "old": "x + x",
        "new": "x - x",
        "tests": ("test_sums.py",),
        "why": "it would be wrong",
    }
    return Mutant(**(fields | changes))


@pytest.mark.parametrize(
    ("new", "verdict"),
    [("x - x", "killed"), ("x * 2", "survived"), ("x + x; import nothing_of_this", "survived")],
)
def test_killed_is_what_a_test_fails_on(tree, new, verdict):
    before = (tree / "sums.py").read_text()
    assert try_mutant(entry(new=new), tree).verdict == verdict
    assert (tree / "sums.py").read_text() == before


def test_tests_that_cannot_be_run_kill_nothing(tree):
    change = entry(old="def double", new="import nothing_of_this\ndef double")
    assert try_mutant(change, tree).verdict == "broken"


def test_tests_without_end_kill_nothing(tree):
    (tree / "test_sums.py").write_text("import time\n\ndef test_one():\n    time.sleep(60)\n")
    code, said = run_tests(tree, ["test_sums.py"], limit_s=0.5)
    assert code == -1
    assert "did not end" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"old": "x"}, "occurs 3 times"),
        ({"old": "y"}, "occurs 0 times"),
        ({"new": "x + x"}, "is `old`"),
        ({"new": "x +"}, "line 2 is no code"),
        ({"file": "gone.py"}, "no file gone.py"),
        ({"tests": ()}, "names no tests"),
        ({"tests": ("test_gone.py",)}, "no test file test_gone.py"),
        ({"tests": ("test_sums.py::test_two",)}, "no test test_two"),
    ],
)
def test_an_entry_that_does_not_apply_is_an_error(tree, changes, said):
    with pytest.raises(EntryError, match=said):
        entry(**changes).check(tree)


def test_an_unknown_entry_is_wrong_usage(capsys):
    assert main(["--only", "no-such-entry"]) == 2
    assert "no-such-entry" in capsys.readouterr().err
