"""Goldens and theorems once more under the kernels of other processors; a folder that moves.

A process chooses its kernels when it starts, so each test here starts one. `make test` runs a
slice under the oldest; `make slow` the numeric rooms under each that this machine has.
"""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.command_golden import _contents, call, difference

from benchmarks.kernels import KERNELS, environment, fingerprint, run, why_not

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
import json, sys, pytest
from benchmarks.kernels import fingerprint
print(json.dumps(fingerprint()), flush=True)
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.fixture(params=KERNELS)
def kernel(request):
    """Kernels that this machine has, beside those it would choose."""
    if why := why_not(request.param):
        pytest.skip(why)
    return request.param


def passed(kernel: str, chosen: tuple[str, ...], folder: Path) -> int:
    """How many of the chosen tests passed under the kernels; all that ran did."""
    report = folder / "report.xml"
    options = ["-n", "0", "-p", "no:cacheprovider", f"--junitxml={report}", "--tb=short"]
    done = subprocess.run(
        [sys.executable, "-c", PYTEST, *options, f"--basetemp={folder / 'tests'}", *chosen],
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


@pytest.mark.parametrize("kernel", ["oldest"], indirect=True)
def test_what_differed_most_holds_under_the_oldest_kernels(kernel, tmp_path):
    assert passed(kernel, SLICE, tmp_path) >= len(SLICE)


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_a_numeric_room_holds_under_other_kernels(kernel, room, tmp_path):
    assert passed(kernel, (f"tests/{room}",), tmp_path) > 0


ASKED = "patch --source demo/npo --layers 3,14 --align none --limit"


@pytest.mark.parametrize("kernel", ["oldest"], indirect=True)
def test_a_folder_that_moves_to_another_processor_goes_on_there(kernel, tmp_path):
    here, alone = tmp_path / "here", tmp_path / "alone"
    here.mkdir()
    alone.mkdir()
    assert call(f"{ASKED} 2 --out out".split(), here)[0] == 0
    made = _contents(here / "out")
    # there: the same again, twice as many rows of which half are kept, and everything as written
    found = run(here, kernel, f"{ASKED} 2 --out out", f"{ASKED} 4 --out more", "verify out more")
    differs(found, kernel)
    assert _contents(here / "out") == made
    assert call(f"{ASKED} 4 --out more".split(), alone)[0] == 0
    mixed, own = (texts(folder / "more") for folder in (here, alone))
    assert difference(own, mixed) is None
    kept = set(texts(here / "out")["layers.csv"]) & set(mixed["layers.csv"])
    assert len(kept) == 1 + 2 * 2  # the header, and two layers of two rows to the last bit


def texts(folder: Path) -> dict[str, list[str]]:
    """Lines of what a run says of its rows; hashes of them are others."""
    names = ("layers.csv", "results.jsonl", "summary.json")
    return {name: (folder / name).read_text().splitlines() for name in names}
