"""Whatever an option is given: a documented exit code, a line or two, and nothing else changes."""

import contextlib
import io
import shutil
import signal
import time
from pathlib import Path

import pytest
from support.hostile import BASES, Case, build, cases, commands, sample, witness

from lensaudit.cli.main import run

EVERY = cases()
CODES = {0, 1, 2, 3, 4, 75}
MOST_LINES = 12
"""Remarks and the error; a long list of problems is cut before."""
SLOWEST_S = 60
UNTRIED = {"demo", "more", "canaries draw"}
"""Like those of `gym`, a command that has no call without work."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Inputs of all cases; what a case writes is taken away after it."""
    root = tmp_path_factory.mktemp("hostile")
    with contextlib.chdir(root):
        build(root)
    return root


def called(case: Case) -> tuple[int, str, str]:
    """Exit code and what was said; an exception that gets out is a traceback."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(case.arguments))
    return code, out.getvalue(), err.getvalue()


def hangs(number: int, frame: object) -> None:
    """End a call that waits for a pipe, or for ever."""
    raise TimeoutError(f"no end after {SLOWEST_S} s")


def problems(case: Case, root: Path) -> list[str]:
    """What is wrong with how a case ended."""
    before, already = witness(root), set(root.iterdir())
    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SLOWEST_S)
    began = time.monotonic()
    try:
        with contextlib.chdir(root):
            code, out, err = called(case)
    except Exception as error:
        code, out, err = 0, "", ""
        found = [f"traceback: {type(error).__name__}: {str(error)[:200]}"]
    else:
        found = [] if code in CODES else [f"exit {code}"]
    finally:
        signal.alarm(0)
    new = set(root.iterdir()) - already
    finished = [path for one in new for path in one.rglob("manifest.json")] if code else []
    lines = err.splitlines()
    wrong = {
        "nothing said": code and not lines,
        f"{len(lines)} lines": len(lines) > MOST_LINES,
        "the last line is not ours": code and lines and not any("lensaudit: " in x for x in lines),
        "a traceback is printed": "Traceback" in err + out,
        "a terminal escape is printed": "\x1b" in err + out,
        "a result looks complete": bool(finished),
        "the witness changed": witness(root) != before,
        f"took {time.monotonic() - began:.0f} s": time.monotonic() - began > SLOWEST_S / 2,
    }
    for one in new:
        shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
    return [*found, *(what for what, is_so in wrong.items() if is_so)]


def failures(chosen: list[Case], root: Path) -> list[str]:
    """A line for each case that ends badly."""
    return [
        f"{case.name}: {'; '.join(wrong)}" for case in chosen if (wrong := problems(case, root))
    ]


def test_every_command_is_tried_or_named():
    every = {name for name, _ in commands() if not name.startswith("gym ")}
    assert every - UNTRIED == set(BASES)


def test_the_calls_that_are_spoilt_work(place):
    for name in ("report", "meta table", "judge run", "annotate", "sweep status", "patch"):
        assert called_from(place, name) in (0, 2, 3)


def called_from(root: Path, name: str) -> int:
    with contextlib.chdir(root):
        code, _, _ = called(Case(name, "", (*name.split(), *BASES[name])))
    return code


def test_a_slice_of_all_cases_ends_well(place):
    assert failures(sample(EVERY, 300, seed=17), place) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_all_cases_end_well(place, part):
    assert failures(EVERY[part::8], place) == []
