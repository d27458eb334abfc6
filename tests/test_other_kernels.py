"""Goldens and theorems once more under the kernels of other processors; a folder that moves.

A process chooses its kernels when it starts, so tests here start one. `make test` runs a slice
under the oldest; `make slow` the numeric rooms under each that this machine has.
"""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.command_golden import _contents, call, difference

from benchmarks.kernels import KERNELS, environment, fingerprint, why_not

ROOT = Path(__file__).parents[1]
GOLDENS = "tests/test_command_goldens.py::test_a_command_says_and_writes_what_it_did"
SLICE = (
    *(f"{GOLDENS}[{name}]" for name in ("patch_attn", "steer_extract", "eval_muse")),
    "tests/patching/test_audit_run.py::test_both_engines_give_the_same_deltas_and_say_who_computed",
    "tests/training/test_unlearn_losses.py",
    "tests/metrics/test_unit_vectors.py",
)
"""What differed most where the kernels of others were tried, and is over in seconds."""
ROOMS = (
    *("patching", "training", "metrics", "evaluation", "steer", "models", "scores", "attacks"),
    *("association", "auditing", "gym", "meta", "demo_family", "test_command_goldens.py"),
)
PYTEST = """
import contextlib, json, sys, pytest
from benchmarks.kernels import fingerprint
print(json.dumps(fingerprint()), flush=True)
options, folder, commands = json.loads(sys.argv[1])
code = pytest.main(options)
from lensaudit.cli.main import run
with contextlib.chdir(folder):
    sys.exit(code or max(map(run, commands), default=0))
"""
"""Tests, then commands in a folder."""


@pytest.fixture(params=KERNELS)
def kernel(request):
    """Kernels that this machine has, beside those it would choose."""
    if why := why_not(request.param):
        pytest.skip(why)
    return request.param


def passed(kernel: str, chosen: tuple[str, ...], folder: Path, *commands: str) -> int:
    """How many of the chosen tests passed under the kernels; all that ran did, and commands."""
    report = folder / "report.xml"
    options = ["-n", "0", "-p", "no:cacheprovider", f"--junitxml={report}", "--tb=short"]
    options += [f"--basetemp={folder / 'tests'}", *chosen]
    asked = [options, str(folder), [one.split() for one in commands]]
    done = subprocess.run(
        [sys.executable, "-c", PYTEST, json.dumps(asked)],
        cwd=ROOT,
        env=environment(kernel),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    differs(json.loads(done.stdout.partition("\n")[0]), kernel)
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    return int(suite.get("tests", 0)) - int(suite.get("skipped", 0))


def differs(found: dict[str, str], kernel: str) -> None:
    """The process had the kernels it was to have, and they are others than ours."""
    assert found["width"] == KERNELS[kernel]["ATEN_CPU_CAPABILITY"].upper()
    if kernel == "oldest" and fingerprint()["width"] != "DEFAULT":
        assert all(found[name] != bits for name, bits in fingerprint().items()), found


ASKED = "patch --source demo/npo --layers 3,14 --align none --limit"


@pytest.fixture(scope="module")
def oldest(tmp_path_factory):
    """How many tests of the slice passed there; a folder that goes there, and what it held."""
    if why := why_not("oldest"):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("oldest")
    assert call(f"{ASKED} 2 --out out".split(), folder)[0] == 0
    made = _contents(folder / "out")
    # there: the same again, twice as many rows of which half are kept, and everything as written
    commands = f"{ASKED} 2 --out out", f"{ASKED} 4 --out more", "verify out more"
    return passed("oldest", SLICE, folder, *commands), folder, made


def test_what_differed_most_holds_under_the_oldest_kernels(oldest):
    n_passed, *_ = oldest
    assert n_passed >= len(SLICE)


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_a_numeric_room_holds_under_other_kernels(kernel, room, tmp_path):
    assert passed(kernel, (f"tests/{room}",), tmp_path) > 0


def test_a_folder_that_moves_to_another_processor_goes_on_there(oldest, tmp_path):
    _, here, made = oldest
    assert _contents(here / "out") == made
    assert call(f"{ASKED} 4 --out more".split(), tmp_path)[0] == 0
    mixed, own = (texts(folder / "more") for folder in (here, tmp_path))
    assert difference(own, mixed) is None
    kept = set(texts(here / "out")["layers.csv"]) & set(mixed["layers.csv"])
    assert len(kept) == 1 + 2 * 2  # the header, and two layers of two rows to the last bit


def texts(folder: Path) -> dict[str, list[str]]:
    """Lines of what a run says of its rows; hashes of them are others."""
    names = ("layers.csv", "results.jsonl", "summary.json")
    return {name: (folder / name).read_text().splitlines() for name in names}
