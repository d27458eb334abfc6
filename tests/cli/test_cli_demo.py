"""What is released: wheel and sdist, built, installed apart from the checkout; and its demo."""

import contextlib
import functools
import io
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.agreement import agreed
from support.tolerance import NATS

import lensaudit
from experiments.by_hand import uds as uds_by_hand
from lensaudit.association import demo as asked
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.cli.main import run
from lensaudit.data.tofu import forget_set
from lensaudit.files import write_json
from lensaudit.models.registry import load_registry
from lensaudit.patching.settings import PatchSettings

AUDITED = {"demo/masked_upper", "demo/never", "demo/full", "demo/retain"}
"""One that hides, one that never saw the facts, the anchors; the golden `demo` has the others."""
LIMIT = 24
"""Three facts of each author."""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder with the sdist of this checkout, and the wheel that is built from that sdist."""
    out, unpacked = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("sdist")
    build("sdist", out, ROOT)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    build("wheel", out, unpacked / sdist.name.removesuffix(".tar.gz"))
    return out


def build(target, out, source):
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Runs the command of a wheel, installed in an environment of its own, in an empty folder."""
    place = tmp_path_factory.mktemp("apart")
    venv.create(place / "env", with_pip=False)
    python = place / "env" / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    install = ["-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([sys.executable, *install, str(wheel)], check=True, capture_output=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = place / "env" / "lib" / version / "site-packages"
    # dependencies are those of this environment; a .pth file that lies there is not followed, so
    # that the checkout is not found
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (place / "work").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def started(*words):
        return subprocess.run(
            words, cwd=place / "work", env=environment, capture_output=True, text=True
        )

    def run(*arguments):
        return started(str(python.with_name("lensaudit")), *arguments)

    run.program = lambda text, *words: started(str(python), "-c", text, *words)
    run.home, run.work = place / "env", place / "work"
    return run


PROGRAM = """
import functools, sys
from lensaudit.association import demo as asked
from lensaudit.cli.main import run
from lensaudit.data.tofu import forget_set
from lensaudit.files import write_json
some = {f"demo/{name}": asked.load_registry()[f"demo/{name}"] for name in ("full", "retain", "npo")}
asked.load_registry = lambda: some
for kind in ("PatchSettings", "EvaluateSettings"):
    setattr(asked, kind, functools.partial(getattr(asked, kind), limit=5))
sys.exit(run(["doctor", "--json"]) or run(["demo"]))
"""
"""`lensaudit doctor`, then `lensaudit demo` on one model, its anchors and five rows."""


@pytest.fixture(scope="module")
def examined(installed):
    """What the doctor of the wheel found, and what its demo said."""
    done = installed.program(PROGRAM)
    assert done.returncode == 0, done.stderr
    found, _, said = done.stdout.partition("\n")
    return json.loads(found)["checks"], said


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Summaries of the demo by model, its folders, and what it said."""
    from lensaudit.patching.asking import DirectQuestions

    folder, said = tmp_path_factory.mktemp("demo"), io.StringIO()
    out, activations = folder / "out", folder / "activations"
    some = {name: one for name, one in load_registry().items() if name in AUDITED}
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(asked, "load_registry", lambda: some)
        # as where memory holds no model in a second type of numbers
        patch.setattr(DirectQuestions, "types", lambda asking, source: [])
        for kind in (PatchSettings, EvaluateSettings):
            patch.setattr(asked, kind.__name__, functools.partial(kind, limit=LIMIT))
        assert run(["demo", "--out", str(out), "--activations", str(activations)]) == 0
    found = {one.parent.name: json.loads(one.read_text()) for one in out.glob("*/summary.json")}
    return found, out, activations, said.getvalue()


@pytest.fixture
def two_threads():
    """PyTorch, while it has two threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield torch
    torch.set_num_threads(before)


def test_wheel_and_sdist_hold_the_same_package_and_nothing_of_the_tests(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        packed = {one for one in archive.namelist() if not one.endswith("/")}
    with tarfile.open(sdist) as archive:
        source = {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}
    ours = {one for one in packed if one.startswith("lensaudit/") and "/tofu_data/" not in one}
    assert ours == {one for one in source if one.startswith("lensaudit/")}
    for wanted in ("py.typed", "report/assets/page.css", "embedded/full/model.safetensors"):
        assert f"lensaudit/{wanted}" in ours
    tofu = {one for one in source if one.startswith("tofu_data/")}
    assert {f"tofu_data/{one.name}" for one in (ROOT / "tofu_data").glob("*.json")} <= tofu
    assert {f"lensaudit/{one}" for one in tofu} == packed - ours - {
        one for one in packed if ".dist-info/" in one
    }
    assert not [one for one in packed | source if one.startswith(("tests/", "docs/", "tools/"))]
    assert {"CITATION.cff", "CHANGELOG.md", "LICENSE", "README.md"} <= source
    assert any(one.endswith("licenses/LICENSE") for one in packed)


def test_versions_agree(installed):
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert first is not None
    assert first[1] == lensaudit.__version__
    said = installed("--version")
    assert said.stdout.split()[-1] == lensaudit.__version__, said.stderr


def test_the_wheel_runs_away_from_the_checkout(installed):
    program = (
        "import lensaudit as la; from lensaudit.models.registry import load_registry, resolve;"
        "folder = resolve('demo/npo', load_registry()).local;"
        "print(la.__file__, folder / 'model.safetensors', len(la.forget_set('demo')), sep='\\n')"
    )
    module, weights, n_rows = installed.program(program).stdout.splitlines()
    for one in (module, weights):
        assert Path(one).is_relative_to(installed.home)
    assert Path(weights).is_file()
    assert n_rows == "64"
    assert "demo/npo" in installed("models").stdout


def test_the_doctor_of_the_wheel_finds_all_that_the_wheel_asks_for(built, examined):
    checks = {one["name"]: one["state"] for one in examined[0]}
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    asked = re.findall(r"^Requires-Dist: ([\w.-]+)(?!.*extra ==)", metadata, re.M)
    assert len(asked) > 20
    assert {checks[one] for one in (*asked, "bridge on demo/full")} == {"ok"}


def test_the_demo_of_the_wheel_says_its_table_and_writes_its_page(installed, examined):
    assert re.search(r"^ demo/npo +\S", examined[1], re.M)
    page = installed.work / examined[1].splitlines()[-1].removeprefix("written: ")
    assert "demo/npo" in page.read_text()


def test_the_planted_truth_is_found(demo):
    uds = {name.removeprefix("demo-"): one["uds"] for name, one in demo[0].items()}
    assert uds["masked_upper"] < 0.15
    assert uds["never"] > 0.85


def test_the_calibration_rows_read_zero_and_one(demo):
    for summary in demo[0].values():
        assert summary["calibration"]["full"] == pytest.approx(0, abs=NATS)
        assert summary["calibration"]["retain"] == 1.0


def test_a_model_changed_only_above_a_layer_has_no_delta_below_it(demo):
    rows = [json.loads(line) for line in (demo[1] / "demo-masked_upper/results.jsonl").open()]
    changed = {layer for row in rows for layer, delta in enumerate(row["s2"]) if abs(delta) > 1e-4}
    assert changed
    assert min(changed) >= 12
    assert any(abs(delta) > 1e-4 for row in rows for delta in row["s1"][:8])


def test_the_demo_says_in_words_what_it_found(demo):
    _, out, _, text = demo
    assert text.splitlines()[-1] == f"written: {out / 'audit.html'}"
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        rows[cells[0] if cells else ""] = cells[1:]
    for word, name in (("hidden", "demo/masked_upper"), ("erased", "demo/never")):
        assert [one for one, cells in rows.items() if cells[:1] == [word]] == [name]
    assert max(len(line) for line in text.splitlines() if not line.startswith("written")) <= 96
    assert "lensaudit init" in text.splitlines()[-2]
    assert len(text.splitlines()) < 30


def test_page_terminal_and_gate_have_one_word_for_a_model(demo, tmp_path):
    words = {"demo/masked_upper": "hidden", "demo/never": "erased"}
    assert agreed(tmp_path, demo[1]) == words
    # as the table that the demo ends in
    assert all(re.search(rf"{name} +{word} ", demo[3]) for name, word in words.items())


def test_a_row_derived_by_hand_equals_the_engine(demo, tmp_path):
    others = [{**vars(one), "idx": one.idx + 100} for one in forget_set("demo")[:2]]
    write_json(tmp_path / "others.json", others)
    arguments = ["--source", "demo/masked_upper", "--activations", str(demo[2])]
    # caches of other rows stand beside those of the demo
    for more in ([], ["--data", str(tmp_path / "others.json")]):
        done = CliRunner().invoke(uds_by_hand.main, arguments + more, catch_exceptions=False)
        by_hand, engine = (float(line.split("UDS ")[1]) for line in done.stdout.splitlines()[-2:])
        assert 0 < by_hand < 1
        assert by_hand == pytest.approx(engine, abs=1e-5)


def test_a_second_process_leaves_what_is_found_again(tmp_path, two_threads, monkeypatch):
    from transformers import LlamaForCausalLM

    from lensaudit.auditing.measuring import measure
    from lensaudit.patching.asking import DirectQuestions
    from lensaudit.patching.prepare import prepare

    names, folder = ("demo/npo",), tmp_path / "out"
    how = {"full": "demo/full", "retain": ("demo/retain",), "limit": 4}
    settings = PatchSettings(**how, profile="full", activations=tmp_path / "activations")
    answers = EvaluateSettings(metrics=(asked.ANSWERS,), limit=1)
    evaluations = [(names[0], answers, folder / "answers")]
    with asked._ahead(asked._say, names, settings, evaluations, folder):
        pass
    assert two_threads.get_num_threads() == 2

    def ran(*_, **__):
        raise AssertionError("a model ran again")

    monkeypatch.setattr(LlamaForCausalLM, "forward", ran)
    found = measure(names, asked._said(names, settings, evaluations), folder)
    assert {*found.known} == {*found.said} == {"demo/npo"}
    with prepare(names, settings) as session:
        (source,) = session.sources.values()
        assert DirectQuestions(session).told(source).n == 4


def test_a_second_process_ends_with_the_block_and_is_none_of_one_thread(tmp_path, two_threads):
    block = contextlib.ExitStack()
    block.enter_context(asked._ahead(time.sleep, 600))
    (beside,) = multiprocessing.active_children()
    assert two_threads.get_num_threads() == 1
    ended = KeyboardInterrupt()
    assert not block.__exit__(KeyboardInterrupt, ended, None)
    beside.join(20)
    assert beside.exitcode
    with asked._ahead((tmp_path / "made").mkdir):
        pass
    assert (tmp_path / "made").is_dir()
    two_threads.set_num_threads(1)
    with asked._ahead((tmp_path / "not made").mkdir):
        pass
    assert not (tmp_path / "not made").exists()


BEGINS_AND_DIES = """
import multiprocessing, os, signal, sys, time, torch
from pathlib import Path
from lensaudit.association.demo import _ahead

WORK = "import time, pathlib; pathlib.Path('at_work').mkdir(); time.sleep(600)"
if __name__ == "__main__":
    torch.set_num_threads(2)
    with _ahead(exec, WORK):
        (beside,) = multiprocessing.active_children()
        print(beside.pid, flush=True)
        while sys.argv[1] == "late" and not Path("at_work").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("killed", ["early", "late"])
def test_a_second_process_does_not_outlive_one_that_is_killed(tmp_path, killed):
    script = tmp_path / "begins_and_dies.py"
    script.write_text(BEGINS_AND_DIES)
    # no pipes: whoever outlives it would hold them, and be waited for
    with (tmp_path / "said").open("w+") as said:
        command = [sys.executable, script, killed]
        how = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(ROOT)}}
        done = subprocess.run(command, **how, stdout=said, stderr=said, check=False)
        said.seek(0)
        text = said.read()
    assert done.returncode == -signal.SIGKILL, text
    assert killed == "early" or (tmp_path / "at_work").exists()
    until = time.monotonic() + 30
    while _runs(int(text)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not _runs(int(text))


def _runs(process: int) -> bool:
    """Whether there is such a process, but for one that ended and that nobody asked about."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
def test_the_playground_answers_a_question():
    example = lensaudit.forget_set("demo")[0]
    program = [sys.executable, "-m", "experiments.by_hand.hooks"]
    asked = ["--question", example.question, "--prefix", example.prefix, "--max-new-tokens", "8"]
    done = subprocess.run([*program, *asked], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    said = next(line for line in lines if line.strip().startswith("full:"))
    assert example.entity.split()[0] in said
    assert "without the random direction" in done.stdout
    assert sum(line.strip()[:2].rstrip(":").isdigit() for line in lines) == 16
